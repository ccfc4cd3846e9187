"""Work on parked itemised units: children for what was answered, release when all are done."""

from __future__ import annotations

import functools

from attrs import define

from tpfd.core import itemised
from tpfd.core.execution import Transition
from tpfd.core.kinds import CHILD_BY_UNIT, EXECUTION, UNIT
from tpfd.core.records import UnitRecord
from tpfd.core.transact import Read
from tpfd.ops.logs import get_logger
from tpfd.payloads import PAGE_COUNT
from tpfd.runtime import Runtime

log = get_logger("tpfd.continuations")

SCAN_PAGES = 16
"""Pages of a unit's items looked at in one sweep: what else is due must not wait for a unit of a million."""


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
            more = await self.runtime.store.transact(
                itemised.continue_reads(unit),
                functools.partial(itemised.continue_items, unit_key=key, seen=unit, now=self.runtime.now()),
            )
            self.runtime.bells.work.ring()
            current = await self.runtime.store.get(key)
            if current is None or not more:
                return
            scanned_all = current.scanned_index + 1 >= (current.expected_item_count or 0)
            if scanned_all and itemised.is_full(current):
                await self._release(current)
                return
            unit = current
        self.runtime.bells.sweep.ring()

    async def _release(self, unit: UnitRecord) -> None:
        missing = await self._first_unfinished(unit)
        if missing is not None:
            # The counts said full, the rows say otherwise. The rows decide; the unit stays parked and visible.
            log.error("unit_not_releasable", unit_id=unit.unit_id, item_index=missing)
            return
        runtime = self.runtime
        program = runtime.programs.get(unit.pipeline_id)
        if program is None:
            # Another process that has loaded the pipeline finds it due, too.
            log.warning("pipeline_not_loaded", pipeline=unit.pipeline_id, unit_id=unit.unit_id)
            return
        outcome = await runtime.store.transact(
            (Read(UNIT.key_of(unit)), Read(EXECUTION.key(unit.tenant_id, unit.execution_id))),
            functools.partial(
                itemised.release,
                unit_key=UNIT.key_of(unit),
                output_type=program.type_at(unit.suffix_stop_index),
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
        """The first item without a SUCCEEDED child, read in item order, page by page."""
        expected = unit.expected_item_count or 0
        cursor: str | None = None
        seen = 0
        while True:
            page = await self.runtime.store.query(CHILD_BY_UNIT, unit.unit_id, limit=PAGE_COUNT, cursor=cursor)
            for child in page.records:
                if child.item_index != seen:
                    return seen
                seen += 1
            if (unfinished := itemised.first_unfinished(page.records, seen - len(page.records))) is not None:
                return unfinished
            cursor = page.cursor
            if cursor is None:
                return None if seen == expected else seen
