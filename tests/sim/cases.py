"""Recognises the edge cases of the durable fallback when they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field

from tests.engine.observed import Write
from tests.engine.world import TENANT
from tests.sim.coverage import Case, Coverage, transition
from tests.sim.watched import Applied, WatchedStore
from tpfd.core import ids
from tpfd.core.execution import Refused
from tpfd.core.kinds import CHILD_BY_UNIT, EXECUTION, INTERACTION_BY_UNIT, UNIT
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    InteractionRecord,
    InteractionStatus,
    UnitId,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Decision

S = ExecutionStatus
BAD_ENDS = (S.FAILED, S.DLQ, S.CANCELLED)


@define(eq=False)
class Cases:
    """Counts what is to be covered.

    Attributes:
        is_dead: whether a process is gone.
    """

    store: WatchedStore
    coverage: Coverage
    is_dead: Callable[[str], bool]
    _parked_by: dict[UnitId, str] = field(factory=dict)

    def on_decision(self, writer: str, decision: Decision[Any], applied: list[Applied]) -> None:
        """Before it is written."""
        for one in applied:
            self.coverage.add(transition(one.before.status, type(one.event).__name__, one.after.status))
        if isinstance(decision.result, Refused) and decision.result.code == "not_full":
            self.coverage.add(Case.TWO_RELEASES)

    def on_write(self, write: Write) -> None:
        """After its whole decision was written."""
        before, after = write.before, write.after
        if before is None or after is None:
            return
        match after:
            case UnitRecord():
                self._unit(before, after, write.writer)
            case InteractionRecord():
                self._interaction(before, after)
            case ExecutionRecord() if after.unit_id is not None:
                self._child(before, after)

    def _unit(self, before: UnitRecord, after: UnitRecord, writer: str) -> None:
        if not after.itemised:
            return
        if after.dispatch_complete and (not before.dispatch_complete or after.scanned_index < before.scanned_index):
            self._parked_by[after.unit_id] = writer
            asked = self.store.in_index(INTERACTION_BY_UNIT, after.unit_id)
            if any(one.status is InteractionStatus.COMPLETED for one in asked):
                self.coverage.add(Case.BEFORE_PARKED)
        if after.status is UnitStatus.COMPLETED and after.unit_id in self._parked_by:
            parked_by = self._parked_by[after.unit_id]
            if parked_by != writer and self.is_dead(parked_by):
                self.coverage.add(Case.RESTART)
        for item in range(before.scanned_index + 1, after.scanned_index + 1):
            child = self.store.get_now(EXECUTION.key(TENANT, ids.child_id(after.unit_id, item)))
            if child is not None and child.status is S.SUCCEEDED:
                self.coverage.add(Case.CHILD_DONE)

    def _interaction(self, before: InteractionRecord, after: InteractionRecord) -> None:
        if after.status is InteractionStatus.CANCELLED and before.status.open:
            self.coverage.add(Case.PARENT_ENDED)
        if after.status is not InteractionStatus.COMPLETED or not after.itemised:
            return
        unit = self.store.get_now(UNIT.key(TENANT, after.unit_id))
        if unit is None or not unit.dispatch_complete:
            return
        asked = self.store.in_index(INTERACTION_BY_UNIT, after.unit_id)
        children = self.store.in_index(CHILD_BY_UNIT, after.unit_id)
        last = all(one.status is InteractionStatus.COMPLETED for one in asked)
        if last and any(child.status is not S.SUCCEEDED for child in children[:-1]):
            self.coverage.add(Case.CHILD_MISSING)

    def _child(self, before: ExecutionRecord, after: ExecutionRecord) -> None:
        if before.status.terminal:
            return
        if after.status is S.SUCCEEDED and after.fence > 1 and after.worker_losses:
            self.coverage.add(Case.CHILD_MOVED)
        if after.status in BAD_ENDS and after.parent_execution_id is not None:
            parent = self.store.get_now(EXECUTION.key(TENANT, after.parent_execution_id))
            if parent is not None and parent.status is S.FAILED and parent.await_unit_id == after.unit_id:
                self.coverage.add(Case.CHILD_FAILED)
