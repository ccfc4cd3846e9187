"""A broker in memory: a source to which messages are given, and a wire that says what it is told."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import trio
from attrs import define, field

from tests.engine.world import Lost, Process, World
from tpfd.awaits.admission import Answer
from tpfd.bell import Bell, wait_for
from tpfd.core.deadletter import UnreadableAnswer
from tpfd.core.tokens import SigningKey
from tpfd.errors import DispatchError, TransportError
from tpfd.transports.broker import AnswerSource, Confirmed, Inbound, Outcome, Outgoing, Wire
from tpfd.transports.broker_answers import AnswerConsumer
from tpfd.transports.broker_envelope import BrokerAnswer
from tpfd.transports.broker_link import LET_GO_MS, BrokerLink

SourceT = TypeVar("SourceT", bound=AnswerSource)


@define(eq=False)
class MemorySource:
    """Answers that were put in.

    Attributes:
        dealt_with: positions in the order in which they were done.
        failing: what a receive fails with; None: it works.
        limits: how many were asked for by each receive.
    """

    name: str = "memory:answers"
    waiting: deque[Inbound] = field(factory=deque)
    dealt_with: list[str] = field(factory=list)
    failing: str | None = None
    limits: list[int] = field(factory=list)
    open: bool = False
    _put_count: int = 0
    _filled: Bell = field(factory=Bell)

    def put(self, body: bytes | None) -> str:
        position = f"answers@{self._put_count}"
        self._put_count += 1
        self.waiting.append(Inbound(body, position, None))
        self._filled.ring()
        return position

    def answer(self, interaction_id: str, payload: object, **more: object) -> str:
        envelope = {"tenantId": "t1", "interactionId": interaction_id, "responsePayload": payload, **more}
        return self.put(json.dumps(envelope).encode())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self.open = True
        try:
            yield
        finally:
            self.open = False

    async def receive(self, limit: int) -> Sequence[Inbound]:
        self.limits.append(limit)
        if self.failing is not None:
            await trio.lowlevel.checkpoint()
            raise TransportError(self.failing)
        ticket = self._filled.ticket()
        if not self.waiting:
            await wait_for(ticket, 1.0)
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    def done(self, inbound: Inbound) -> None:
        self.dealt_with.append(inbound.position)

    async def until_done(self, count: int, within_s: float = 3600.0) -> None:
        with trio.fail_after(within_s):
            while len(self.dealt_with) < count:
                await trio.sleep(0.01)


@define(eq=False)
class Grave:
    """Unreadable answers that were kept."""

    kept: list[UnreadableAnswer] = field(factory=list)
    failing: bool = False

    async def bury(self, letter: UnreadableAnswer) -> None:
        await trio.lowlevel.checkpoint()
        if self.failing:
            raise DispatchError("no room for letters")
        self.kept.append(letter)


class Taking(Generic[SourceT]):
    """A process that reads a source."""

    def __init__(self, process: Process, source: SourceT) -> None:
        self.process = process
        self.source = source
        self.grave = Grave()
        self.consumer = AnswerConsumer(
            runtime=process.runtime, source=source, complete=self._complete, bury=self.grave.bury
        )
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def _complete(self, answer: BrokerAnswer) -> None:
        await self.process.coordinator.admission.complete(
            Answer(
                tenant_id=answer.tenant_id,
                interaction_id=answer.interaction_id,
                correlation_id=answer.correlation_id,
                resume_token=answer.resume_token,
                key=answer.key,
                payload=answer.payload,
                actor=answer.actor,
                by_broker=True,
            )
        )

    async def run(self) -> None:
        """Reads until it is stopped, or its process dies."""
        with self.scope, contextlib.suppress(Lost):
            await self.process.call(self.consumer.run)
        self.ended.set()

    async def stop(self) -> None:
        """As a drain does."""
        self.scope.cancel("drain")
        await self.ended.wait()


def confirmed(_: Outgoing) -> Outcome:
    return Confirmed()


@define(eq=False)
class MemoryWire:
    """Takes requests.

    Attributes:
        say: the outcome of each.
        sent: every request that was handed over, however it ended.
        failing: what a whole call fails with; None: it works.
        latency_s: of a call.
    """

    say: Callable[[Outgoing], Outcome] = confirmed
    sent: list[Outgoing] = field(factory=list)
    failing: str | None = None
    latency_s: float = 0.0
    batch_count: int = 10
    parallel_count: int = 2
    most_at_once: int = 0
    call_count: int = 0
    _at_once: int = 0

    async def until_sent(self, count: int, within_s: float = 3600.0) -> None:
        with trio.fail_after(within_s):
            while len(self.sent) < count:
                await trio.sleep(0.01)

    async def send(self, requests: Sequence[Outgoing]) -> Sequence[Outcome]:
        assert 0 < len(requests) <= self.batch_count
        self._at_once += 1
        self.call_count += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await trio.sleep(self.latency_s)
            if self.failing is not None:
                raise TransportError(self.failing)
            self.sent.extend(requests)
            return [self.say(request) for request in requests]
        finally:
            self._at_once -= 1

    @property
    def envelopes(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.sent]

    @property
    def ids(self) -> list[str]:
        return [str(request.record.interaction_id) for request in self.sent]


@define(eq=False)
class Linked:
    """A process whose link runs.

    Attributes:
        intake: what a drain cancels first.
    """

    process: Process
    link: BrokerLink
    wire: MemoryWire
    intake: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        with contextlib.suppress(Lost):
            await self.process.call(self._run)
        self.ended.set()

    async def _run(self) -> None:
        with self.intake:
            await self.link.run()

    async def drain(self) -> None:
        """The link closes, then the process."""
        self.intake.cancel("drain")
        await self.ended.wait()
        await self.process.drain()


def link_of(
    process: Process, wire: Wire, pipeline_id: str, step_id: str, *, credit: int = 8, let_go_ms: int = LET_GO_MS
) -> BrokerLink:
    """The link of a step in a process."""
    return BrokerLink(
        runtime=process.runtime,
        sockets=process.sockets,
        pipeline_id=pipeline_id,
        step_id=step_id,
        transport="kafka",
        wire=wire,
        envelopes=process.sockets.envelopes,
        give_up=process.coordinator.admission.give_up,
        credit=credit,
        let_go_ms=let_go_ms,
    )


async def link(
    world: World, wire: MemoryWire | None = None, name: str = "a", *, credit: int = 8, let_go_ms: int = LET_GO_MS,
    keys: tuple[SigningKey, ...] = (), **settings: Any,
) -> Linked:  # fmt: skip
    """A process with a link for the step `ask`."""
    process = world.build(name, keys=keys, **settings)
    wire = wire or MemoryWire()
    linked = Linked(
        process,
        link_of(process, wire, "test", "ask", credit=credit, let_go_ms=let_go_ms),
        wire,
    )
    world.nursery.start_soon(linked.run)
    await world.nursery.start(process.run)
    return linked
