"""What must be true of every store after every fault: one function, over all that was ever written and what is left.

The log of writes is replayed decision by decision, so that each is judged by what stood in the store at its moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from attrs import define, field

from tests.engine.disk import Disk, digest
from tests.engine.observed import ObservedStore, Write
from tpfd.core.budget import permit_key, scope_of
from tpfd.core.deadletter import DeadLetter
from tpfd.core.kinds import EXECUTION, INTERACTION, PERMIT, UNIT
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    InteractionRecord,
    InteractionStatus,
    PublicationState,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Key

S = ExecutionStatus
RESUMABLE = (S.QUEUED, S.WAIT_RETRY, S.RUNNING, S.WAITING_EXTERNAL)  # the last: released and claimed in one write


@define
class Promises:
    """What clients were told with a 2xx answer."""

    submitted: list[str] = field(factory=list)
    completed: dict[str, str] = field(factory=dict)  # interaction id -> canonical answer
    cancelled: list[str] = field(factory=list)
    redriven: dict[str, int] = field(factory=dict)  # execution id -> number of re-drives
    removed: bool = False  # its time is over: records may be gone


def check_invariants(
    store: ObservedStore, disk: Disk, letters: Sequence[DeadLetter], promises: Promises
) -> list[str]:
    """Every violation, as a sentence that begins with the number of the invariant; none when all is well."""
    replay = _Replay()
    for _, writes in groupby(store.writes, key=lambda write: write.decision):
        replay.decision(list(writes))
    return [
        *replay.found,
        *_kept(store, promises),
        *_reachable(store),
        *_clean(store),
        *_objects(store, disk),
        *_told(store, letters),
    ]


@define
class _Replay:
    """Judges each decision when it was made."""

    found: list[str] = field(factory=list)
    _state: dict[Key[Any], Any] = field(factory=dict)
    _releases: Counter[tuple[str, str | None, int]] = field(factory=Counter)

    def decision(self, writes: list[Write]) -> None:
        for write in writes:
            self._versions(write)
            match write.before, write.after:
                case ExecutionRecord() as before, ExecutionRecord() as after:
                    self._execution(write.writer, before, after)
                case InteractionRecord() as before, InteractionRecord() as after:
                    self._interaction(before, after)
        for write in writes:
            if write.after is None:
                self._state.pop(write.key, None)
            else:
                self._state[write.key] = write.after

    def _say(self, number: int, what: str) -> None:
        self.found.append(f"{number}: {what}")

    def _versions(self, write: Write) -> None:
        if write.before != self._state.get(write.key):
            self._say(2, f"{write.key.record_id} was written over something that nobody had written")
        if write.after is None or not hasattr(write.after, "version"):
            return
        before = 0 if write.before is None else write.before.version
        if write.after.version != before + 1:
            self._say(2, f"{write.key.record_id} went from version {before} to {write.after.version}")

    def _execution(self, writer: str, before: ExecutionRecord, after: ExecutionRecord) -> None:
        name = after.execution_id
        claimed = after.status is S.RUNNING and before.status in RESUMABLE and after.fence == before.fence + 1
        if after.fence != before.fence and not claimed:
            self._say(2, f"the fence of {name} moved from {before.fence} to {after.fence} without a claim")
        if before.status is S.RUNNING and not claimed and writer != before.lease_owner:
            by_others = after.status is S.CANCELLED or after.terminal_reason is TerminalReason.WORKER_LOST
            if not by_others:
                self._say(2, f"{writer} moved {name} to {after.status}, which {before.lease_owner} held")
        redriven = after.status is S.QUEUED and after.redrive_count == before.redrive_count + 1
        if before.status.terminal and after.status is not before.status and not redriven:
            self._say(3, f"{name} left {before.status} for {after.status}")
        if before.status is S.WAITING_EXTERNAL and after.status in (S.QUEUED, S.RUNNING):
            self._release(before, after)

    def _release(self, before: ExecutionRecord, after: ExecutionRecord) -> None:
        self._releases[before.execution_id, before.await_unit_id, before.redrive_count] += 1
        if self._releases[before.execution_id, before.await_unit_id, before.redrive_count] > 1:
            self._say(3, f"{before.execution_id} was released twice from {before.await_unit_id}")
        unit = self._state.get(UNIT.key(before.tenant_id, before.await_unit_id or ""))
        if not isinstance(unit, UnitRecord):
            self._say(3, f"{before.execution_id} was released from nothing")
        elif unit.itemised:
            children = [one for one in self._records(ExecutionRecord) if one.unit_id == unit.unit_id]
            done = sorted(one.item_index or 0 for one in children if one.status is S.SUCCEEDED)
            if done != list(range(unit.expected_item_count or 0)) or len(children) != len(done):
                self._say(4, f"{before.execution_id} was released with {done} of {unit.expected_item_count} items")

    def _interaction(self, before: InteractionRecord, after: InteractionRecord) -> None:
        if before.status is InteractionStatus.COMPLETED:
            self._say(3, f"{after.interaction_id} was written after its answer was admitted")
        if after.status is not InteractionStatus.COMPLETED:
            return
        owner = self._state.get(EXECUTION.key(after.tenant_id, after.execution_id))
        above = None if owner is None or owner.parent_execution_id is None else owner.parent_execution_id
        parent = None if above is None else self._state.get(EXECUTION.key(after.tenant_id, above))
        for one in (owner, parent):
            if one is not None and one.status.terminal:
                self._say(5, f"an answer to {after.interaction_id} was admitted although {one.execution_id} had ended")

    def _records(self, kind: type[ExecutionRecord]) -> Iterator[ExecutionRecord]:
        return (one for one in self._state.values() if isinstance(one, kind))


def _kept(store: ObservedStore, promises: Promises) -> Iterator[str]:
    """7: what was answered is true."""
    if promises.removed:
        return
    executions: dict[str, ExecutionRecord] = {one.execution_id: one for one in store.rows(EXECUTION)}
    interactions: dict[str, InteractionRecord] = {one.interaction_id: one for one in store.rows(INTERACTION)}
    for name in promises.submitted:
        if name not in executions:
            yield f"7: {name} was accepted and is gone"
    for name, answer in promises.completed.items():
        interaction = interactions.get(name)
        if interaction is None or interaction.response != answer:
            yield f"7: the answer to {name} was accepted and is not there"
    for name in promises.cancelled:
        if executions[name].status is not S.CANCELLED:
            yield f"7: {name} was cancelled and is {executions[name].status}"
    for name, count in promises.redriven.items():
        if executions[name].redrive_count < count:
            yield f"7: {name} was re-driven and does not know"


def _reachable(store: ObservedStore) -> Iterator[str]:
    """1: whatever has not ended is found by a claim, a sweep or an answer."""
    units = {one.unit_id: one for one in store.rows(UNIT)}
    open_units = {one.unit_id for one in store.rows(INTERACTION) if one.status.open and one.next_check_epoch_ms}
    open_units |= {one.unit_id for one in store.rows(EXECUTION) if one.unit_id and not one.status.terminal}
    for record in store.rows(EXECUTION):
        if record.status.terminal or record.status is S.REMOTE_OUTCOME_UNKNOWN:
            continue
        if record.status is not S.WAITING_EXTERNAL:
            if record.next_check_epoch_ms is None:
                yield f"1: {record.execution_id} is {record.status} and never looked at"
            continue
        unit = units.get(record.await_unit_id) if record.await_unit_id else None
        if unit is None or (unit.next_check_epoch_ms is None and unit.unit_id not in open_units):
            yield f"1: {record.execution_id} waits for {record.await_unit_id}, where nothing is left to happen"


def _clean(store: ObservedStore) -> Iterator[str]:
    """5: nothing is open below what has ended, and no slot of a budget is held for nothing."""
    executions = {one.execution_id: one for one in store.rows(EXECUTION)}
    for interaction in store.rows(INTERACTION):
        owner = executions.get(interaction.execution_id)
        if interaction.status.open and (owner is None or owner.status.terminal):
            yield f"5: {interaction.interaction_id} is open below an ended execution"
    for unit in store.rows(UNIT):
        owner = executions.get(unit.execution_id)
        if unit.status is UnitStatus.WAITING_EXTERNAL and (owner is None or owner.status.terminal):
            yield f"5: {unit.unit_id} waits below an ended execution"
    for record in executions.values():
        parent = executions.get(record.parent_execution_id) if record.parent_execution_id else None
        orphaned = record.parent_execution_id is not None and (parent is None or parent.status.terminal)
        if orphaned and not record.status.terminal:
            yield f"5: {record.execution_id} is {record.status} although its parent has ended"
        if record.cleanup_due or record.dead_letter_due:
            yield f"5: something is left to do about {record.execution_id}"
    given = {PERMIT.key_of(permit): permit.interaction_id for permit in store.rows(PERMIT)}
    for one in store.rows(INTERACTION):
        if one.status.open and one.permit_slot is not None:
            slot = permit_key(scope_of(one.pipeline_id, one.step_id), one.permit_slot)
            if given.get(slot) != one.interaction_id:
                yield f"5: {one.interaction_id} believes in slot {one.permit_slot}, which is not its own"


def _objects(store: ObservedStore, disk: Disk) -> Iterator[str]:
    """6: an output object is whole or absent and the one that was committed."""
    promised: dict[str, tuple[str, str]] = {}
    for record in store.rows(EXECUTION):
        publication = record.publication
        if publication is not None:
            promised[publication.object_key] = (record.execution_id, publication.digest)
        if record.status is not S.SUCCEEDED or publication is None:
            continue
        data = disk.objects.get(publication.object_key)
        if publication.state is not PublicationState.COMPLETED or data is None or digest(data) != publication.digest:
            yield f"6: the output of {record.execution_id} is not the one that was committed"
        if any(record.execution_id in name for name in disk.temporaries):
            yield f"6: {record.execution_id} has ended and left a temporary behind"
    for key, data in disk.objects.items():
        if promised.get(key, ("", ""))[1] != digest(data) and store.rows(EXECUTION):
            yield f"6: nobody has promised the object at {key}"
    for key, count in Counter(placed.key for placed in disk.placed).items():
        if count > 1:
            yield f"3: {key} was put in place {count} times"


def _told(store: ObservedStore, letters: Sequence[DeadLetter]) -> Iterator[str]:
    """Part of 1: nobody ends badly without a word."""
    sent = {letter.envelope_id for letter in letters}
    for record in store.rows(EXECUTION):
        badly = record.status in (S.FAILED, S.DLQ) and record.parent_execution_id is None
        if badly and f"{record.execution_id}:{record.redrive_count}" not in sent:
            yield f"1: no dead letter tells of {record.execution_id}"


