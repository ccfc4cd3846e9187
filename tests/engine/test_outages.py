"""Long waits and bad days: many parked, clocks that step, a store that is away, values that pass an await by."""

from __future__ import annotations

import pytest
import trio

from tests.engine.asking import attach, so
from tests.engine.expected import Expected
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    INLINE,
    PARSE,
    Answer,
    Batch,
    Line,
    Refusal,
    Row,
    batch,
    begin,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import START_EPOCH_MS, S, SkewedClock, World
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import FactType
from tpfd.errors import StoreError, TimedOut

API = "interaction-api"
LAST = service("last", "Row", "Line", more=INLINE)


def last(row: Row) -> Line:
    return Line(row.number, row.text)


async def test_a23_what_is_parked_costs_no_task_and_no_place(world: World) -> None:
    world.load(program(BEGIN + waiting(transport=API, timeout="P7D") + FINISH, {"begin": begin, "finish": finish}))
    world.load(program(BEGIN + LAST, {"begin": begin, "last": last}, name="Quick"))
    a = await world.start(max_in_flight=10)
    await trio.sleep(1)
    before = trio.lowlevel.current_statistics().tasks_living
    parked = [await a.submit(batch(number), pipeline="test") for number in range(2_000)]
    await world.until(lambda: so(len(world.observed.rows(INTERACTION)) == 2_000))
    await trio.sleep(1)
    assert trio.lowlevel.current_statistics().tasks_living == before
    quick = [await a.submit(batch(number), pipeline="quick") for number in range(50)]
    began = trio.current_time()
    for one in quick:
        await world.until_status(one.execution_id, S.SUCCEEDED)
    assert trio.current_time() - began < 1, "none of them waits for a place that a parked one holds"
    for one in parked[:100]:
        await a.complete(f"{one.execution_id}.s001.{0:09d}", {"number": 1, "text": "x"})
    for one in parked[:100]:
        await world.until_status(one.execution_id, S.SUCCEEDED)
    await trio.sleep(1)
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a04_a_wall_clock_that_steps_back_stops_nothing_and_times_out_nothing_twice(world: World) -> None:
    async def long(row: Row) -> Line:
        await trio.sleep(400)
        return last(row)

    world.load(program(BEGIN + waiting(transport=API, timeout="PT10M") + FINISH, {"begin": begin, "finish": finish}))
    world.load(program(BEGIN + service("long", "Row", "Line"), {"begin": begin, "long": long}, name="Long"))
    world.load(program(BEGIN + LAST, {"begin": begin, "last": last}, name="Quick"))
    clock = SkewedClock()
    a = await world.start(clock=clock)
    parked = await a.submit(batch(1), pipeline="test")
    running = await a.submit(batch(1), pipeline="long")
    await world.until_status(parked.execution_id, S.WAITING_EXTERNAL)
    await world.until_status(running.execution_id, S.RUNNING)
    clock.ahead_ms = -7_200_000
    quick = await a.submit(batch(1), pipeline="quick")
    await world.until_status(quick.execution_id, S.SUCCEEDED, within_s=31)
    record = await world.until_status(running.execution_id, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (1, 0), "its lease was renewed all the time"
    await trio.sleep(660 - trio.current_time())
    assert (await world.execution(parked.execution_id)).status is S.WAITING_EXTERNAL
    clock.ahead_ms = 0
    await world.until_status(parked.execution_id, S.FAILED, within_s=31)
    facts = [fact.type for fact in await world.facts(parked.execution_id)]
    assert facts.count(FactType.INTERACTION_TIMED_OUT) == 1


async def test_a_wall_clock_that_jumps_ahead_times_out_and_goes_on(world: World) -> None:
    world.load(program(BEGIN + waiting(transport=API, timeout="PT10M") + FINISH, {"begin": begin, "finish": finish}))
    clock = SkewedClock()
    a = await world.start(clock=clock)
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    clock.ahead_ms = 700_000
    with pytest.raises(TimedOut):
        await a.complete(f"{done.execution_id}.s001.{0:09d}", {"number": 1, "text": "x"})
    assert (await world.execution(done.execution_id)).status is S.FAILED


async def test_a25_while_the_store_is_away_loops_back_off_and_readiness_says_why(
    world: World, expected: Expected
) -> None:
    world.load(program(BEGIN + LAST, {"begin": begin, "last": last}))
    a = await world.start()
    calls: list[float] = []
    query = a.runtime.store.query

    async def counted(*args: object, **named: object) -> object:
        calls.append(trio.current_time())
        return await query(*args, **named)  # type: ignore[arg-type]

    a.runtime.store.query = counted  # type: ignore[method-assign,assignment]
    await a.submit(batch(1))
    await trio.sleep(1)
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    a.gate.failing = "database or disk is full"
    with pytest.raises(StoreError, match="disk is full"):
        await a.submit(batch(2))
    await trio.sleep(600)
    late = [at for at in calls if trio.current_time() - at < 300]
    assert len(late) <= 3 * (300 / 30 + 1), "each loop looks twice a minute at most"
    reasons = a.coordinator.readiness().reasons
    assert {reason.partition(": ")[2] for reason in reasons} == {"database or disk is full"}
    assert {reason.partition(": ")[0] for reason in reasons} >= {"claim", "sweep", "tidying"}
    assert len(expected.logged("claim_failed")) <= 3, "one outage is told a few times, not thousands"
    a.gate.failing = None
    done = await a.submit(batch(3))
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=60)
    await trio.sleep(60)
    assert a.coordinator.readiness().ready
    assert len(world.observed.rows(EXECUTION)) == 2, "what was refused was not stored"


async def test_an_outage_shorter_than_the_lease_costs_an_attempt_nothing(world: World, expected: Expected) -> None:
    async def steady(row: Row) -> Line:
        await trio.sleep(30)
        return last(row)

    world.load(program(BEGIN + service("steady", "Row", "Line"), {"begin": begin, "steady": steady}))
    a = await world.start()
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.RUNNING)
    await trio.sleep(25)
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    a.gate.failing = "away"
    await trio.sleep(15)
    assert (await world.execution(done.execution_id)).status is S.RUNNING
    a.gate.failing = None
    record = await world.until_status(done.execution_id, S.SUCCEEDED, within_s=20)
    assert (record.fence, record.attempt, record.worker_losses) == (1, 0, 0)


async def test_a_value_that_an_await_does_not_take_passes_it_by(world: World) -> None:
    async def judge(batch: Batch) -> Answer | Refusal:
        return Refusal(batch.count, "no") if batch.count else Answer(0, "yes")

    def ended(decision: Answer | Refusal) -> Line:
        return Line(decision.number, decision.text if isinstance(decision, Answer) else decision.why)

    steps = service("judge", "Batch", "Decision") + waiting("appeal", "Refusal", "Answer", transport=API)
    world.load(program(steps + service("ended", "Decision", "Line", more=INLINE), {"judge": judge, "ended": ended}))
    a = await world.start()
    passed = await a.submit(batch(0))
    await world.until_status(passed.execution_id, S.SUCCEEDED)
    assert await a.result(passed.execution_id) == {"number": 0, "text": "yes"}
    asks = await a.submit(batch(1))
    await world.until_status(asks.execution_id, S.WAITING_EXTERNAL)
    await a.complete(f"{asks.execution_id}.s001.{0:09d}", {"number": 1, "text": "granted"})
    await world.until_status(asks.execution_id, S.SUCCEEDED)
    assert await a.result(asks.execution_id) == {"number": 1, "text": "granted"}


async def test_in_a_stream_too_what_an_await_does_not_take_passes_it_by(world: World) -> None:
    async def judge(batch: Batch) -> object:
        for number in range(batch.count):
            yield Refusal(number, "no") if number % 2 else Answer(number, "yes")

    def ended(answer: Answer) -> Line:
        return Line(answer.number, answer.text)

    steps = service("judge", "Batch", "Decision", "ONE_TO_MANY") + waiting("appeal", "Refusal", "Answer")
    steps += service("ended", "Answer", "Line", more=INLINE)
    world.load(program(steps, {"judge": judge, "ended": ended}, publish=True))
    a = await world.start(live_idle_ms=10_000)
    answers = {1: "granted 1"}

    def decide(envelope: dict[str, object]) -> object:
        number = envelope["requestPayload"]["number"]  # type: ignore[index]
        return {"number": number, "text": answers[number]} if number in answers else None

    await attach(world, a, step="appeal", answer=decide)
    done = await a.submit(batch(5))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await a.complete(f"{done.execution_id}.s001.{3:09d}", {"number": 3, "text": "granted 3"})
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert world.disk.lines(f"{done.execution_id}.csv") == ["0,yes", "1,granted 1", "2,yes", "3,granted 3", "4,yes"]


async def test_two_processes_over_one_store_share_the_work_and_see_each_others_ends(world: World) -> None:
    world.load(program(PARSE + LAST, {"parse": parse, "last": last}))
    a, b = await world.start("a"), await world.start("b")
    done = await a.submit(batch(3))
    record = await b.coordinator.wait_terminal("t1", done.execution_id, wait_ms=30_000)  # type: ignore[arg-type]
    assert record.status is S.SUCCEEDED
    assert record.created_epoch_ms == START_EPOCH_MS
