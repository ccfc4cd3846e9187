"""The stages of a stream: tasks that read one bounded channel and write the next.

Memory: a channel holds at most the `buffer_capacity` of the step behind it, a stage at most `max_concurrency` items in
hand, so a segment of s stages holds at most s * (capacity + concurrency) items whatever the stream's length.

The end of a stream travels from stage to stage: a stage that ends well has its two ends closed for it (see
``segment``). One that fails has not: to whoever reads behind it, a failure would look like an end.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from tpfd.engine.calls import Caller, Rejected, Rejection
from tpfd.items import Item, Receive, Send, sent
from tpfd.pipeline.contract import CallStyle
from tpfd.pipeline.model import Step

T = TypeVar("T")
Flush = Callable[[list[Rejection]], Awaitable[None]]
"""Hands rejected items to the sink."""

PULL_COUNT = 64
PULL_S = 0.02
"""A generator in a thread is pulled for so many items or so long, whichever comes first: few thread hops for a quick
parser, no waiting for a slow one."""

async def feed(source: AsyncIterator[Item], send: Send) -> None:
    """Writes a source into a channel until it ends or nobody reads any more."""
    async for item in source:
        if not await sent(send, item):
            return


@define(eq=False)
class CallStage:
    """Runs one-to-one steps on each item, with up to `concurrency` workers.

    Workers are started only when an item is there and no worker is idle; with one worker the order is kept.
    """

    caller: Caller
    steps: tuple[Step, ...]
    concurrency: int
    flush: Flush
    _idle_count: int = field(default=0, init=False)
    _worker_count: int = field(default=0, init=False)

    async def run(self, receive: Receive, send: Send) -> None:
        """Runs until the stream ends."""
        async with trio.open_nursery() as nursery:
            self._start_worker(nursery, receive, send)

    def _start_worker(self, nursery: trio.Nursery, receive: Receive, send: Send) -> None:
        self._worker_count += 1
        self._idle_count += 1
        nursery.start_soon(self._work, nursery, receive, send)

    async def _work(self, nursery: trio.Nursery, receive: Receive, send: Send) -> None:
        async for index, value in receive:
            self._idle_count -= 1
            if not self._idle_count and self._worker_count < self.concurrency:
                self._start_worker(nursery, receive, send)
            result = await self.caller.through(self.steps, index, value)
            if isinstance(result, Rejected):
                self.caller.rejections.append(result.rejection)
            elif not await sent(send, Item(index, result)):
                nursery.cancel_scope.cancel("the consumer is done")
                return
            if self.caller.rejections:
                await self.flush(self.caller.take_rejections())
            self._idle_count += 1


@define(eq=False)
class ExpandStage:
    """Turns one value into a stream by a generator function; numbers its items."""

    caller: Caller
    step: Step
    flush: Flush

    async def items(self, value: Any) -> AsyncGenerator[Item, None]:
        """The items of one value."""
        index = 0
        async with aclosing(self._values(value)) as values:
            async for item in values:
                if self.caller.rejections:
                    await self.flush(self.caller.take_rejections())
                yield Item(index, item)
                index += 1
        if self.caller.rejections:
            await self.flush(self.caller.take_rejections())

    async def _values(self, value: Any) -> AsyncGenerator[Any, None]:
        function = self.caller.program.function(self.step)
        named = {"context": self.caller.context(self.step, None)} if function.wants_context else {}
        if function.style is CallStyle.ASYNC_GENERATOR:
            async with aclosing(function.call(value, **named)) as generator:
                async for item in generator:
                    yield item
            return
        generator = function.call(value, **named)
        try:
            while batch := await trio.to_thread.run_sync(
                functools.partial(_pull, generator), abandon_on_cancel=True, limiter=self.caller.threads
            ):
                for item in batch:
                    yield item
        finally:
            # It may hold a file open; one that still runs in a thread left behind cannot be closed from here.
            with suppress(ValueError):
                generator.close()

    async def run(self, receive: Receive, send: Send) -> None:
        """Expands each item of a stream; the numbers run through."""
        index = 0
        async for _, value in receive:
            async with aclosing(self.items(value)) as inner:
                async for item in inner:
                    if not await sent(send, Item(index, item.value)):
                        return
                    index += 1


def _pull(iterator: Iterator[T]) -> list[T]:
    """The next items of a generator; empty at its end. Runs in a thread."""
    end = time.monotonic() + PULL_S
    batch: list[T] = []
    for item in itertools.islice(iterator, PULL_COUNT):
        batch.append(item)
        if time.monotonic() >= end:
            break
    return batch


@define(eq=False)
class TransformStage:
    """A stream becomes another by an async generator function; its items are numbered anew."""

    caller: Caller
    step: Step
    flush: Flush

    async def run(self, receive: Receive, send: Send) -> None:
        """Runs until the function ends."""
        function = self.caller.program.function(self.step)
        named = {"context": self.caller.context(self.step, None)} if function.wants_context else {}
        async with aclosing(function.call(Values(receive), **named)) as generator:
            index = 0
            async for value in generator:
                if not await sent(send, Item(index, value)):
                    return
                index += 1
        if self.caller.rejections:
            await self.flush(self.caller.take_rejections())


async def reduce(caller: Caller, step: Step, receive: Receive, flush: Flush) -> Any:
    """A stream becomes one value by an async function that takes an async iterator."""
    function = caller.program.function(step)
    named = {"context": caller.context(step, None)} if function.wants_context else {}
    value = await function.call(Values(receive), **named)
    if caller.rejections:
        await flush(caller.take_rejections())
    return value


@frozen
class Values:
    """The bare values of a stream, as user functions see them.

    An iterator and not a generator: a function may stop in the middle, and nothing is then left to be closed.
    """

    receive: Receive

    def __aiter__(self) -> Values:
        return self

    async def __anext__(self) -> Any:
        try:
            return (await self.receive.receive()).value
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
