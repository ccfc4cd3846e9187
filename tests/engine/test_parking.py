"""Parked streams: demotion, children, release, and what was rejected or waits a second time."""


from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import trio

from tests.engine.asking import LIVE, asked, attach, lines, only, so, whole
from tests.engine.expected import Expected
from tests.engine.pipelines import (
    FINISH,
    PARSE,
    Answer,
    Line,
    Row,
    batch,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import Envelope, S, World, echo
from tpfd.core.kinds import EXECUTION, INTERACTION, UNIT
from tpfd.core.records import FactType, TerminalReason, UnitStatus
from tpfd.errors import NonRetryableError
from tpfd.steps import StepContext


async def test_the_last_step_may_be_the_await(world: World) -> None:
    steps = PARSE + waiting(output_type="Line")
    world.load(program(steps, {"parse": parse}, publish=True))
    a = await world.start(live_idle_ms=60_000)
    gate = trio.Event()

    def half(envelope: Envelope) -> object:
        return echo(envelope) if gate.is_set() or envelope["requestPayload"]["number"] < 5 else None

    await attach(world, a, answer=half)
    done = await a.submit(batch(10))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    assert world.disk.placed == [], "a session that is parked publishes nothing of what came so far"
    gate.set()
    for number in range(5, 10):
        await a.complete(f"{done.execution_id}.s001.{number:09d}", {"number": number, "text": f"ok row-{number}"})
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert world.disk.lines(f"{done.execution_id}.csv") == whole(10)


@pytest.mark.parametrize("publish", [True, False])
async def test_a_quiet_session_is_parked_and_goes_on_in_children_in_item_order(world: World, publish: bool) -> None:
    world.load(program(PARSE + waiting() + FINISH, {"parse": parse, "finish": finish}, publish=publish))
    a = await world.start(live_idle_ms=60_000)
    provider = await attach(world, a, answer=only(0, 1, 2))
    done = await a.submit(batch(8))
    parked = await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    assert parked.await_unit_id == f"{done.execution_id}.s001"
    assert a.running() == []
    await trio.sleep(5)
    children = [one for one in world.observed.rows(EXECUTION) if one.parent_execution_id is not None]
    assert [one.item_index for one in children] == [0, 1, 2]
    assert {one.status for one in children} == {S.SUCCEEDED}
    for number in reversed(range(3, 8)):
        await trio.sleep(1)
        await a.complete(f"{done.execution_id}.s001.{number:09d}", {"number": number, "text": f"ok row-{number}"})
    await world.until_status(done.execution_id, S.SUCCEEDED)
    if publish:
        assert world.disk.lines(f"{done.execution_id}.csv") == whole(8)
    else:
        assert [line["number"] for line in await a.result(done.execution_id)] == list(range(8))
    kinds = [fact.type for fact in await world.facts(done.execution_id)]
    assert kinds.count(FactType.DISPATCH_COMPLETED) == kinds.count(FactType.RESUME_RELEASED) == 1
    assert kinds.count(FactType.CONTINUATION_CREATED) == 8
    assert set(provider.asked.values()) == {1}
    assert world.observed.slots_held() == []


@pytest.mark.parametrize("seed", range(6))
async def test_answers_that_race_with_the_parking_are_neither_lost_nor_doubled(world: World, seed: int) -> None:
    world.load(LIVE)
    random = Random(seed)
    a = await world.start("a", live_idle_ms=1_000)
    b = await world.start("b")
    for process in (a, b):
        process.gate.delay_s = lambda: random.random() * 0.05
    ran = Counter[int]()
    done = await a.submit(batch(25))
    await world.until(lambda: so(asked(world) == 8))
    names = [f"{done.execution_id}.s001.{number:09d}" for number in range(25)]

    async def answer(number: int) -> None:
        await trio.sleep(0.9 + random.random() * 0.3)
        while True:
            found = [one for one in world.observed.rows(INTERACTION) if one.interaction_id == names[number]]
            if found:
                break
            await trio.sleep(0.05)
        await random.choice((a, b)).complete(names[number], {"number": number, "text": f"ok row-{number}"})
        ran[number] += 1

    async with trio.open_nursery() as nursery:
        for number in range(25):
            nursery.start_soon(answer, number)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(25)


async def test_a_rejected_item_before_or_behind_the_await_does_not_hold_up_a_parked_unit(world: World) -> None:
    async def before(row: Row) -> Row:
        if row.number in {1, 7}:
            raise NonRetryableError("not this one", code="no")
        return row

    async def behind(answer: Answer) -> Line:
        if answer.number in {2, 5}:
            raise NonRetryableError("nor this", code="no")
        return finish(answer)

    recover = "recoverOnFailure: true"
    steps = PARSE + service("before", "Row", "Row", more=recover) + waiting()
    steps += service("behind", "Answer", "Line", more=recover)
    world.load(program(steps, {"parse": parse, "before": before, "behind": behind}, publish=True))
    a = await world.start(live_idle_ms=10_000)
    await attach(world, a, answer=only(0, 2, 6))
    done = await a.submit(batch(8))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await trio.sleep(5)
    for number in (3, 4, 5):
        await a.complete(f"{done.execution_id}.s002.{number:09d}", {"number": number, "text": f"ok row-{number}"})
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert world.disk.lines(f"{done.execution_id}.csv") == [f"{number},ok row-{number}" for number in (0, 3, 4, 6)]
    assert {reject.idempotency_key for reject in a.rejects.rejects} == {
        f"t1:{done.execution_id}:{step}" for step in ("before:1", "before:7", "behind:2", "behind:5")
    }


async def test_a_piece_of_work_has_one_name_in_its_stream_and_in_a_child(world: World) -> None:
    seen: dict[int, set[tuple[str, int | None]]] = {}

    async def pay(answer: Answer, context: StepContext) -> Line:
        seen.setdefault(answer.number, set()).add((context.idempotency_key, context.item_index))
        return finish(answer)

    steps = PARSE + waiting() + service("pay", "Answer", "Line")
    world.load(program(steps, {"parse": parse, "pay": pay}, publish=True))
    a = await world.start(live_idle_ms=10_000)
    await attach(world, a, answer=only(0, 1))
    done = await a.submit(batch(3))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await a.complete(f"{done.execution_id}.s001.{2:09d}", {"number": 2, "text": ""})
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert seen == {number: {(f"t1:{done.execution_id}:pay:{number}", number)} for number in range(3)}


async def test_parked_items_can_wait_a_second_time_each_on_its_own(world: World, expected: Expected) -> None:
    steps = (
        PARSE
        + waiting("ask", "Row", "Answer")
        + waiting("confirm", "Answer", "Line", transport="interaction-api")
    )
    world.load(program(steps, {"parse": parse}, publish=True))
    a = await world.start()
    await attach(world, a)
    done = await a.submit(batch(5))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)

    def open_confirmations() -> list[str]:
        rows = world.observed.rows(INTERACTION)
        return [one.interaction_id for one in rows if one.step_id == "confirm" and one.status.open]

    await world.until(lambda: so(len(open_confirmations()) == 5))
    for number, name in enumerate(open_confirmations()):
        await a.complete(name, {"number": number, "text": "confirmed"})
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert world.disk.lines(f"{done.execution_id}.csv") == [f"{number},confirmed" for number in range(5)]


async def test_a_confirmation_that_times_out_in_one_item_fails_the_whole_and_cleans_up(world: World) -> None:
    steps = (
        PARSE
        + waiting("ask", "Row", "Answer")
        + waiting("confirm", "Answer", "Line", transport="interaction-api", timeout="PT1M")
    )
    world.load(program(steps, {"parse": parse}, publish=True))
    a = await world.start()
    await attach(world, a)
    done = await a.submit(batch(5))
    record = await world.until_status(done.execution_id, S.FAILED)
    assert record.terminal_reason is TerminalReason.AWAIT_FAILED
    await trio.sleep(40)
    assert [one.interaction_id for one in world.observed.rows(INTERACTION) if one.status.open] == []
    assert {one.status for one in world.observed.rows(EXECUTION)} <= {S.FAILED, S.CANCELLED}
    assert [unit.unit_id for unit in world.observed.rows(UNIT) if unit.status is UnitStatus.WAITING_EXTERNAL] == []
