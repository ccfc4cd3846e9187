"""Hands rejected items to the configured sink."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from attrs import define

from tpfd import payloads
from tpfd.core.awaits import question_of
from tpfd.core.records import ExecutionRecord, InteractionRecord
from tpfd.dispatch.protocol import ItemReject
from tpfd.engine.calls import Rejection, work_key
from tpfd.errors import DispatchError, TpfdError, TransportError
from tpfd.ops.logs import get_logger
from tpfd.program import Program
from tpfd.runtime import Runtime

log = get_logger("tpfd.reject")


class Sink(Protocol):
    """A provider of ``tpfd.dispatch``."""

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        """Raises DispatchError."""


@define(eq=False, kw_only=True)
class Rejecting:
    """A ``RejectSink`` over a provider, and the sink of awaits whose request can never be sent.

    Attributes:
        include_payload: whether the item itself goes along; else only its fingerprint.
        fail_pipeline: a sink that fails, fails the attempt; else that is logged and the pipeline goes on.
    """

    runtime: Runtime
    sink: Sink
    include_payload: bool
    fail_pipeline: bool

    async def reject(self, record: ExecutionRecord, rejections: Sequence[Rejection]) -> None:
        """See ``tpfd.engine.ports.RejectSink``."""
        program = self.runtime.program(record.pipeline_id)
        rejects = tuple(self._reject(program, record, rejection) for rejection in rejections)
        try:
            await self.sink.publish(rejects)
        except DispatchError as error:
            if self.fail_pipeline:
                raise
            log.error("reject_sink_failed", execution_id=record.execution_id, lost=len(rejects), message=error.message)

    async def reject_unsent(self, record: ExecutionRecord, asked: InteractionRecord, message: str) -> None:
        """See ``tpfd.awaits.ports.UnsentSink``."""
        program = self.runtime.program(record.pipeline_id)
        rejection = Rejection(
            program.step(asked.step_index),
            "item",
            await payloads.any_value_of(self.runtime, program, asked.tenant_id, question_of(asked)),
            1,
            TransportError(message, retryable=False),
            # A child is one item of its parent's stream.
            asked.item_index if asked.itemised else record.item_index,
            asked.send_count - 1,
            0,  # what can be tried again is, until its deadline: no number limits it
        )
        await self.reject(record, [rejection])

    def _reject(self, program: Program, record: ExecutionRecord, rejection: Rejection) -> ItemReject:
        text = _text(program, rejection.sample)
        step = rejection.step
        return ItemReject(
            tenant_id=record.tenant_id,
            execution_id=record.execution_id,
            correlation_id=record.execution_id,
            idempotency_key=work_key(record, step.step_id, rejection.item_index),
            step_class=step.python or step.step_id,
            step_name=step.name,
            reject_scope=rejection.scope.upper(),
            retries_observed=rejection.retries,
            retry_limit=rejection.retry_limit,
            final_attempt=True,
            error_class=type(rejection.error).__name__,
            error_message=str(rejection.error),
            rejected_at_epoch_ms=self.runtime.now(),
            item_fingerprint=hashlib.sha256(text.encode()).hexdigest(),
            item_count=rejection.item_count,
            payload=text if self.include_payload else None,
        )


def _text(program: Program, sample: object) -> str:
    """The item as canonical JSON if it is a record of the pipeline, else as text: it may be a raw line."""
    if program.pipeline.types.name_of(type(sample)) is None:
        return str(sample)
    try:
        return program.encode(program.type_name(sample), sample)
    except TpfdError:
        # It was rejected because it does not fit: its text is all there is.
        return str(sample)
