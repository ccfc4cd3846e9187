"""The feed: every fact that fits, in order, once; and how far it has looked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.awaits.desk import Desk
from tests.engine.pipelines import BEGIN, INLINE, Line, Row, batch, begin, program, service
from tests.engine.world import TENANT
from tests.service.conftest import Seat
from tpfd.core.records import TenantId


def to_line(row: Row) -> Line:
    return Line(row.number, row.text)


PROGRAMS = [
    program(
        BEGIN + service("to_line", "Row", "Line", more=INLINE), {"begin": begin, "to_line": to_line}, name=name
    )
    for name in ("One", "Two")
]


async def followed(
    desk: Desk,
    *,
    execution_id: str | None = None,
    pipeline: str | None = None,
    tenant: TenantId = TENANT,
    limit: int = 2,
    after: int = 0,
) -> tuple[list[int], int, int]:
    """The sequence numbers that a follower sees, where it ends, and how often it had to ask."""
    seen: list[int] = []
    asked = 0
    while True:
        page = await desk.process.coordinator.feed(
            tenant, execution_id=execution_id, pipeline=pipeline, after=after, limit=limit
        )
        asked += 1
        assert len(page.facts) <= limit
        assert page.scanned_seq >= after, "it never goes back"
        assert all(after < fact.seq <= page.scanned_seq for fact in page.facts)
        seen += [fact.seq for fact in page.facts]
        if page.scanned_seq == after:
            return seen, after, asked
        after = page.scanned_seq


async def test_a_follower_sees_every_fact_once_whatever_its_filter(desk_for: Seat) -> None:
    desk = desk_for(*PROGRAMS)
    executions = [await desk.submit(batch(number), pipeline=("one", "two")[number % 2]) for number in range(10)]
    end = await desk.process.coordinator.journal_end()
    everything, last, _ = await followed(desk)
    assert everything == list(range(1, end + 1))
    assert last == end
    one, last, _ = await followed(desk, pipeline="one")
    two, _, _ = await followed(desk, pipeline="two")
    assert sorted(one + two) == everything
    assert one
    assert last == end
    single = [await followed(desk, execution_id=execution) for execution in executions]
    assert sorted(seq for seen, _, _ in single for seq in seen) == everything
    assert {last for _, last, _ in single} == {end}


@pytest.mark.parametrize("named", [{"tenant": TenantId("t2")}, {"execution_id": "01NOTHING"}])
async def test_a_filter_that_fits_nothing_is_at_the_end_at_once(desk_for: Seat, named: dict[str, Any]) -> None:
    desk = desk_for(*PROGRAMS)
    for _ in range(5):
        await desk.submit(batch(1), pipeline="one")
    end = await desk.process.coordinator.journal_end()
    assert await followed(desk, **named) == ([], end, 2)
    assert await followed(desk, **named, after=end) == ([], end, 1)


async def test_an_empty_journal_ends_before_its_first_fact(desk_for: Seat) -> None:
    desk = desk_for(*PROGRAMS)
    assert await desk.process.coordinator.journal_end() == 0
    assert await followed(desk) == ([], 0, 1)
    assert await followed(desk, execution_id="01NOTHING") == ([], 0, 1)
