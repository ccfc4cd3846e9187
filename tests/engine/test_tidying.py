"""Ended executions are tidied beside the sweep: however large they are, nobody's deadline waits for them."""

from __future__ import annotations

import trio

from tests.engine.expected import Expected
from tests.engine.pipelines import BEGIN, FINISH, PARSE, batch, begin, finish, parse, program, waiting
from tests.engine.world import Process, S, World
from tpfd.core.cleanup import CLEANUP_PAGE
from tpfd.core.kinds import INTERACTION

COUNT = 25 * CLEANUP_PAGE
CALL_S = 0.2
"""What a store call takes."""
PROMPT_S = 2.0
"""A sweep is a few calls."""

LARGE = program(
    PARSE + waiting(transport="interaction-api", timeout="P1D") + FINISH,
    {"parse": parse, "finish": finish},
    name="Large",
)
ASKS = program(
    BEGIN + waiting(transport="interaction-api", timeout="PT1M") + FINISH, {"begin": begin, "finish": finish}
)


async def cancel_large(world: World, a: Process) -> str:
    """Cancels an execution of many parked items, while the store is far away."""
    large = await a.submit(batch(COUNT), pipeline="large")
    await world.until_status(large.execution_id, S.WAITING_EXTERNAL)
    a.gate.delay_s = lambda: CALL_S / 2
    await a.cancel(large.execution_id)
    return large.execution_id


def open_count(world: World) -> int:
    return sum(one.status.open for one in world.observed.rows(INTERACTION))


async def all_released(world: World) -> bool:
    return open_count(world) == 0


async def test_a_deadline_comes_on_time_while_a_large_execution_is_tidied(world: World) -> None:
    world.load(LARGE, ASKS)
    a = await world.start()
    asks = await a.submit(batch(1), pipeline="test")
    await world.until_status(asks.execution_id, S.WAITING_EXTERNAL)
    (asked,) = world.observed.rows(INTERACTION)
    deadline_s = (asked.deadline_epoch_ms - a.runtime.now()) / 1000 + trio.current_time()
    await trio.sleep(deadline_s - trio.current_time() - 4)
    large = await cancel_large(world, a)
    assert trio.current_time() < deadline_s
    await world.until_status(asks.execution_id, S.FAILED)
    assert deadline_s <= trio.current_time() <= deadline_s + PROMPT_S
    assert open_count(world) > 0, "the large one is still being released"
    await world.until(lambda: all_released(world))
    assert trio.current_time() > deadline_s + PROMPT_S
    await trio.sleep(PROMPT_S)
    assert not (await world.execution(large)).cleanup_due


async def test_a_drain_does_not_wait_for_the_tidying_and_another_process_goes_on_with_it(world: World) -> None:
    world.load(LARGE, ASKS)
    a = await world.start("a")
    large = await cancel_large(world, a)
    await trio.sleep(3)
    assert 0 < open_count(world) < COUNT
    began = trio.current_time()
    await a.drain()
    assert trio.current_time() - began <= PROMPT_S
    assert open_count(world) > COUNT / 2
    await world.start("b")
    await world.until(lambda: all_released(world), within_s=60)
    await trio.sleep(1)
    assert not (await world.execution(large)).cleanup_due


async def test_tidying_outlives_an_outage_that_readiness_shows(world: World, expected: Expected) -> None:
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    world.load(LARGE, ASKS)
    a = await world.start()
    large = await cancel_large(world, a)
    await trio.sleep(3)
    a.gate.failing = "away"
    await trio.sleep(100)
    assert "tidying: away" in a.coordinator.readiness().reasons
    assert 0 < open_count(world) < COUNT
    a.gate.failing = None
    await world.until(lambda: all_released(world), within_s=60)
    await trio.sleep(40)
    assert a.coordinator.readiness().ready
    assert not (await world.execution(large)).cleanup_due
