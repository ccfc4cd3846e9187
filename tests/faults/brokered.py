"""A broker that outlives processes: requests and answers in memory, and a provider behind it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from tests.engine.gate import Gate
from tests.engine.provider import Envelope
from tests.engine.world import Process
from tests.transports.broker_double import Taking, link_of
from tpfd.bell import Bell, wait_for
from tpfd.program import Program
from tpfd.transports.broker import Confirmed, Inbound, Outcome, Outgoing, Unsendable


@define(eq=False)
class Topics:
    """What a broker keeps.

    Attributes:
        answer: what the provider says to a request; None: it keeps silent about it.
        refused: numbers of rows that are too large for it, for ever.
        asked: how often each interaction came.
        answers: bodies in order.
        committed: how many of them are dealt with, without a gap.
    """

    nursery: trio.Nursery
    answer: Callable[[Envelope], object]
    refused: frozenset[int] = frozenset()
    asked: Counter[str] = field(factory=Counter)
    answers: list[bytes] = field(factory=list)
    committed: int = 0
    filled: Bell = field(factory=Bell)

    def take(self, body: bytes) -> Outcome:
        """A request arrives; the provider answers a while later, the first time it is asked twice over."""
        envelope: Envelope = json.loads(body)
        self.asked[envelope["interactionId"]] += 1
        if envelope["requestPayload"]["number"] in self.refused:
            return Unsendable("it is too large")
        self.nursery.start_soon(self._provide, envelope)
        return Confirmed()

    async def _provide(self, envelope: Envelope) -> None:
        await trio.sleep(2)
        payload = self.answer(envelope)
        if payload is None:
            return
        said = {name: envelope[name] for name in ("tenantId", "interactionId", "correlationId")}
        times = 2 if envelope["requestPayload"]["number"] == 0 else 1
        self.answers += [json.dumps({**said, "responsePayload": payload}).encode()] * times
        self.filled.ring()

    async def serve(self, process: Process, program: Program, step_id: str) -> None:
        """The link and the consumer of a process, for ever."""
        reading = Taking(process, _Reader(self, process.gate))
        sending = link_of(process, _Wire(self, process.gate), program.pipeline_id, step_id)
        async with trio.open_nursery() as intake:
            intake.start_soon(sending.run)
            intake.start_soon(reading.consumer.run)


@define(eq=False)
class _Wire:
    """What one process sends: a whole batch arrives or none of it."""

    topics: Topics
    gate: Gate
    batch_count: int = 2
    parallel_count: int = 1

    async def send(self, requests: Sequence[Outgoing]) -> Sequence[Outcome]:
        async def arrive() -> Sequence[Outcome]:
            return [self.topics.take(request.body) for request in requests]

        return await self.gate.effect("send", arrive)


@define(eq=False)
class _Reader:
    """What one process reads: from the committed offset on, as a consumer that takes a partition over does."""

    topics: Topics
    gate: Gate
    name: str = "memory:answers"
    _next: int = field(default=0, init=False)
    _done: set[int] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self.topics.committed

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        yield

    async def receive(self, limit: int) -> Sequence[Inbound]:
        ticket = self.topics.filled.ticket()
        if self._next >= len(self.topics.answers):
            await wait_for(ticket, 1.0)
        first, self._next = self._next, min(self._next + limit, len(self.topics.answers))
        return [Inbound(self.topics.answers[n], f"answers@{n}", n) for n in range(first, self._next)]

    def done(self, inbound: Inbound) -> None:
        if self.gate.dead:
            return
        assert isinstance(inbound.mark, int)
        self._done.add(inbound.mark)
        while self.topics.committed in self._done:
            self.topics.committed += 1
