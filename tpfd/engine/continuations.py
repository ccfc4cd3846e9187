"""Work on parked itemised units: children for what was answered, release when all are done."""

from __future__ import annotations

import functools

import trio
from attrs import define

from tpfd.core import itemised
from tpfd.core.contracts import runs_here
from tpfd.core.execution import Transition
from tpfd.core.kinds import CHILD_BY_UNIT, EXECUTION, UNIT
from tpfd.core.records import ExecutionRecord, UnitRecord
from tpfd.core.transact import Read
from tpfd.ops.logs import get_logger
from tpfd.payloads import PAGE_COUNT
from tpfd.runtime import Runtime

log = get_logger("tpfd.continuations")

SCAN_PAGES = 16
"""Pages of a unit's items looked at in one sweep: what else is due must not wait for a unit of a million."""

PAGES_AT_ONCE = 4
"""Pages of children read at once before a release: a child may carry a result of some 64 KiB."""


@define(eq=False, kw_only=True)
class Continuations:
    """Moves parked units on."""

    runtime: Runtime

    async def work_on(self, unit: UnitRecord) -> None:
        """Does what is due for a unit: the scan behind `scanned_index`, then the release if the counts are full.

        A unit of many pages stays due, so that the next sweep goes on with it.

        Raises:
            StoreError: doing it again is harmless.
        """
        key = UNIT.key_of(unit)
        for _ in range(SCAN_PAGES):
            current = await self.runtime.store.transact(
                itemised.continue_reads(unit),
                functools.partial(itemised.continue_items, unit_key=key, seen=unit, now=self.runtime.now()),
            )
            self.runtime.bells.work.ring()
            if current is None:
                return
            if itemised.is_scanned(current) and itemised.is_full(current):
                await self._release(current)
                return
            unit = current
        self.runtime.bells.sweep.ring()

    async def _release(self, unit: UnitRecord) -> None:
        runtime = self.runtime
        parent = await runtime.store.get(EXECUTION.key(unit.tenant_id, unit.execution_id))
        if parent is None:
            return
        if not runs_here(parent, runtime.contracts):
            # Another process that has loaded its contract finds it due, too.
            runtime.held.tell(parent, runtime.contracts)
            return
        missing = await self._first_unfinished(unit)
        if missing is not None:
            # The counts said full, the rows say otherwise. The rows decide; the unit stays parked and visible.
            log.error("unit_not_releasable", unit_id=unit.unit_id, item_index=missing)
            return
        outcome = await runtime.store.transact(
            (Read(UNIT.key_of(unit)), Read(EXECUTION.key(unit.tenant_id, unit.execution_id))),
            functools.partial(
                itemised.release,
                unit_key=UNIT.key_of(unit),
                output_type=runtime.program(unit.pipeline_id).type_at(unit.suffix_stop_index),
                now=runtime.now(),
                policy=runtime.policy,
            ),
        )
        if isinstance(outcome, Transition):
            step = (unit.pipeline_id, unit.step_id)
            runtime.metrics.resumes_released.add(*step)
            runtime.metrics.units_terminal.add(*step, "COMPLETED")
            runtime.metrics.unit_duration_s.observe((runtime.now() - unit.created_epoch_ms) / 1000, *step)
            runtime.announce(outcome.record)

    async def _first_unfinished(self, unit: UnitRecord) -> int | None:
        """The first item without a SUCCEEDED child; several pages are read at once."""
        expected = unit.expected_item_count or 0
        found: list[int] = []
        for begin in range(0, expected, PAGES_AT_ONCE * PAGE_COUNT):
            async with trio.open_nursery() as pages:
                for first in range(begin, min(expected, begin + PAGES_AT_ONCE * PAGE_COUNT), PAGE_COUNT):
                    pages.start_soon(self._look, unit, range(first, min(expected, first + PAGE_COUNT)), found)
            if found:
                return min(found)
        return None

    async def _look(self, unit: UnitRecord, items: range, found: list[int]) -> None:
        """Adds the first of some items that has no SUCCEEDED child."""
        children: dict[int, ExecutionRecord] = {}
        cursor: str | None = None
        while True:
            page = await self.runtime.store.query(
                CHILD_BY_UNIT, unit.unit_id, limit=len(items), cursor=cursor, first=items[0], last=items[-1]
            )
            children.update((child.item_index, child) for child in page.records if child.item_index is not None)
            if (cursor := page.cursor) is None:
                break
        unfinished = itemised.first_unfinished([children.get(item_index) for item_index in items], items[0])
        if unfinished is not None:
            found.append(unfinished)
