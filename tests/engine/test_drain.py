"""Drain: intake stops at once, work gets its grace, what is left is handed back uncharged."""

from __future__ import annotations

import pytest
import trio

from tests.engine.expected import Expected
from tests.engine.pipelines import BEGIN, FINISH, Line, Row, batch, begin, finish, program, service, waiting
from tests.engine.world import S, World
from tpfd.core.kinds import INTERACTION
from tpfd.program import Program


def step_of(seconds: float) -> Program:
    async def slow(row: Row) -> Line:
        await trio.sleep(seconds)
        return Line(row.number, row.text)

    return program(BEGIN + service("slow", "Row", "Line"), {"begin": begin, "slow": slow})


async def test_what_ends_within_the_grace_is_committed(world: World) -> None:
    world.load(step_of(10))
    a = await world.start()
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.RUNNING)
    await a.drain()
    record = await world.execution(done.execution_id)
    assert (record.status, record.fence) == (S.SUCCEEDED, 1)
    assert trio.current_time() < 10.5


async def test_a21_what_does_not_end_is_handed_back_uncharged_and_taken_up_at_once(world: World) -> None:
    world.load(step_of(10))
    waits = BEGIN + waiting(transport="interaction-api") + FINISH
    world.load(program(waits, {"begin": begin, "finish": finish}, name="Waits"))
    a, b = await world.start("a"), world.build("b")
    a.grace_s = 1
    parked = await a.submit(batch(1), pipeline="waits")
    await world.until_status(parked.execution_id, S.WAITING_EXTERNAL)
    done = [await a.submit(batch(number), pipeline="test") for number in range(3)]
    for one in done:
        await world.until_status(one.execution_id, S.RUNNING)
    began = trio.current_time()
    a.draining.set()
    assert a.coordinator.readiness().reasons == ("draining",), "not ready from the first moment"
    await trio.sleep(0.01)  # a claim that is on its way may come back
    late = await a.submit(batch(9), pipeline="test")
    await a.ended.wait()
    assert 1 <= trio.current_time() - began < 1.5
    for one in done:
        record = await world.execution(one.execution_id)
        assert (record.status, record.attempt, record.worker_losses, record.fence) == (S.QUEUED, 0, 0, 1)
    assert (await world.execution(late.execution_id)).fence == 0, "nothing is claimed after the signal"
    assert (await world.execution(parked.execution_id)).status is S.WAITING_EXTERNAL
    await world.nursery.start(b.run)
    await trio.sleep(0.1)
    assert {one.execution_id for one in (*done, late)} == set(b.running())
    for one in (*done, late):
        record = await world.until_status(one.execution_id, S.SUCCEEDED)
        assert (record.attempt, record.worker_losses) == (0, 0)


async def test_an_empty_process_drains_at_once(world: World) -> None:
    world.load(step_of(1))
    a = await world.start()
    began = trio.current_time()
    await a.drain()
    assert trio.current_time() == began


async def test_a22_a_step_that_swallows_the_drain_has_its_result_refused(world: World) -> None:
    deaf_once = [True]

    async def deaf(row: Row) -> Line:
        if not deaf_once:
            return Line(row.number, "fresh")
        deaf_once.clear()
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        return Line(row.number, "deaf")

    world.load(program(BEGIN + service("deaf", "Row", "Line"), {"begin": begin, "deaf": deaf}))
    a, b = await world.start("a"), world.build("b")
    a.grace_s = 1
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.RUNNING)
    await a.drain()
    assert trio.current_time() >= 60
    record = await world.execution(done.execution_id)
    assert (record.status, record.attempt) == (S.QUEUED, 0)
    await world.nursery.start(b.run)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert await b.result(done.execution_id) == {"number": 1, "text": "fresh"}


async def test_a_store_that_is_away_at_a_drain_costs_a_lease_and_nothing_else(world: World, expected: Expected) -> None:
    world.load(step_of(10))
    a, b = await world.start("a"), world.build("b")
    a.grace_s = 1
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.RUNNING)
    a.gate.failing = "cut off"
    expected.error("hand_back_failed", "claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    await a.drain()
    assert (await world.execution(done.execution_id)).status is S.RUNNING
    await world.nursery.start(b.run)
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (2, 1)


async def test_a_long_poll_ends_with_the_drain(world: World) -> None:
    world.load(step_of(10))
    a = await world.start()
    done = await a.submit(batch(1))
    seen: list[S] = []

    async def poll() -> None:
        record = await a.coordinator.wait_terminal("t1", done.execution_id, wait_ms=60_000)  # type: ignore[arg-type]
        seen.append(record.status)

    world.nursery.start_soon(poll)
    await trio.sleep(1)
    a.draining.set()
    await trio.sleep(1.1)
    assert seen == [S.RUNNING]


async def test_an_attempt_that_parks_while_it_drains_stays_parked(world: World) -> None:
    async def pause(row: Row) -> Row:
        await trio.sleep(5)
        return row

    steps = BEGIN + service("pause", "Row", "Row") + waiting(transport="interaction-api") + FINISH
    world.load(program(steps, {"begin": begin, "pause": pause, "finish": finish}))
    a, b = await world.start("a"), await world.start("b", programs={})
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.RUNNING)
    await a.drain()
    assert (await world.execution(done.execution_id)).status is S.WAITING_EXTERNAL
    assert [one.status.open for one in world.observed.rows(INTERACTION)] == [True]
    assert b.running() == []


@pytest.mark.parametrize("moment_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6])
async def test_a_drain_at_any_moment_of_claim_and_commit_leaves_nothing_leased(world: World, moment_s: float) -> None:
    world.load(step_of(0.1))
    a = await world.start()
    a.gate.delay_s = lambda: 0.05
    done = await a.submit(batch(1))
    await trio.sleep(moment_s)
    a.grace_s = 0.0
    await a.drain()
    record = await world.execution(done.execution_id)
    assert record.status in {S.QUEUED, S.SUCCEEDED}
    assert (record.attempt, record.worker_losses) == (0, 0)
