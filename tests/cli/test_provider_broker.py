"""The provider behind a broker: every request is answered once, whatever the broker does; none is lost at the end."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from tests.cli.provider_double import request_message
from tpfd.errors import OutsideError, TransportError
from tpfd.examples.provider.books import Tally
from tpfd.examples.provider.broker import AGAIN_S, FINISH_S, Asked, BrokerProvider
from tpfd.examples.provider.decision import Manners
from tpfd.examples.provider.log import open_log

STEP = str(request_message(1)["stepId"])


@define(eq=False)
class MemoryLine:
    """A broker in memory.

    Attributes:
        done_with: marks, in order.
        faults: why an answer is not sent, by its interaction; None: it is.
        away: what every call fails with.
    """

    waiting: deque[Asked] = field(factory=deque)
    sent: list[dict[str, Any]] = field(factory=list)
    done_with: list[object] = field(factory=list)
    faults: dict[str, str] = field(factory=dict)
    away: str | None = None
    name: str = "memory"
    reader_count: int = 2
    open: bool = False

    def ask(self, body: bytes | dict[str, Any]) -> None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.waiting.append(Asked(body, f"mark-{len(self.waiting) + len(self.done_with)}"))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self.open = True
        try:
            yield
        finally:
            self.open = False

    async def receive(self, limit: int) -> Sequence[Asked]:
        assert self.open
        await trio.sleep(0.1)
        if self.away is not None:
            raise TransportError(self.away)
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    def done(self, mark: object) -> None:
        self.done_with.append(mark)

    async def answer(self, bodies: Sequence[bytes]) -> Sequence[str | None]:
        await trio.lowlevel.checkpoint()
        if self.away is not None:
            raise TransportError(self.away)
        messages = [json.loads(body) for body in bodies]
        faults = [self.faults.get(message["interactionId"]) for message in messages]
        self.sent += [message for message, fault in zip(messages, faults, strict=True) if fault is None]
        return faults

    @property
    def answered(self) -> list[str]:
        return [message["interactionId"] for message in self.sent]


@define(eq=False)
class Run:
    line: MemoryLine
    provider: BrokerProvider
    said: list[str]
    ended: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        await self.provider.run()
        self.ended.set()

    async def stop(self) -> Tally:
        self.provider.stopping.set()
        await self.ended.wait()
        return self.provider.tally


async def provided(nursery: trio.Nursery, line: MemoryLine, places: int = 50, **manners: Any) -> Run:
    said: list[str] = []
    provider = BrokerProvider(line, STEP, places, Manners(**manners), None, random.Random(1), said.append)
    run = Run(line, provider, said)
    nursery.start_soon(run.run)
    await trio.sleep(0.01)
    return run


def name(number: int) -> str:
    return str(request_message(number)["interactionId"])


async def test_each_request_is_answered_and_then_done_with(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    line = MemoryLine()
    run = await provided(nursery, line, latency_s=2.0)
    for number in range(100):
        line.ask(request_message(number))
    await trio.sleep(1)
    assert (line.sent, line.done_with) == ([], [])
    await trio.sleep(10)
    assert sorted(line.answered) == sorted(name(number) for number in range(100))
    assert len(line.done_with) == 100
    tally = await run.stop()
    assert (tally.asked_count, tally.approved_count) == (100, 100)
    assert run.said[0] == f"listening on memory, for step {STEP}"


async def test_what_is_no_payment_of_this_step_is_passed_over_and_told(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    line = MemoryLine()
    run = await provided(nursery, line)
    for body in (b"{", b"[]", {**request_message(1), "stepId": "another"}, {**request_message(2), "inputType": "X"}):
        line.ask(body)
    line.ask(request_message(3))
    await trio.sleep(1)
    assert line.answered == [name(3)]
    assert len(line.done_with) == 5
    assert (await run.stop()).refused_count == 4
    assert sum("passed over" in one for one in run.said) == 4


async def test_an_answer_that_was_not_sent_is_sent_again_and_its_request_kept(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    line = MemoryLine(faults={name(2): "no room"})
    run = await provided(nursery, line)
    for number in range(4):
        line.ask(request_message(number))
    await trio.sleep(30)
    assert sorted(line.answered) == sorted(name(number) for number in (0, 1, 3))
    assert len(line.done_with) == 3
    line.faults.clear()
    await trio.sleep(60)
    assert (line.answered[-1], len(line.done_with)) == (name(2), 4)
    assert [one for one in run.said if "repeated" in one] == ["an answer will be repeated: no room"]
    await run.stop()


async def test_it_waits_for_a_broker_that_is_away(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    line = MemoryLine()
    run = await provided(nursery, line, latency_s=5.0)
    line.ask(request_message(1))
    await trio.sleep(1)
    line.away = "nobody there"
    line.ask(request_message(2))
    await trio.sleep(100)
    assert line.sent == []
    line.away = None
    await trio.sleep(AGAIN_S + 60)
    assert sorted(line.answered) == sorted((name(1), name(2)))
    assert sum("cannot be asked: nobody there" in one for one in run.said) == line.reader_count
    await run.stop()


async def test_a_dropped_request_is_done_with_and_a_doubled_one_answered_twice(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    dropping = MemoryLine()
    first = await provided(nursery, dropping, drop_probability=1.0)
    doubling = MemoryLine()
    second = await provided(nursery, doubling, duplicate_probability=1.0)
    for line in (dropping, doubling):
        line.ask(request_message(1))
    await trio.sleep(1)
    assert (dropping.answered, dropping.done_with) == ([], ["mark-0"])
    assert (doubling.answered, doubling.done_with) == ([name(1)] * 2, ["mark-0"])
    await first.stop()
    await second.stop()


async def test_told_to_stop_it_answers_what_it_has_and_leaves_the_rest(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    line = MemoryLine()
    run = await provided(nursery, line, places=5, latency_s=3.0)
    for number in range(20):
        line.ask(request_message(number))
    await trio.sleep(1)
    began = trio.current_time()
    await run.stop()
    assert trio.current_time() - began < FINISH_S
    assert len(line.answered) == len(line.done_with) == 5


async def test_told_to_stop_it_does_not_wait_for_ever(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    line = MemoryLine()
    run = await provided(nursery, line, latency_s=3_600.0)
    line.ask(request_message(1))
    await trio.sleep(1)
    began = trio.current_time()
    await run.stop()
    assert trio.current_time() - began == pytest.approx(FINISH_S, abs=0.1)
    assert line.done_with == []


async def test_nothing_is_answered_that_cannot_be_noted(tmp_path: Path) -> None:
    line = MemoryLine()
    async with open_log(tmp_path / "log.jsonl") as log:
        provider = BrokerProvider(line, STEP, 5, Manners(), log, random.Random(1), lambda _: None)

        async def broken(_: object) -> None:
            await trio.lowlevel.checkpoint()
            raise OutsideError("the disk is full")

        log.write = broken  # type: ignore[method-assign,assignment]
        line.ask(request_message(1))
        with pytest.raises(OutsideError, match="the disk is full"):
            await provider.run()
    assert (line.sent, line.done_with) == ([], [])
