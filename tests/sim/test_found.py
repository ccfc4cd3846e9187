"""What the simulation has found, each as its shortest story."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
import trio

from tests.engine.observed import ObservedStore
from tests.engine.pipelines import BEGIN, FINISH, Line, Row, batch, begin, finish, program, service, waiting
from tests.engine.world import POLICY, START_EPOCH_MS, TENANT, S, SkewedClock, World
from tests.sim import clock
from tpfd.boundaries import one_pass
from tpfd.clock import TrioClock
from tpfd.core.records import ExecutionRecord
from tpfd.errors import StoreError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating

HOUR_MS = 3_600_000


def play(story: Callable[[World], Awaitable[None]], *, shared_by_hosts: bool = False) -> None:
    """Plays a story in a world of its own, on virtual time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery=nursery, store=ObservedStore(shared_by_hosts=shared_by_hosts))
            await story(world)
            for process in world.processes:
                process.kill()
            nursery.cancel_scope.cancel("the story is told")

    clock.run(1, main)


async def slow(row: Row) -> Line:
    await trio.sleep(100)
    return Line(row.number, row.text)


SLOW = program(BEGIN + service("slow", "Row", "Line"), {"begin": begin, "slow": slow})


async def two_hosts(world: World) -> tuple[ExecutionRecord, ExecutionRecord, Callable[[ExecutionRecord], Awaitable[S]]]:
    """One host runs an execution; another, whose clock is an hour ahead, may try to take it.

    Returns:
        The execution before and after the first host has claimed it, and how the other tries, told what it has seen.
    """
    world.load(SLOW)
    a, b = world.build("a"), world.build("b", clock=SkewedClock(HOUR_MS, TrioClock(START_EPOCH_MS)))
    done = await a.submit(batch(1))
    queued = await world.execution(done.execution_id)
    await world.nursery.start(a.run)
    running = await world.until_status(done.execution_id, S.RUNNING)

    async def takes(seen: ExecutionRecord) -> S:
        await b.claims._claim(world.nursery, [seen])
        now = await world.execution(seen.execution_id)
        assert now.lease_owner == "a", "a host whose clock is wrong has stolen live work"
        return now.status

    return queued, running, takes


def test_what_was_claimed_by_another_since_one_looked_is_not_taken_over() -> None:
    async def story(world: World) -> None:
        queued, _, takes = await two_hosts(world)
        assert await takes(queued) is S.RUNNING

    play(story, shared_by_hosts=True)


def test_a_lease_that_was_renewed_since_one_looked_is_not_taken_over() -> None:
    async def story(world: World) -> None:
        _, running, takes = await two_hosts(world)
        await takes(running)
        await trio.sleep(POLICY.lease_ms / 2000 + 1)
        assert await takes(running) is S.RUNNING

    play(story, shared_by_hosts=True)


def test_a_store_that_fails_while_its_pass_is_cancelled_ends_the_pass_only() -> None:
    trouble: dict[str, str] = {}
    after: list[str] = []

    async def fail_late() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise StoreError("away")

    async def several() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_late)
            nursery.start_soon(trio.sleep_forever)

    async def main() -> None:
        with trio.CancelScope(deadline=1) as scope:
            await one_pass("sweep", Repeating(get_logger("tests"), clock=time.monotonic), trouble, several)
            after.append("the pass took its cancel for a failure")
        assert scope.cancelled_caught

    clock.run(1, main)
    assert (trouble, after) == ({"sweep": "away"}, [])


def test_a_pump_that_can_deliver_nothing_does_not_spin() -> None:
    steps = BEGIN + waiting(more="maxConcurrency: 1") + FINISH

    async def story(world: World) -> None:
        world.load(program(steps, {"begin": begin, "finish": finish}))
        a = await world.start("a")
        done = await a.submit(batch(1))
        await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
        a.kill()
        b = world.build("b")
        # Nobody sweeps: the request below the ended execution stays where it is.
        await b.cancel(done.execution_id)
        with trio.move_on_after(10):
            async with b.coordinator.attach(TENANT, pipeline=None, step_ids=["ask"], credit=5) as socket:
                await socket.next_requests()
                pytest.fail("a request of an ended execution was delivered")
        assert len(b.gate.effects) < 40

    play(story)
