"""Calling a step function: its style, its retries within the attempt, what it rejects.

A plain ``def`` runs in a thread. If the attempt is cancelled meanwhile the thread is left behind: it can commit
nothing, because what it returns goes nowhere. A function that swallows a cancel cannot make a cancelled attempt go on:
the checkpoint behind the call raises it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any, BinaryIO

import trio
from attrs import define, field, frozen

from tpfd.boundaries import contained
from tpfd.core import ids
from tpfd.core.events import ExecutionPolicy
from tpfd.core.failures import Failure
from tpfd.core.records import ExecutionRecord
from tpfd.core.retry import Backoff
from tpfd.ops.logs import Log
from tpfd.pipeline.contract import CallStyle, StepFunction
from tpfd.pipeline.model import Cardinality, Step
from tpfd.program import Program
from tpfd.steps import StepContext, no_source


@frozen
class Rejection:
    """An item (or a sample of a stream) that a step gave up on."""

    step: Step
    scope: str  # item | stream
    sample: object
    item_count: int
    error: BaseException
    item_index: int | None
    retries: int
    retry_limit: int


@define
class Rejected:
    """Stands for the value of an item that was rejected."""

    rejection: Rejection


def work_key(record: ExecutionRecord, step_id: str, item_index: int | None) -> str:
    """The stable name of a piece of work: the same whether an item went on in its stream or in a child."""
    root = record.parent_execution_id or record.execution_id
    return ids.idempotency_key(record.tenant_id, root, step_id, 0 if item_index is None else item_index)


@define(eq=False)
class Caller:
    """Calls the step functions of one attempt.

    Attributes:
        threads: bounds the threads of all attempts together.
        clock_ms: wall-clock time.
        open_object: opens objects of the pipeline's source.
        rejections: what the functions rejected and nobody has taken yet; whoever runs a step takes them after it.
    """

    program: Program
    record: ExecutionRecord
    policy: ExecutionPolicy
    threads: trio.CapacityLimiter
    clock_ms: Callable[[], int]
    random: Random
    log: Log
    open_object: Callable[[str], BinaryIO] = no_source
    rejections: list[Rejection] = field(factory=list)

    def context(self, step: Step, item_index: int | None, attempt: int = 0) -> StepContext:
        """The surroundings of one call."""
        record = self.record

        def reject_item(item: object, error: BaseException) -> None:
            self._reject(step, "item", item, 1, error, item_index)

        def reject_stream(sample: object, count: int, error: BaseException) -> None:
            self._reject(step, "stream", sample, count, error, item_index)

        return StepContext(
            execution_id=record.execution_id,
            tenant_id=record.tenant_id,
            pipeline_id=record.pipeline_id,
            step_id=step.step_id,
            idempotency_key=work_key(record, step.step_id, item_index),
            transition_key=record.last_transition_key,
            attempt=record.attempt + attempt,
            item_index=item_index,
            deadline_epoch_ms=None if step.timeout_ms is None else self.clock_ms() + step.timeout_ms,
            logger=self.log.bind(step_id=step.step_id, item_index=item_index),
            reject_item=reject_item,
            reject_stream=reject_stream,
            open_object=self.open_object,
        )

    def _reject(
        self, step: Step, scope: str, sample: object, count: int, error: BaseException, item_index: int | None
    ) -> None:
        self.rejections.append(Rejection(step, scope, sample, count, error, item_index, 0, 0))

    def take_rejections(self) -> list[Rejection]:
        """What was rejected since the last call."""
        taken, self.rejections = self.rejections, []
        return taken

    async def through(self, steps: tuple[Step, ...], item_index: int | None, value: Any) -> Any:
        """Runs one value through one-to-one steps, each with its retries; steps that do not take its type are passed.

        Returns:
            The last value, or Rejected.

        Raises:
            Exception: what the last try of a step raised, when it is not to be recovered.
        """
        routing = self.program.routing
        for step in steps:
            type_name = self.program.type_name(value)
            if not routing.takes(step, type_name):
                continue
            function = self.program.function(step)
            result = await self._tried(function, step, item_index, value, 0)
            if isinstance(result, Failure):
                result = await self._retried(function, step, item_index, value, result)
            if isinstance(result, Rejected):
                return result
            if step.cardinality is not Cardinality.SIDE_EFFECT:
                value = result
        return value

    async def _retried(
        self, function: StepFunction, step: Step, item_index: int | None, value: Any, failure: Failure
    ) -> Any:
        """After the first call failed: calls until it works, the retries are used up, or another try cannot help."""
        limit = self.program.defaults.retry_limit if step.retry.limit is None else step.retry.limit
        backoff = Backoff(
            step.retry.wait_ms or self.program.defaults.retry_wait_ms,
            2.0,
            step.retry.max_backoff_ms or self.program.defaults.max_backoff_ms,
            self.policy.backoff.jitter,
        )
        tries = 1
        while failure.retryable and tries <= limit:
            delay_ms = backoff.delay_ms(tries, self.random.random(), failure.floor_ms)
            self.log.info(
                "step_retry",
                step_id=step.step_id,
                item_index=item_index,
                code=failure.code,
                message=failure.message,
                retry=tries,
                delay_ms=delay_ms,
            )
            await trio.sleep(delay_ms / 1000)
            done = await self._tried(function, step, item_index, value, tries)
            if not isinstance(done, Failure):
                return done
            failure, tries = done, tries + 1
        if not failure.internal and self.program.recovers(step):
            return Rejected(Rejection(step, "item", value, 1, failure.error, item_index, tries - 1, limit))
        raise failure.error

    async def _tried(
        self, function: StepFunction, step: Step, item_index: int | None, value: Any, attempt: int
    ) -> Any | Failure:
        """One call; what it raises is a Failure."""
        done = await contained(functools.partial(self._once, function, step, item_index, value, attempt))
        await trio.lowlevel.checkpoint_if_cancelled()
        return done

    async def _once(self, function: StepFunction, step: Step, item_index: int | None, value: Any, attempt: int) -> Any:
        named = {"context": self.context(step, item_index, attempt)} if function.wants_context else {}
        with nullcontext() if step.timeout_ms is None else trio.fail_after(step.timeout_ms / 1000):
            match function.style:
                case CallStyle.ASYNC:
                    return await function.call(value, **named)
                case CallStyle.INLINE:
                    return function.call(value, **named)
                case _:
                    return await trio.to_thread.run_sync(
                        functools.partial(function.call, value, **named),
                        abandon_on_cancel=True,
                        limiter=self.threads,
                    )
