"""Work over hints in a simulated cluster: one queue with the manners of SQS, and each process' way to it.

What runs in the processes is the shipped code, down to the client of the service. The service loses no message, and
promises nothing else: not their order, not that each comes once, not when.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar, TypeVarTuple

import botocore.exceptions as sdk
import trio
from attrs import define, field

from tests.dispatch.fake_sqs import LIMIT_BYTES, URL, FakeSqs, Stored, refusal
from tests.dispatch.hinted import HintedWorld
from tests.engine.gate import Gate
from tests.engine.world import Process
from tests.sim.coverage import Fault
from tests.sim.faults import Dice, FaultyGate
from tpfd.aws.calls import AwsCalls
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import SqsQueue
from tpfd.bell import Bell, wait_for
from tpfd.core.hinting import Hint
from tpfd.dispatch.sqs_work import SqsWorkQueue, decode_hint

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
LATENCY_S = 0.1
"""Longest time that a short call takes."""
AFTER_THE_RUN_S = 36_000.0
"""How late a hint is that never helps anybody."""


@define(eq=False, kw_only=True)
class UnreliableSqs(FakeSqs):
    """The service, with the faults of the run.

    Attributes:
        changed: rings when there may be something to receive, or nothing can be received any more.
    """

    dice: Dice
    changed: Bell = field(factory=Bell)

    def __attrs_post_init__(self) -> None:
        self.entry_failure = self._refused

    def away(self, failing: sdk.ClientError | None) -> None:
        """From now on every call fails; None: they work again."""
        self.failing = failing
        self.changed.ring()

    def next_shown_at(self) -> float:
        """When the next of the messages appears that are not shown now; infinite: none will."""
        now = trio.current_time()
        return min((one.shown_at for one in self.stored.values() if one.shown_at > now), default=float("inf"))

    def hints(self) -> set[Hint]:
        """What the messages name, wherever they are."""
        return {decode_hint(one.body) for one in self.stored.values()}

    def chosen(self, limit: int) -> list[Stored]:
        shown = self.shown()
        return self.dice.random.sample(shown, min(limit, len(shown)))

    def shown_again_at(self, message: Stored, visibility_s: float) -> float:
        self.dice.trace.note(f"hint received: {message.body}")
        if self.dice.happens(Fault.HINT_DOUBLED, 0.1, message.body):
            # It is given to the next one too, with a receipt that makes the first one's void.
            return trio.current_time()
        return super().shown_again_at(message, visibility_s)

    def _send(self, entry: dict[str, Any]) -> str | None:
        body = entry["MessageBody"]
        for _ in range(2 if self.dice.happens(Fault.HINT_DOUBLED, 0.1, body) else 1):
            self.slow_s = self._slow_s(body)
            super()._send(entry)
        self.dice.trace.note(f"hint sent: {body}")
        self.changed.ring()
        return None

    def _slow_s(self, body: str) -> float:
        if not self.dice.happens(Fault.HINT_LATE, 0.3, body):
            return self.dice.between(0, 0.2)
        return AFTER_THE_RUN_S if self.dice.random.random() < 0.5 else self.dice.between(1, 15)

    def _hide(self, entry: dict[str, Any]) -> str | None:
        code = super()._hide(entry)
        self.changed.ring()
        return code

    def _refused(self, operation: str, entry: dict[str, Any]) -> dict[str, Any] | None:
        if operation != "send" or not self.dice.happens(Fault.HINT_REFUSED, 0.15, entry["MessageBody"]):
            return None
        for_good = self.dice.random.random() < 0.5
        return {"Code": "InvalidMessageContents" if for_good else "InternalError", "SenderFault": for_good}


@define(eq=False)
class _Calls:
    """Short calls of a process: others see their effect, and it may die before or after it."""

    gate: FaultyGate

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        async def land() -> T:
            await trio.sleep(self.gate.dice.between(0, LATENCY_S))
            return call(*args)

        await trio.lowlevel.checkpoint_if_cancelled()
        return await self.gate.landing("work queue", land)


@define(eq=False)
class _Receives:
    """Receives of a process. One that is open is left behind by a cancel, and may still be given something."""

    sqs: UnreliableSqs
    nursery: trio.Nursery

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        poll = _Poll(self.sqs, functools.partial(call, *args), call.keywords["WaitTimeSeconds"])  # type: ignore[attr-defined]
        self.nursery.start_soon(poll.run)
        try:
            await poll.ended.wait()
        finally:
            poll.given_up = not poll.ended.is_set()
        if poll.failure is not None:
            raise poll.failure
        answer: T = poll.answer
        return answer


@define(eq=False)
class _Poll:
    """One receive, as it stands open at the service."""

    sqs: UnreliableSqs
    call: Callable[[], Any]
    wait_s: float
    answer: Any = None
    failure: sdk.ClientError | None = None
    given_up: bool = False
    ended: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        ends_at = trio.current_time() + self.wait_s
        while True:
            ticket = self.sqs.changed.ticket()
            if self._ask() or trio.current_time() >= ends_at:
                break
            await wait_for(ticket, min(ends_at, self.sqs.next_shown_at()) - trio.current_time())
        dice = self.sqs.dice
        if self.answer and self.given_up:
            dice.note(Fault.HINT_ASTRAY)
        elif self.answer and dice.happens(Fault.RECEIVE_FAILS, 0.1):
            self.failure = refusal("InternalError", "ReceiveMessage")
        self.ended.set()

    def _ask(self) -> bool:
        try:
            self.answer = self.call()
        except sdk.ClientError as error:
            self.failure = error
        return bool(self.answer) or self.failure is not None


@define(eq=False, kw_only=True)
class UnreliablyHintedWorld(HintedWorld):
    """A world whose processes tell each other of work."""

    sqs: UnreliableSqs

    def queue(self, gate: Gate) -> SqsQueue:
        assert isinstance(gate, FaultyGate)
        # A process has random numbers of its own; those of the run would tell it what goes wrong next.
        random = Random(self.sqs.dice.random.getrandbits(64))
        return SqsQueue(
            url=URL,
            calls=AwsCalls("sqs", lambda: self.sqs, _Calls(gate), random=random),
            receives=AwsCalls("sqs", lambda: self.sqs, _Receives(self.sqs, self.nursery), random=random),
            max_message_bytes=LIMIT_BYTES,
        )


def held_by(process: Process) -> HeldMessages | None:
    """What a process holds of the queue; None: it works without hints."""
    if process.hinting is None:
        return None
    assert isinstance(process.hinting.queue, SqsWorkQueue)
    return process.hinting.queue.held


def note_death(process: Process, dice: Dice) -> None:
    """A process is gone, with whatever it had in hand."""
    held = held_by(process)
    if held is not None and held.held_count:
        dice.note(Fault.HINT_HELD, process.gate.name)
    if process.hinting is not None and process.hinting.sender._waiting:
        dice.note(Fault.HINT_UNSENT, process.gate.name)
