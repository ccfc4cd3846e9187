"""Runs one segment: the plan's stages as tasks, from the input to a plain outcome.

Nothing durable happens here but what a stage does under the attempt's fence (asking the outside, preparing a
publication); the outcome is a value, and ``attempts`` turns it into one transaction.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from tpfd.core.records import FactType, JsonText, Publication
from tpfd.engine import streams
from tpfd.engine.calls import Caller, Rejected, Rejection
from tpfd.engine.plan import Call, Expand, Live, ParkItems, ParkList, ParkOne, Plan, Reduce, Stage, Transform
from tpfd.engine.ports import LiveAwait, OutputSession, Publisher, RejectSink
from tpfd.errors import InternalError, NonRetryableError
from tpfd.items import Item, Receive, Send, with_waiting
from tpfd.pipeline.model import Step
from tpfd.program import Program

T = TypeVar("T")

BATCH_COUNT = 256
"""Rows that are written at once if they are there."""


@frozen
class Done:
    """The segment's last value."""

    value: Any


@frozen
class Collected:
    """The segment's last values, encoded, where nothing is published."""

    values: tuple[JsonText, ...]


@frozen
class Dropped:
    """The one value of a child was rejected: it is done, without an output."""


@frozen
class Published:
    """The output object is in place."""


@frozen
class AskOne:
    """A scalar or aggregate await: ask this and park.

    Attributes:
        text: the canonical request.
        item_count: items of a list; None: one value.
    """

    step: Step
    text: JsonText
    business_key: str = ""
    item_count: int | None = None


@frozen
class AskedItems:
    """A stream await: everything was asked; park on so many items."""

    step: Step
    item_count: int


Outcome = Done | Dropped | Collected | Published | AskOne | AskedItems


@define(eq=False, kw_only=True)
class Segment:
    """One run of one segment.

    Attributes:
        plan: what to run.
        live: runs a live await; asks all items of a parked one.
        publisher: None: the result is kept in the execution.
        note: writes a fact about progress under the attempt's fence.
        prepare: records a publication under the attempt's fence.
        max_result_items: values that a MANY result may hold.
        max_input_items: values that an aggregate await may ask about.
        channels: where its channels are shown while they are open.
    """

    program: Program
    plan: Plan
    caller: Caller
    live: LiveAwait
    publisher: Publisher | None
    rejects: RejectSink
    note: Callable[[FactType, str], Awaitable[None]]
    prepare: Callable[[Publication], Awaitable[None]]
    max_result_items: int
    max_input_items: int
    channels: dict[Receive, tuple[str, str]]
    _opened: list[Receive] = field(factory=list, init=False)
    _demoted_item_count: int | None = field(default=None, init=False)

    async def run(self, value: Any, source: AsyncIterator[Item] | None) -> Outcome:
        """Runs the stages.

        Args:
            value: the input, if it is one value.
            source: the input, if it is a stream.
        """
        stages = list(self.plan.stages)
        while stages:
            if source is None and not isinstance(stages[0], Expand):
                stage = stages.pop(0)
                if isinstance(stage, ParkOne):
                    if not self.program.routing.takes(stage.step, self.program.type_name(value)):
                        continue
                    text = self.program.encode(stage.step.input_type, value)
                    return AskOne(stage.step, text, self.program.business_key(stage.step.index, value))
                if not isinstance(stage, Call):
                    raise InternalError(f"{type(stage).__name__} needs a stream")
                value = await self._call(stage, value)
                if isinstance(value, Rejected):
                    return Dropped()
                continue
            if source is None:
                expand = stages.pop(0)
                assert isinstance(expand, Expand)
                source = streams.ExpandStage(self.caller, expand.step, self._flush).items(value)
            end = next(
                (n for n, stage in enumerate(stages) if isinstance(stage, (Reduce, ParkItems, ParkList))), len(stages)
            )
            inner, last = stages[:end], stages[end] if end < len(stages) else None
            stages = stages[end + 1 :]
            result = await self._stream(source, inner, last)
            if self._demoted_item_count is not None:
                live = self.plan.live
                assert live is not None
                return AskedItems(live.step, self._demoted_item_count)
            if not isinstance(last, Reduce):
                return result  # type: ignore[no-any-return]
            value, source = result, None
        if source is not None:
            return await self._stream(source, [], None)  # type: ignore[no-any-return]
        return await self._last_value(value)

    async def _call(self, stage: Call, value: Any) -> Any:
        # A child is one item of its parent's stream.
        result = await self.caller.through(stage.steps, self.caller.record.item_index, value)
        if self.caller.rejections:
            await self._flush(self.caller.take_rejections())
        if isinstance(result, Rejected):
            if self.caller.record.unit_id is None:
                # The whole execution is this one value: without it there is nothing to go on with.
                raise result.rejection.error
            await self._flush([result.rejection])
        return result

    async def _last_value(self, value: Any) -> Outcome:
        if self.publisher is None:
            return Done(value)
        async with self.publisher.open(self.caller.record) as session:
            await session.write([self._row(value)])
            await session.place(self.prepare)
        return Published()

    async def _stream(self, source: AsyncIterator[Item], inner: list[Stage], last: Stage | None) -> Any:
        """Runs the stages of a stream; what comes out of its end is consumed or published."""
        if last is not None or self.publisher is None:
            return await self._flow(source, inner, last, functools.partial(self._consume, last))
        async with self.publisher.open(self.caller.record) as session:
            await self._flow(source, inner, last, functools.partial(self._write, session))
            # Only here is it certain that no stage has failed: what was written is all there is.
            if self._demoted_item_count is None:
                await session.place(self.prepare)
        return Published()

    async def _flow(
        self,
        source: AsyncIterator[Item],
        inner: list[Stage],
        last: Stage | None,
        consume: Callable[[Receive], Awaitable[T]],
    ) -> T:
        """Runs the stages as tasks, the consumer in this one.

        Raises:
            BaseExceptionGroup: a stage or the consumer failed.
        """
        try:
            async with trio.open_nursery() as nursery:
                send, receive = self._channel(inner[0] if inner else last)
                nursery.start_soon(self._feed, source, send)
                for number, stage in enumerate(inner):
                    follower = inner[number + 1] if number + 1 < len(inner) else last
                    next_send, next_receive = self._channel(follower)
                    nursery.start_soon(self._run_stage, stage, receive, next_send)
                    receive = next_receive
                result = await consume(receive)
                # A consumer may be done before its stream is.
                nursery.cancel_scope.cancel("the segment has its result")
        finally:
            for opened in self._opened:
                self.channels.pop(opened, None)
            self._opened.clear()
        return result

    async def _feed(self, source: AsyncIterator[Item], send: Send) -> None:
        async with aclosing(source) as closing:  # type: ignore[type-var]
            await streams.feed(closing, send)
        send.close()

    async def _run_stage(self, stage: Stage, receive: Receive, send: Send) -> None:
        """Runs a stage and then closes its ends, without a checkpoint, so that nothing can come between.

        A stage that fails leaves them open: the nursery ends its neighbours, none of which may take it for the end of
        the stream.
        """
        match stage:
            case Call(steps):
                concurrency = self.program.concurrency(steps[0])
                await streams.CallStage(self.caller, steps, concurrency, self._flush).run(receive, send)
            case Expand(step):
                await streams.ExpandStage(self.caller, step, self._flush).run(receive, send)
            case Transform(step):
                await streams.TransformStage(self.caller, step, self._flush).run(receive, send)
            case Live(step):
                terms = self.program.terms[step.index]
                self._demoted_item_count = await self.live.run(self.caller.record, terms, receive, send)
            case _:
                raise InternalError(f"{type(stage).__name__} is no stage of a stream")
        send.close()
        receive.close()

    async def _consume(self, last: Stage | None, receive: Receive) -> Any:
        match last:
            case Reduce(step):
                return await streams.reduce(self.caller, step, receive, self._flush)
            case ParkItems(step):
                asked = await self.live.ask_all(self.caller.record, self.program.terms[step.index], receive)
                return AskedItems(step, asked)
            case ParkList(step):
                limit, key = self.max_input_items, "await.aggregate-max-input-items"
                texts = await self._encoded(receive, step.input_type, limit, key, f"the request of {step.step_id}")
                return AskOne(step, JsonText("[" + ",".join(texts) + "]"), item_count=len(texts))
        return await self._collect(receive)

    async def _write(self, session: OutputSession, receive: Receive) -> None:
        first = True
        async for item in receive:
            await session.write([self._row(one.value) for one in with_waiting(receive, item, BATCH_COUNT)])
            if first:
                first = False
                await self.note(FactType.OUTPUT_STARTED, "output-started")

    async def _collect(self, receive: Receive) -> Outcome:
        limit, key = self.max_result_items, "await.aggregate-max-output-items"
        type_name = self.program.type_at(self.plan.stop)
        return Collected(tuple(await self._encoded(receive, type_name, limit, key, "the result")))

    async def _encoded(self, receive: Receive, type_name: str, limit: int, key: str, what: str) -> list[JsonText]:
        """All items of a stream, encoded and in source order; a list is only held under a guard."""
        texts: dict[int, JsonText] = {}
        async for item in receive:
            if len(texts) >= limit > 0:
                message = f"{what} has more than {limit} items; {key} allows no more"
                raise NonRetryableError(message, code="too_many_items")
            texts[item.place] = self.program.encode(type_name, item.value)
        return [texts[place] for place in sorted(texts)]

    def _row(self, value: Any) -> Mapping[str, object]:
        row: Mapping[str, object] = self.program.codec.unstructure(self.program.pipeline.output_type, value)
        return row

    def _channel(self, stage: Stage | None) -> tuple[Send, Receive]:
        """The bounded channel before a stage, or before the segment's end; shown in the metrics while it is open."""
        step = _first_step(stage)
        capacity = self.program.defaults.buffer_capacity if step is None else self.program.capacity(step)
        send, receive = trio.open_memory_channel[Item](capacity)
        self.channels[receive] = (self.program.pipeline_id, "output" if step is None else step.step_id)
        self._opened.append(receive)
        return send, receive

    async def _flush(self, rejections: list[Rejection]) -> None:
        await self.rejects.reject(self.caller.record, rejections)


def _first_step(stage: Stage | None) -> Step | None:
    match stage:
        case Call(steps):
            return steps[0]
        case Expand(step) | Transform(step) | Reduce(step) | Live(step) | ParkItems(step) | ParkList(step):
            return step
        case _:
            return None
