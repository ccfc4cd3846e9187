"""Bulk re-drives: slices that end in time, each execution once, nothing that the filter does not mean."""

from __future__ import annotations

import pytest

from tests.awaits.desk import Desk
from tests.engine.pipelines import BEGIN, INLINE, Line, Row, batch, begin, program, service
from tests.engine.world import TENANT, S
from tests.service.conftest import Seat
from tpfd.core.records import FactType
from tpfd.errors import MalformedError, NonRetryableError
from tpfd.http.service import RedriveReport, SubmitItem, Submitted
from tpfd.service import coordinator

broken = True


def work(row: Row) -> Line:
    if broken:
        raise NonRetryableError("no", code="odd" if row.number % 2 else "even")
    return Line(row.number, row.text)


FAILING = program(BEGIN + service("work", "Row", "Line", more=INLINE), {"begin": begin, "work": work})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "REDRIVE_PAUSE_S", 0.0)
    monkeypatch.setattr("tests.service.test_bulk_redrive.broken", True)


async def failed(desk: Desk, count: int) -> list[str]:
    items = [SubmitItem(input=batch(number), key=None, pipeline=None) for number in range(count)]
    submitted = await desk.process.coordinator.submit_many(TENANT, items, trace_parent=None)
    await desk.work()
    return [one.execution_id for one in submitted if isinstance(one, Submitted)]


async def redrive(
    desk: Desk,
    *,
    limit: int = 200,
    cursor: str | None = None,
    error_code: str | None = None,
    dry_run: bool = False,
    status: str = "FAILED",
) -> RedriveReport:
    return await desk.process.coordinator.redrive_many(
        TENANT,
        status=status,
        pipeline=None,
        error_code=error_code,
        reason="mended",
        limit=limit,
        cursor=cursor,
        dry_run=dry_run,
        actor="ops",
    )


async def all_slices(desk: Desk, limit: int, *, error_code: str | None = None, dry_run: bool = False) -> list[str]:
    done: list[str] = []
    cursor: str | None = None
    while True:
        report = await redrive(desk, limit=limit, cursor=cursor, error_code=error_code, dry_run=dry_run)
        assert len(report.execution_ids) <= limit
        done += report.execution_ids
        cursor = report.cursor
        if cursor is None:
            return done


@pytest.mark.parametrize("limit", [1, 7, 100, 200])
async def test_slices_of_any_size_redrive_each_once(desk_for: Seat, limit: int) -> None:
    desk = desk_for(FAILING)
    executions = await failed(desk, 25)
    assert await desk.status(executions[0]) is S.FAILED
    done = await all_slices(desk, limit)
    assert sorted(done) == sorted(executions)
    assert {await desk.status(one) for one in executions} == {S.QUEUED}
    assert {(await desk.execution(one)).redrive_count for one in executions} == {1}
    assert [fact["actor"] for fact in await desk.facts(executions[0], FactType.RUN_REDRIVEN)] == ["ops"]


async def test_those_that_fail_again_at_once_are_not_redriven_twice(desk_for: Seat) -> None:
    desk = desk_for(FAILING)
    executions = await failed(desk, 25)
    cursor, slices = None, 0
    while True:
        report = await redrive(desk, limit=10, cursor=cursor)
        await desk.work()
        slices += 1
        if (cursor := report.cursor) is None:
            break
    assert slices == 3
    assert {(await desk.execution(one)).redrive_count for one in executions} == {1}


async def test_a_dry_run_counts_and_changes_nothing(desk_for: Seat) -> None:
    desk = desk_for(FAILING)
    executions = await failed(desk, 25)
    before = [await desk.execution(one) for one in executions]
    assert len(await all_slices(desk, 10, dry_run=True)) == 25
    assert len(await all_slices(desk, 10, error_code="odd", dry_run=True)) == 12
    assert [await desk.execution(one) for one in executions] == before


async def test_an_error_code_that_fits_few_does_not_make_a_slice_endless(
    desk_for: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "BULK_PAGES", 2)
    monkeypatch.setattr(coordinator, "BULK_PAGE_COUNT", 5)
    desk = desk_for(FAILING)
    executions = await failed(desk, 25)
    report = await redrive(desk, error_code="nothing")
    assert report.execution_ids == ()
    assert report.cursor is not None, "ten were looked at, and it says where to go on"
    odd = await all_slices(desk, 200, error_code="odd")
    assert sorted(odd) == sorted(executions[1::2])


async def test_what_was_mended_runs_to_its_end(desk_for: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_for(FAILING)
    executions = await failed(desk, 5)
    monkeypatch.setattr("tests.service.test_bulk_redrive.broken", False)
    await all_slices(desk, 200)
    await desk.work()
    assert {await desk.status(one) for one in executions} == {S.SUCCEEDED}


async def test_one_that_was_redriven_in_bulk_can_be_cancelled_for_good(desk_for: Seat) -> None:
    desk = desk_for(FAILING)
    (execution,) = await failed(desk, 1)
    await all_slices(desk, 200)
    await desk.process.cancel(execution)
    await desk.work()
    assert await desk.status(execution) is S.CANCELLED
    assert await all_slices(desk, 200) == []


@pytest.mark.parametrize("status", ["REMOTE_OUTCOME_UNKNOWN", "CANCELLED", "RUNNING", "nonsense"])
async def test_only_what_failed_for_sure_is_redriven_in_bulk(desk_for: Seat, status: str) -> None:
    with pytest.raises(MalformedError):
        await redrive(desk_for(FAILING), status=status)


async def test_a_cursor_that_is_not_ours_is_refused(desk_for: Seat) -> None:
    desk = desk_for(FAILING)
    for cursor in ("x", "9:", "0:nonsense", "-1:"):
        with pytest.raises(MalformedError):
            await redrive(desk, cursor=cursor)
