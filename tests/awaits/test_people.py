"""Human tasks: whose they are, reminders, escalation, deadlines and what is decided then."""

from __future__ import annotations

import pytest

from tests.awaits.conftest import Seat
from tests.awaits.desk import MINUTE_MS, TIMEOUT_MS, Desk, asked
from tests.engine.pipelines import BEGIN, FINISH, PARSE, batch, begin, finish, parse, program, waiting
from tests.engine.world import S
from tpfd.core.records import FactType, InteractionStatus
from tpfd.errors import TimedOut

ASSIGNED = "assignee: ann, group: approvers, remindAfter: PT2M, escalateTo: bob, escalateAfter: PT5M"
APPROVAL = program(
    BEGIN + waiting(transport="interaction-api", settings=ASSIGNED) + FINISH, {"begin": begin, "finish": finish}
)
YES = {"number": 7, "text": "yes"}
STEP = 1


async def names(desk: Desk, **wanted: str) -> list[str]:
    return [record.interaction_id for record in await desk.pending(**wanted)]


async def test_what_waits_is_found_by_step_person_and_group(desk_for: Seat) -> None:
    desk = desk_for(APPROVAL)
    execution = await desk.submit(batch(7))
    name = [asked(execution, STEP)]
    for wanted in ({}, {"step_id": "ask"}, {"assignee": "ann"}, {"group": "approvers"}):
        assert await names(desk, **wanted) == name
    assert await names(desk, assignee="ann", group="approvers", step_id="ask") == name
    assert await names(desk, assignee="bob") == await names(desk, group="others") == []
    assert await names(desk, assignee="ann", group="others") == []
    await desk.complete(name[0], YES, actor="ann")
    for wanted in ({}, {"step_id": "ask"}, {"assignee": "ann"}, {"group": "approvers"}):
        assert await names(desk, **wanted) == []


async def test_a_reminder_goes_out_once_and_an_escalation_moves_it(desk_for: Seat) -> None:
    desk = desk_for(APPROVAL)
    execution = await desk.submit(batch(7))
    reminded, escalated = FactType.INTERACTION_REMINDED, FactType.INTERACTION_ESCALATED
    await desk.pass_time(2 * MINUTE_MS - 1)
    assert await desk.facts(execution, reminded, escalated) == []
    await desk.pass_time(1)
    assert await desk.facts(execution, reminded) == [{"assignee": "ann"}]
    await desk.pass_time(3 * MINUTE_MS - 1)
    assert await names(desk, assignee="ann") == [asked(execution, STEP)]
    await desk.pass_time(1)
    assert await names(desk, assignee="bob") == [asked(execution, STEP)]
    assert await names(desk, assignee="ann") == []
    assert await names(desk, group="approvers") == [asked(execution, STEP)]
    for _ in range(3):
        await desk.pass_time(MINUTE_MS)
    assert await desk.facts(execution, reminded) == [{"assignee": "ann"}]
    assert await desk.facts(execution, escalated) == [{"fromAssignee": "ann", "to": "bob"}]
    await desk.complete(asked(execution, STEP), YES, actor="bob")
    assert await desk.facts(execution, FactType.COMPLETION_ADMITTED) == [
        {"interactionId": asked(execution, STEP), "actor": "bob"}
    ]


async def test_a_sweep_that_comes_late_reminds_and_escalates_before_it_times_out(desk_for: Seat) -> None:
    desk = desk_for(APPROVAL)
    execution = await desk.submit(batch(7))
    await desk.pass_time(6 * MINUTE_MS)
    await desk.sweep()
    told = await desk.facts(execution, FactType.INTERACTION_REMINDED, FactType.INTERACTION_ESCALATED)
    assert told == [{"assignee": "ann"}, {"fromAssignee": "ann", "to": "bob"}]
    assert await desk.status(execution) is S.WAITING_EXTERNAL


async def test_an_answer_ends_reminders_and_escalation(desk_for: Seat) -> None:
    desk = desk_for(APPROVAL)
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, STEP), YES)
    await desk.pass_time(TIMEOUT_MS)
    assert await desk.facts(execution, FactType.INTERACTION_REMINDED, FactType.INTERACTION_ESCALATED) == []


async def test_a_redriven_task_has_all_its_time_again_and_stays_with_whom_it_was_escalated_to(desk_for: Seat) -> None:
    desk = desk_for(APPROVAL)
    execution = await desk.submit(batch(7))
    for _ in range(5):
        await desk.pass_time(2 * MINUTE_MS)
    assert await desk.status(execution) is S.FAILED
    await desk.process.redrive(await desk.execution(execution))
    await desk.work()
    assert await names(desk, assignee="bob") == [asked(execution, STEP)]
    assert (await desk.interaction(execution, STEP)).deadline_epoch_ms == desk.clock.now + TIMEOUT_MS
    await desk.pass_time(TIMEOUT_MS - 1)
    assert await desk.status(execution) is S.WAITING_EXTERNAL
    assert len(await desk.facts(execution, FactType.INTERACTION_REMINDED)) == 1


# ── onTimeout ──

DEFAULT = 'onTimeout: {complete-with: {number: 0, text: "by default"}}'


@pytest.mark.parametrize("how", ["sweep", "late-answer"])
async def test_a_scalar_await_goes_on_with_its_default(desk_for: Seat, how: str) -> None:
    ask = waiting(transport="interaction-api", settings=DEFAULT)
    desk = desk_for(program(BEGIN + ask + FINISH, {"begin": begin, "finish": finish}))
    execution = await desk.submit(batch(7))
    desk.clock.now += TIMEOUT_MS
    if how == "sweep":
        await desk.sweep()
    else:
        assert isinstance(await desk.refused(asked(execution, STEP), YES), TimedOut)
        await desk.work()
    assert await desk.result(execution) == {"number": 0, "text": "by default"}
    record = await desk.interaction(execution, STEP)
    assert (record.status, record.actor) == (InteractionStatus.COMPLETED, "timeout")
    assert len(await desk.late(execution)) == (how == "late-answer")


async def test_behind_the_default_an_answer_conflicts_and_its_equal_is_a_duplicate(desk_for: Seat) -> None:
    ask = waiting(transport="interaction-api", settings=DEFAULT)
    desk = desk_for(program(BEGIN + ask + FINISH, {"begin": begin, "finish": finish}))
    execution = await desk.submit(batch(7))
    await desk.pass_time(TIMEOUT_MS)
    assert (await desk.refused(asked(execution, STEP), YES)).code == "conflicting_completion"
    assert (await desk.complete(asked(execution, STEP), {"number": 0, "text": "by default"})).duplicate


async def test_each_item_of_a_stream_has_its_own_default(desk_for: Seat) -> None:
    ask = waiting(transport="interaction-api", settings=DEFAULT)
    desk = desk_for(program(PARSE + ask + FINISH, {"parse": parse, "finish": finish}))
    execution = await desk.submit(batch(4))
    await desk.sweep()
    for item in (1, 3):
        await desk.complete(asked(execution, STEP, item), {"number": item, "text": "answered"})
    await desk.pass_time(TIMEOUT_MS)
    assert [line["text"] for line in await desk.result(execution)] == [
        "by default",
        "answered",
        "by default",
        "answered",
    ]


LIST_DEFAULT = 'onTimeout: {complete-with: [{number: 1, text: "one"}, {number: 2, text: "two"}]}'


async def test_a_list_goes_on_with_its_default_list(desk_for: Seat) -> None:
    ask = waiting(transport="interaction-api", settings=LIST_DEFAULT, more="cardinality: ONE_TO_MANY")
    desk = desk_for(program(BEGIN + ask + FINISH, {"begin": begin, "finish": finish}))
    execution = await desk.submit(batch(7))
    await desk.pass_time(TIMEOUT_MS)
    assert [line["text"] for line in await desk.result(execution)] == ["one", "two"]
    assert (await desk.interaction(execution, STEP)).response_count == 2


async def test_one_item_without_a_default_that_times_out_fails_the_execution(desk_for: Seat) -> None:
    ask = waiting(transport="interaction-api")
    desk = desk_for(program(PARSE + ask + FINISH, {"parse": parse, "finish": finish}))
    execution = await desk.submit(batch(3))
    await desk.sweep()
    await desk.complete(asked(execution, STEP, 0), {"number": 0, "text": "answered"})
    await desk.work()
    desk.clock.now += TIMEOUT_MS
    assert isinstance(await desk.refused(asked(execution, STEP, 1), YES), TimedOut)
    assert (await desk.refused(asked(execution, STEP, 2), YES)).code == "late_completion", "all of it is over by then"
    record = await desk.execution(execution)
    assert (record.status, record.error_code) == (S.FAILED, "await_timeout")
    await desk.sweep()
    assert await names(desk) == []


