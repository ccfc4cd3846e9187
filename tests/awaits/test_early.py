"""A09: the outside is quick: it answers inside the request call, before the asker has heard that its request is stored.

The row is written before anything is sent, so whoever was asked finds it; what it says is kept and used, also when the
asker dies in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
import trio

from tests.engine.expected import Expected
from tests.engine.gate import Gate
from tests.engine.pipelines import BEGIN, FINISH, PARSE, Functions, batch, begin, finish, parse, program, waiting
from tests.engine.world import Process, Provider, S, World
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import InteractionRecord, InteractionStatus
from tpfd.program import Program
from tpfd.transports.sockets import Socket

VIRTUAL_TIME = True

T = TypeVar("T")
FUNCTIONS: Functions = {"parse": parse, "begin": begin, "finish": finish}
STREAM = program(PARSE + waiting() + FINISH, FUNCTIONS)
SCALAR = program(BEGIN + waiting() + FINISH, FUNCTIONS)
SHAPES = pytest.mark.parametrize("subject", [STREAM, SCALAR], ids=["stream", "scalar"])


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    made = World(nursery=nursery)
    yield made
    for process in made.processes:
        process.kill()
    nursery.cancel_scope.cancel("the test is over")


def opened(world: World) -> list[InteractionRecord]:
    return world.observed.rows(INTERACTION)


async def attach(world: World, process: Process) -> Provider:
    provider = Provider(process=process, latency_s=0.0)
    await world.nursery.start(provider.run)
    return provider


@SHAPES
async def test_a09_an_answer_inside_the_request_call(
    world: World, monkeypatch: pytest.MonkeyPatch, subject: Program
) -> None:
    """The completion is on its way before the call that hands the request to the socket has come back."""
    world.load(subject)
    a = await world.start()
    push = Socket.push

    def answer_at_once(self: Socket, record: InteractionRecord, envelope: bytes) -> None:
        world.nursery.start_soon(a.complete, record.interaction_id, {"number": record.item_index, "text": "at once"})
        push(self, record, envelope)

    monkeypatch.setattr(Socket, "push", answer_at_once)
    silent = Provider(process=a, answer=lambda envelope: None)
    await world.nursery.start(silent.run)
    execution = (await a.submit(batch(5))).execution_id
    began = trio.current_time()
    await world.until_status(execution, S.SUCCEEDED)
    assert trio.current_time() - began < 1


@SHAPES
async def test_a09_an_answer_through_another_replica_before_the_asker_heard_that_its_request_is_stored(
    world: World, subject: Program
) -> None:
    world.load(subject)
    slow = Gate("a", delay_s=lambda: 2.0 if opened(world) else 0.0)
    a, b = await world.start("a", gate=slow), await world.start("b")
    provider = await attach(world, b)
    execution = (await a.submit(batch(5))).execution_id

    async def answered() -> bool:
        return any(record.status is InteractionStatus.COMPLETED for record in opened(world))

    await world.until(answered, 3)
    slow.delay_s = None
    await world.until_status(execution, S.SUCCEEDED, within_s=60)
    assert set(provider.asked.values()) == {1}


class DiesAsking(Gate):
    """Its process dies when its first question is stored, before it hears of it."""

    async def effect(self, name: str, call: Callable[[], Awaitable[T]], *, store: bool = False) -> T:
        done = await super().effect(name, call, store=store)
        if opened(self.world):
            await self.die()
        return done

    world: World


@SHAPES
async def test_a09_the_asker_dies_before_it_hears_and_the_answer_is_used_by_the_next(
    world: World, subject: Program
) -> None:
    world.load(subject)
    gate = DiesAsking("a")
    gate.world = world
    a, b = await world.start("a", gate=gate), await world.start("b")
    provider = await attach(world, b)
    execution = (await a.submit(batch(5))).execution_id

    async def answered() -> bool:
        return any(record.status is InteractionStatus.COMPLETED for record in opened(world))

    await world.until(answered, 10)
    assert gate.dead
    await world.until_status(execution, S.SUCCEEDED, within_s=600)
    assert set(provider.asked.values()) == {1}, "what was answered is not asked again"
