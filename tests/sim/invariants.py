"""What must hold at every commit. A broken one is noted and ends the run.

Nothing here knows how the engine works; each check compares a record with the one before it, or with its neighbours as
the decision left them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import trio
from attrs import define, field

from tests.engine.disk import Disk, digest
from tests.engine.observed import Write
from tests.engine.world import TENANT, Letters, Process
from tests.sim.coverage import Fault
from tests.sim.faults import StepTroubles
from tests.sim.hinted import held_by
from tests.sim.pipelines import Scenario
from tests.sim.reasons import is_explained
from tests.sim.trace import Trace
from tests.sim.watched import Applied, WatchedStore
from tpfd.core import budget
from tpfd.core.events import AttemptEvent, ExecutionPolicy, NoteFact, Release
from tpfd.core.hinting import Hint, Hinted, delay_ms
from tpfd.core.itemised import block_size
from tpfd.core.kinds import CHILD_BY_UNIT, EXECUTION, INTERACTION, INTERACTION_BY_UNIT, UNIT
from tpfd.core.records import (
    BlockRecord,
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    InteractionId,
    InteractionRecord,
    InteractionStatus,
    PermitRecord,
    PublicationState,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Decision

S = ExecutionStatus
BAD_ENDS = (S.FAILED, S.DLQ)
NOT_TAKEN_BACK = frozenset({Fault.QUEUE_AWAY, Fault.FROZEN})
"""What may keep a process from giving its hints back within the time that it has."""
NOT_TOLD = NOT_TAKEN_BACK | {Fault.HINT_REFUSED, Fault.STORE_ERROR_AFTER}
"""What may keep it from telling of work: as before, or it does not know itself."""


@define(eq=False, kw_only=True)
class Invariants:
    """Watches the store of one run.

    Attributes:
        faults: what may go wrong in this run.
        end: ends the run.
        violations: what did not hold.
    """

    store: WatchedStore
    disk: Disk
    letters: Letters
    scenarios: Mapping[str, Scenario]
    troubles: StepTroubles
    faults: frozenset[Fault]
    policy: ExecutionPolicy
    trace: Trace
    end: Callable[[str], None]
    violations: list[str] = field(factory=list)
    _owners: dict[ExecutionId, str] = field(factory=dict)
    _writers: dict[ExecutionId, str] = field(factory=dict)
    _lease_moved_s: dict[ExecutionId, float] = field(factory=dict)
    _releases: Counter[tuple[ExecutionId, str, int]] = field(factory=Counter)
    _idempotency: dict[str, InteractionId] = field(factory=dict)
    _out: dict[str, set[InteractionId]] = field(factory=dict)

    def violate(self, what: str) -> None:
        """Something that must hold does not."""
        self.violations.append(what)
        self.trace.note(f"VIOLATION: {what}")
        self.end(what)

    def _must(self, holds: bool, what: str, *about: object) -> None:
        if not holds:
            self.violate(what + "".join(f"\n    {one}" for one in about))

    # ── each decision ──

    def on_decision(self, writer: str, decision: Decision[Any], applied: list[Applied]) -> None:
        """Before it is written."""
        for one in applied:
            if isinstance(decision.result, Hinted):
                free = one.before.status in (S.QUEUED, S.WAIT_RETRY)
                self._must(free, "a hint has taken over a lease", one.event, one.before)
            if isinstance(one.event, Release):
                self._released(one.before, one.event)
            if isinstance(one.event, AttemptEvent):
                own = one.event.fence == one.before.fence
                self._must(own, "an old fence has committed", one.event, one.before)
                if isinstance(one.event, NoteFact):
                    continue
                owner = self._owners.get(one.before.execution_id)
                self._must(writer == owner, f"{writer} has committed for an attempt of {owner}", one.event, one.before)

    def on_write(self, write: Write) -> None:
        """After its whole decision was written."""
        before, after = write.before, write.after
        self.trace.note(f"{write.writer}: {write.key.kind.name} {write.key.record_id} {_state(after)}")
        if before is not None and after is not None and hasattr(after, "version"):
            self._must(after.version == before.version + 1, "the version has not risen by one", before, after)
        match before if after is None else after:
            case ExecutionRecord(execution_id=execution_id):
                self._execution(before, after, write.writer)
                self._writers[execution_id] = write.writer
            case UnitRecord():
                self._unit(before, after)
            case InteractionRecord():
                self._interaction(before, after, write.writer)
            case PermitRecord():
                self._permit(before, after)
            case BlockRecord():
                self._block(after)

    # ── work hints ──

    def on_drained(self, process: Process, hints: Collection[Hint]) -> None:
        """A process has ended in good order: it keeps no hint from others, and has told of all that it has left due.

        Args:
            hints: what the messages of the queue name, wherever they are.
        """
        held = held_by(process)
        assert held is not None
        if self.faults.isdisjoint(NOT_TAKEN_BACK):
            kept = [*held._held.values(), *held._shown.values(), *held._done.values()]
            self._must(not kept, "a drained process has kept hints", *kept)
        if self.faults.isdisjoint(NOT_TOLD):
            for record in self.store.rows(EXECUTION):
                due = delay_ms(record, 0) is not None and self._writers[record.execution_id] == process.gate.name
                told = Hint(record.tenant_id, record.execution_id) in hints
                self._must(told or not due, "a drained process has left work due and told nobody", record)

    # ── executions ──

    def _execution(self, before: ExecutionRecord | None, after: ExecutionRecord | None, writer: str) -> None:
        if after is None:
            assert before is not None
            self._must(before.status.terminal, "an execution was removed before its end", before)
            return
        if before is None:
            self._new_execution(after, writer)
            return
        if before.status.terminal:
            redriven = after.status is S.QUEUED and after.redrive_count == before.redrive_count + 1
            self._must(redriven or after.status is before.status, "a terminal status has changed", before, after)
        if after.fence != before.fence:
            self._claimed(before, after, writer)
        elif after.lease_expires_epoch_ms != before.lease_expires_epoch_ms:
            self._lease_moved_s[after.execution_id] = trio.current_time()
        if after.terminal_reason is TerminalReason.INTERNAL:
            self._must(after.execution_id in self.troubles.broken, "an execution ended INTERNAL", after)
        if after.status is S.SUCCEEDED and before.status is not S.SUCCEEDED:
            self._succeeded(after)
        if after.status in BAD_ENDS and not before.status.terminal and before.parent_execution_id is None:
            explained = is_explained(after.error_code, self.faults)
            self._must(explained, f"it failed with {after.error_code}, and nothing was done to it", after)
        if after.redrive_count == before.redrive_count:
            self._tidied(before, after)

    def _new_execution(self, after: ExecutionRecord, writer: str) -> None:
        # The child of an item that was rejected before it could be asked is done already.
        done = after.status is S.SUCCEEDED and after.unit_id is not None
        at_once = after.status is S.RUNNING  # claimed in the write that made it
        self._must(after.version == 1 and after.fence == int(at_once), "a new execution is not new", after)
        self._must(after.status is S.QUEUED or at_once or done, "a new execution does not begin QUEUED", after)
        if at_once:
            self._owners[after.execution_id] = writer
            self._lease_moved_s[after.execution_id] = trio.current_time()
        if after.parent_execution_id is not None:
            parent = self.store.get_now(EXECUTION.key(TENANT, after.parent_execution_id))
            parked = parent is not None and parent.status is S.WAITING_EXTERNAL
            own = parent is not None and parent.await_unit_id == after.unit_id
            self._must(parked and own, "a child was made although its parent is not parked on it", after, parent)

    def _claimed(self, before: ExecutionRecord, after: ExecutionRecord, writer: str) -> None:
        claimed = after.fence == before.fence + 1 and after.status is S.RUNNING
        self._must(claimed, "a fence has moved, and not by one claim", before, after)
        now_s = trio.current_time()
        if before.status is S.RUNNING and self.store.capabilities.shared_by_hosts:
            stood_s = now_s - self._lease_moved_s[after.execution_id]
            half_s = self.policy.lease_ms / 2000
            self._must(stood_s >= half_s - 0.001, f"a lease that moved {stood_s:.3f} s ago was taken over", after)
        self._owners[after.execution_id] = writer
        self._lease_moved_s[after.execution_id] = now_s

    def _released(self, before: ExecutionRecord, event: Release) -> None:
        unit_id = event.unit_id
        key = (before.execution_id, unit_id, before.redrive_count)
        self._releases[key] += 1
        self._must(self._releases[key] == 1, f"{unit_id} was released twice", before)
        unit = self.store.get_now(UNIT.key(TENANT, unit_id))
        if unit is None or not unit.itemised:
            return
        children = self.store.in_index(CHILD_BY_UNIT, unit_id)
        items = [child.item_index for child in children]
        self._must(items == list(range(unit.expected_item_count or 0)), f"released with the items {items}", unit)
        for child in children:
            self._must(child.status is S.SUCCEEDED, "released although a child has not succeeded", unit, child)

    def _succeeded(self, after: ExecutionRecord) -> None:
        if self.scenarios[after.pipeline_id].program.pipeline.output is None or after.parent_execution_id is not None:
            return
        publication = after.publication
        if publication is None or publication.state is not PublicationState.COMPLETED:
            self.violate(f"succeeded without its publication\n    {after}")
            return
        data = self.disk.objects.get(publication.object_key)
        whole = data is not None and digest(data) == publication.digest
        self._must(whole, "succeeded, but its object is missing or another", after)

    def _tidied(self, before: ExecutionRecord, after: ExecutionRecord) -> None:
        """What is said to be done after an end is done."""
        if before.dead_letter_due and not after.dead_letter_due:
            envelope_id = f"{after.execution_id}:{after.redrive_count}"
            sent = any(letter.envelope_id == envelope_id for letter in self.letters.arrived)
            self._must(sent, "a dead letter counts as sent and has not arrived", after)
        if before.cleanup_due and not after.cleanup_due:
            for unit in self.store.rows(UNIT):
                if unit.execution_id == after.execution_id:
                    self._is_closed(unit)

    def _is_closed(self, unit: UnitRecord) -> None:
        self._must(unit.status is not UnitStatus.WAITING_EXTERNAL, "cleaned up, but the unit still waits", unit)
        for interaction in self.store.in_index(INTERACTION_BY_UNIT, unit.unit_id):
            self._must(not interaction.status.open, "cleaned up, but a request is still open", interaction)
        for child in self.store.in_index(CHILD_BY_UNIT, unit.unit_id):
            self._must(child.status.terminal, "cleaned up, but a child still runs", child)

    # ── units and interactions ──

    def _unit(self, before: UnitRecord | None, after: UnitRecord | None) -> None:
        if before is None or after is None or before.status is not UnitStatus.COMPLETED:
            return
        again = after.redrive_count > before.redrive_count
        self._must(again or after.status is UnitStatus.COMPLETED, "a completed unit has changed", before, after)

    def _block(self, after: BlockRecord | None) -> None:
        if after is None:
            return
        unit = self.store.get_now(UNIT.key(TENANT, after.unit_id))
        if unit is not None and unit.expected_item_count is not None:
            size = block_size(unit.expected_item_count, after.block_index)
            self._must(after.continued_count <= size, f"a block of {size} items counts more", after)

    def _interaction(self, before: InteractionRecord | None, after: InteractionRecord | None, writer: str) -> None:
        out = self._out.setdefault(budget.scope_of(*_step(before, after)), set())
        if after is None:
            return
        if before is None:
            owner = self._owners.get(after.execution_id)
            self._must(writer == owner, f"{writer} has asked for an attempt of {owner}", after)
        else:
            self._must(before.idempotency_key == after.idempotency_key, "an idempotency key has changed", before, after)
            self._must(before.request_digest == after.request_digest, "a request has changed", before, after)
            sent_again = after.send_count > before.send_count and before.delivery is not None
            self._must(not sent_again, "a request that somebody holds was given to another", before, after)
            moved = after.deadline_epoch_ms != before.deadline_epoch_ms
            asking = self.store.get_now(EXECUTION.key(TENANT, after.execution_id))
            redriven = asking is not None and asking.redrive_count > before.redrive_count
            self._must(redriven or not moved, "a deadline has moved", before, after)
            admitted = before.status is InteractionStatus.COMPLETED
            self._must(not admitted, "an admitted completion was written again", before, after)
        first = self._idempotency.setdefault(after.idempotency_key, after.interaction_id)
        self._must(first == after.interaction_id, f"{first} has the same idempotency key", after)
        if after.status is InteractionStatus.COMPLETED:
            self._must(not self._is_over(after), "admitted below a terminal execution", after)
        if after.status.open and after.delivery is not None:
            out.add(after.interaction_id)
            self._has_permit(after, out)
        else:
            out.discard(after.interaction_id)

    def _is_over(self, interaction: InteractionRecord) -> bool:
        """Whether the execution that asks, or the one whose item it continues, has ended."""
        record = self.store.get_now(EXECUTION.key(TENANT, interaction.execution_id))
        while record is not None and not record.status.terminal and record.parent_execution_id is not None:
            record = self.store.get_now(EXECUTION.key(TENANT, record.parent_execution_id))
        return record is None or record.status.terminal

    # ── the budget ──

    def _budget(self, record: InteractionRecord) -> int | None:
        return self.scenarios[record.pipeline_id].budget(record.step_id)

    def _has_permit(self, after: InteractionRecord, out: set[InteractionId]) -> None:
        size = self._budget(after)
        if size is None:
            return
        self._must(len(out) <= size, f"{len(out)} requests are out, {size} may be", sorted(out))
        if after.permit_slot is None:
            self.violate(f"a request is out without a permit\n    {after}")
            return
        key = budget.permit_key(budget.scope_of(after.pipeline_id, after.step_id), after.permit_slot)
        permit = self.store.get_now(key)
        own = permit is not None and permit.interaction_id == after.interaction_id and permit.slot < size
        self._must(own, "a request is out under a permit that it does not hold", after, permit)

    def _permit(self, before: PermitRecord | None, after: PermitRecord | None) -> None:
        self._must(after is not None, "the row of a slot is rewritten, never removed", before)
        if before is not None:
            owner = self.store.get_now(INTERACTION.key(TENANT, before.interaction_id))
            taken = budget.is_held(before, owner) and (after is None or after.interaction_id != before.interaction_id)
            self._must(not taken, "a permit was taken from its owner", before, after)


def _state(record: Any) -> str:
    """What a line of the trace says of a record."""
    if record is None:
        return "gone"
    shown = ("status", "version", "fence")
    return " ".join(f"{name}={getattr(record, name)}" for name in shown if hasattr(record, name))


def _step(before: InteractionRecord | None, after: InteractionRecord | None) -> tuple[str, str]:
    record = after or before
    assert record is not None
    return record.pipeline_id, record.step_id
