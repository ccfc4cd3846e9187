"""Re-drives: what is reopened, what is kept, and what an operator is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
from attrs import evolve

from tests.engine.asking import attach, lines, only, so, whole
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    PARSE,
    Answer,
    Line,
    Row,
    batch,
    begin,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import TENANT, Envelope, S, World, echo
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import ExecutionRecord, FactType, InteractionStatus, TerminalReason
from tpfd.engine.tidying import Tidying
from tpfd.errors import Conflict, MalformedError, NonRetryableError


def mendable() -> tuple[trio.Event, Callable[[Row], Awaitable[Line]]]:
    """A step that is refused until it is mended."""
    mended = trio.Event()

    async def step(row: Row) -> Line:
        if not mended.is_set():
            raise NonRetryableError("not today", code="not_today")
        return Line(row.number, row.text)

    return mended, step


async def test_a_failed_execution_runs_again_under_its_id_from_where_it_stood(world: World) -> None:
    began: list[str] = []
    mended = trio.Event()

    async def first(row: Row) -> Row:
        began.append("first")
        return row

    async def second(answer: Answer) -> Line:
        if not mended.is_set():
            raise NonRetryableError("not today", code="not_today")
        return finish(answer)

    steps = BEGIN + service("first", "Row", "Row") + waiting(transport="interaction-api")
    steps += service("second", "Answer", "Line")
    world.load(program(steps, {"begin": begin, "first": first, "second": second}))
    a = await world.start()
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    (interaction,) = world.observed.rows(INTERACTION)
    await a.complete(interaction.interaction_id, {"number": 1, "text": "yes"})
    failed = await world.until_status(done.execution_id, S.FAILED)
    await trio.sleep(1)
    mended.set()
    queued = await a.redrive(await world.execution(done.execution_id))
    assert (queued.status, queued.redrive_count, queued.attempt, queued.error_code) == (S.QUEUED, 1, 0, None)
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert record.fence == failed.fence + 1
    assert began == ["first"], "what was done before the await is not done again"
    assert len(world.observed.rows(INTERACTION)) == 1
    assert await a.result(done.execution_id) == {"number": 1, "text": "yes"}


async def test_a_dead_letter_can_be_driven_again_and_may_end_in_a_second_letter(world: World) -> None:
    async def broken(row: Row) -> Line:
        raise ValueError("down")

    world.load(program(BEGIN + service("broken", "Row", "Line"), {"begin": begin, "broken": broken}))
    a = await world.start()
    done = await a.submit(batch(1))
    for drive in range(3):
        await world.until_status(done.execution_id, S.DLQ)
        await world.until(lambda: so(len(world.letters.arrived) == drive + 1))  # noqa: B023
        await trio.sleep(0.1)
        if drive < 2:
            await a.redrive(await world.execution(done.execution_id), allow_failed=False)
    assert [letter.envelope_id for letter in world.letters.arrived] == [f"{done.execution_id}:{n}" for n in range(3)]


async def test_what_an_operator_is_refused(world: World) -> None:
    mended, step = mendable()
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}))
    a = await world.start()
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.FAILED)
    await trio.sleep(1)
    failed = await world.execution(done.execution_id)
    with pytest.raises(Conflict, match="allowFailed"):
        await a.redrive(failed, allow_failed=False)
    with pytest.raises(Conflict, match=f"it is at version {failed.version}, not {failed.version - 1}"):
        await a.redrive(evolve(failed, version=failed.version - 1))
    mended.set()
    await a.redrive(failed)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    with pytest.raises(Conflict, match="SUCCEEDED"):
        await a.redrive(await world.execution(done.execution_id))
    with pytest.raises(Conflict, match="SUCCEEDED"):
        await a.cancel(done.execution_id)


async def test_of_a_stream_only_what_has_no_answer_is_asked_again_with_all_its_time(world: World) -> None:
    mended = trio.Event()
    asked: Counter[int] = Counter()

    def answer(envelope: Envelope) -> object:
        number = envelope["requestPayload"]["number"]
        asked[number] += 1
        return echo(envelope) if mended.is_set() or number not in {2, 5} else None

    steps = PARSE + waiting(timeout="PT1M") + FINISH
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start()
    await attach(world, a, answer=answer)
    done = await a.submit(batch(8))
    failed = await world.until_status(done.execution_id, S.FAILED)
    assert failed.terminal_reason is TerminalReason.AWAIT_TIMEOUT
    await trio.sleep(5)
    mended.set()
    began = a.runtime.now()
    await a.redrive(await world.execution(done.execution_id))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(8)
    assert asked == {**dict.fromkeys(range(8), 1), 2: 2, 5: 2}
    again = [one for one in world.observed.rows(INTERACTION) if one.redrive_count == 1]
    assert sorted(one.item_index for one in again) == [2, 5]
    assert all(one.deadline_epoch_ms >= began + 60_000 for one in again)


async def test_a_re_drive_that_comes_before_the_clean_up_finds_the_same_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = PARSE + waiting(timeout="PT1M") + FINISH
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start()
    provider = await attach(world, a, answer=only(0, 1, 3))
    done = await a.submit(batch(5))
    await world.until_status(done.execution_id, S.RUNNING)
    await trio.sleep(1)
    monkeypatch.setattr(Tidying, "work_on", _nobody_cleans_up_yet)
    await world.until_status(done.execution_id, S.FAILED)
    provider.answer = echo
    await a.redrive(await world.execution(done.execution_id))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(5)
    assert [one.status for one in world.observed.rows(INTERACTION)] == [InteractionStatus.COMPLETED] * 5


async def _nobody_cleans_up_yet(tidying: Tidying, record: ExecutionRecord) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("transport", ["websocket", "interaction-api"])
async def test_of_a_parked_stream_answers_and_finished_children_are_kept(world: World, transport: str) -> None:
    mended = trio.Event()
    runs: Counter[int] = Counter()

    async def behind(answer: Answer) -> Line:
        runs[answer.number] += 1
        if answer.number == 3 and not mended.is_set():
            raise NonRetryableError("not three", code="not_three")
        return finish(answer)

    steps = PARSE + waiting(transport=transport, timeout="PT10M") + service("behind", "Answer", "Line")
    world.load(program(steps, {"parse": parse, "behind": behind}, publish=True))
    a = await world.start(live_idle_ms=5_000)
    done = await a.submit(batch(6))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)

    async def answer(number: int) -> None:
        payload = {"number": number, "text": f"ok row-{number}"}
        await a.complete(f"{done.execution_id}.s001.{number:09d}", payload)

    for number in (0, 1, 3):
        await answer(number)
    failed = await world.until_status(done.execution_id, S.FAILED)
    assert (failed.terminal_reason, failed.error_code) == (TerminalReason.AWAIT_FAILED, "not_three")
    assert "item 3" in (failed.error_message or "")
    await trio.sleep(5)
    mended.set()
    await a.redrive(await world.execution(done.execution_id))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await trio.sleep(5)
    for number in (2, 4, 5):
        await answer(number)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert world.disk.lines(f"{done.execution_id}.csv") == whole(6)
    assert runs == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1}


async def test_a_child_is_not_driven_on_its_own(world: World) -> None:
    async def refuse(answer: Answer) -> Line:
        raise NonRetryableError("no")

    steps = PARSE + waiting(transport="interaction-api") + service("refuse", "Answer", "Line")
    world.load(program(steps, {"parse": parse, "refuse": refuse}))
    a = await world.start()
    done = await a.submit(batch(2))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await a.complete(f"{done.execution_id}.s001.{0:09d}", {"number": 0, "text": ""})
    await world.until_status(done.execution_id, S.FAILED)
    (child,) = [one for one in world.observed.rows(EXECUTION) if one.parent_execution_id]
    assert child.status is S.FAILED
    with pytest.raises(Conflict, match=done.execution_id):
        await a.redrive(child)
    await trio.sleep(100)
    assert len(world.letters.arrived) == 1, "a child has no letter of its own"


async def test_many_are_driven_again_by_a_filter_after_a_look(world: World) -> None:
    mended, step = mendable()
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}))
    a = await world.start()
    done = [await a.submit(batch(number)) for number in range(30)]
    for one in done:
        await world.until_status(one.execution_id, S.FAILED)
    await trio.sleep(1)

    async def bulk(**changes: object) -> int:
        asked = {"status": "FAILED", "pipeline": None, "error_code": "not_today", "reason": "mended", "limit": 25}
        named = {**asked, "dry_run": False, "cursor": None, "actor": "ops", **changes}
        report = await a.coordinator.redrive_many(TENANT, **named)  # type: ignore[arg-type]
        return len(report.execution_ids)

    assert await bulk(dry_run=True) == 25
    assert await bulk(error_code="something_else") == 0
    mended.set()
    assert await bulk() == 25
    await trio.sleep(1)
    assert await bulk() == 5
    for one in done:
        record = await world.until_status(one.execution_id, S.SUCCEEDED)
        assert record.redrive_count == 1
    with pytest.raises(MalformedError, match="in bulk"):
        await bulk(status="REMOTE_OUTCOME_UNKNOWN")
    facts = await world.facts(done[0].execution_id)
    (redriven,) = [fact for fact in facts if fact.type is FactType.RUN_REDRIVEN]
    assert (redriven.data["actor"], redriven.data["reason"]) == ("ops", "mended")


async def test_a_publication_that_met_another_object_goes_on_when_that_was_moved_away(world: World) -> None:
    world.load(program(PARSE + waiting() + FINISH, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start()
    provider = await attach(world, a)
    done = await a.submit(batch(5))
    key = f"{done.execution_id}.csv"
    world.disk.objects[key] = b"somebody else's"
    failed = await world.until_status(done.execution_id, S.FAILED)
    assert failed.error_code == "output_exists"
    assert world.disk.objects[key] == b"somebody else's"
    await trio.sleep(1)
    del world.disk.objects[key]
    await a.redrive(await world.execution(done.execution_id))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(5)
    assert set(provider.asked.values()) == {1}
