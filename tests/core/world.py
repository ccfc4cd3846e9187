"""One execution with a scalar and an itemised await, and everything that can happen to it, for the machine.

The pipeline: an await on one value (step 1), a stream asked of the outside (step 2), one step per item (3), an await
per item (4), and what comes behind all items (5).

Every write is checked as it happens; ``check`` looks at the whole. What an attempt does here is what the engine does,
without its tasks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.core.applier import Applier, await_terms, request
from tpfd.core import cleanup, itemised
from tpfd.core.dispatching import Opened
from tpfd.core.events import (
    Advance,
    AttemptEvent,
    CleanedUp,
    Complete,
    DeadLetterSent,
    ExecutionPolicy,
    Fail,
    Redrive,
)
from tpfd.core.execution import Refused, Transition
from tpfd.core.kinds import EXECUTION, KIND_OF, UNIT
from tpfd.core.records import (
    BlockRecord,
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    InteractionRecord,
    InteractionStatus,
    Payload,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Read

S = ExecutionStatus
SCALAR = await_terms(remind_after_ms=10_000, escalate_after_ms=20_000, escalate_to="boss")
ITEMS = await_terms(step_id="each", step_index=2, continue_index=3, suffix_stop_index=5)
INNER = await_terms(step_id="inner", step_index=4, continue_index=5, suffix_stop_index=5, timeout_ms=30_000)
END = 5
STREAM = "e1.s002"
ITEM_COUNT = 5
ASKED = [0, 1, 2, 4]
"""Item 3 was rejected on its way to the await: nobody is asked about it, and it counts all the same."""
BLOCK_SIZE = 2
"""What the machine sets blocks to, so that five items have borders."""
WAKES_UP = {S.QUEUED, S.WAIT_RETRY, S.RUNNING}


class World(Applier):
    """The store, with eyes on every write."""

    def __init__(self) -> None:
        super().__init__(ExecutionPolicy(max_retries=1, max_worker_losses=1))
        self.new(step_index=1)

    @property
    def root(self) -> ExecutionRecord:
        return self.execution("e1")

    def executions(self) -> list[ExecutionRecord]:
        return [record for record in self.records.values() if isinstance(record, ExecutionRecord)]

    def units(self) -> list[UnitRecord]:
        return [record for record in self.records.values() if isinstance(record, UnitRecord)]

    # ── what must hold for every write ──

    def write(self, record: Any) -> None:
        before = self.records.get(KIND_OF[type(record)].key_of(record))
        super().write(record)
        if isinstance(record, ExecutionRecord):
            self._execution_written(before, record)
        elif isinstance(record, InteractionRecord) and before is not None:
            assert before.status is not InteractionStatus.COMPLETED, "an admitted answer is final"
            if record.status is InteractionStatus.COMPLETED:
                assert not self.execution(record.execution_id).status.terminal
                assert not self.root.status.terminal, "nothing is admitted below an ended root"
            assert record.idempotency_key == before.idempotency_key

    def _execution_written(self, before: ExecutionRecord | None, after: ExecutionRecord) -> None:
        if before is None:
            return
        assert after.fence - before.fence in (0, 1)
        if after.fence != before.fence:
            assert after.status is S.RUNNING
        if before.status.terminal and after.status is not before.status:
            assert before.status is not S.SUCCEEDED
            assert (after.status, after.redrive_count) == (S.QUEUED, before.redrive_count + 1)
        if after.status is S.RUNNING and before.status is not S.RUNNING:
            assert after.fence == before.fence + 1, "only a claim starts a run"

    # ── what must hold between any two decisions ──

    def check(self) -> None:
        for record in self.executions():
            assert (record.lease_expires_epoch_ms is not None) == (record.status is S.RUNNING)
            if record.status in WAKES_UP:
                assert record.next_check_epoch_ms is not None, f"{record.execution_id} is forgotten"
            if record.status is S.WAITING_EXTERNAL:
                self._check_parked(record)
            if record.dead_letter_due or record.cleanup_due:
                assert record.status.terminal
                assert record.next_check_epoch_ms is not None
            if record.parent_execution_id is None:
                assert (record.ttl_epoch_s is not None) == record.status.terminal
        self._check_counts()
        released = Counter(fact.key for fact in self.facts if fact.type is FactType.RESUME_RELEASED)
        assert set(released.values()) <= {1}, "one release per unit and drive"
        if self.root.step_index == END:
            done = [child.status for child in self.children(STREAM)]
            assert done == [S.SUCCEEDED] * ITEM_COUNT
            assert [child.item_index for child in self.children(STREAM)] == list(range(ITEM_COUNT))

    def _check_parked(self, record: ExecutionRecord) -> None:
        """Something will come and move it on."""
        assert record.await_unit_id is not None
        unit = self.unit(record.await_unit_id)
        assert unit.status is UnitStatus.WAITING_EXTERNAL
        asked = [one for one in self.interactions() if one.unit_id == unit.unit_id and one.status.open]
        assert all(one.next_check_epoch_ms is not None for one in asked)
        children = [child for child in self.children(unit.unit_id) if not child.status.terminal]
        assert asked or children or unit.next_check_epoch_ms is not None, f"nothing wakes {record.execution_id} up"

    def _check_counts(self) -> None:
        done = Counter(
            (child.item_index or 0) // BLOCK_SIZE for child in self.children(STREAM) if child.status is S.SUCCEEDED
        )
        blocks = {one.block_index: one.continued_count for one in self.records.values() if isinstance(one, BlockRecord)}
        assert blocks == dict(done), "a child ends once and counts once"
        for unit in self.units():
            if unit.itemised and unit.expected_item_count is not None:
                full = [index for index, count in done.items() if count == itemised.block_size(ITEM_COUNT, index)]
                assert unit.full_block_count == len(full)

    # ── what an attempt does ──

    def attempt(self, claimed: ExecutionRecord, *, live_end: bool = False) -> bool:
        """Runs the segment of a claim to its commit; False when the fence had moved.

        Args:
            live_end: a stream whose items are all answered goes to the end without parking.
        """
        match claimed.step_index:
            case 1:
                return isinstance(self.park_scalar(claimed, SCALAR), Transition)
            case 2:
                return self._stream(claimed, live_end=live_end)
            case 3:
                return self.act(claimed, Advance(fence=claimed.fence, step_index=4, input=claimed.input))
            case 4:
                return isinstance(self.park_scalar(claimed, INNER), Transition)
            case _:
                return self.act(claimed, Complete(fence=claimed.fence, result=Payload(type_name="Out")))

    def act(self, claimed: ExecutionRecord, event: AttemptEvent) -> bool:
        return isinstance(self.commit(event, claimed.execution_id).outcome, Transition)

    def _stream(self, claimed: ExecutionRecord, *, live_end: bool) -> bool:
        unit = self.records.get(UNIT.key(claimed.tenant_id, STREAM))
        if unit is not None and unit.dispatch_complete and unit.status is not UnitStatus.COMPLETED:
            return isinstance(self.park_items(claimed, ITEM_COUNT, STREAM), Transition)
        if isinstance(self.open_stream(claimed, ITEMS), Refused):
            return False
        opened = self.open_items(claimed, ITEMS, [request(index) for index in ASKED])
        if opened.refused is not None and opened.refused.code != "unit_ended":
            return False
        if opened.refused is not None or any(item.opened is Opened.ENDED for item in opened.items):
            return self.act(claimed, _await_failed(claimed))
        if live_end and all(item.opened is Opened.ANSWERED for item in opened.items):
            return self.act(claimed, Complete(fence=claimed.fence, result=Payload(type_name="Out")))
        return isinstance(self.park_items(claimed, ITEM_COUNT, STREAM), Transition)

    # ── what the sweeper does ──

    def sweep_units(self) -> None:
        for unit in self.units():
            if unit.next_check_epoch_ms is not None and unit.next_check_epoch_ms <= self.now:
                self.continue_all(unit.unit_id)
                children: list[ExecutionRecord | None] = [*self.children(unit.unit_id)]
                if itemised.first_unfinished(children, 0) is None and len(children) == ITEM_COUNT:
                    self.release(unit.unit_id)

    def sweep_interactions(self) -> None:
        for one in self.interactions():
            if one.next_check_epoch_ms is not None and one.next_check_epoch_ms <= self.now:
                self.expire(one.item_index, one.unit_id)

    def clean_up_some(self, ended: ExecutionRecord) -> None:
        """A page of clean-up below an ended execution; with nothing left to do, its mark is taken off."""
        below = [one for one in self.interactions() if one.execution_id == ended.execution_id and one.status.open]
        children = [one for one in self.executions() if one.parent_execution_id == ended.execution_id]
        running = [one for one in children if not one.status.terminal]
        units = [one for one in self.units() if one.execution_id == ended.execution_id]
        for unit in units:
            key = UNIT.key_of(unit)
            self.transact(
                (Read(EXECUTION.key_of(ended)), Read(key)),
                lambda seen, key=key: cleanup.release_unit(seen, ended, key, self.now),  # type: ignore[misc]
            )
        page, pages = below[:2], running[:2]
        self.transact(
            cleanup.page_reads(ended, page, pages),
            lambda seen: cleanup.release_page(seen, ended, page, pages, self.now, self.policy),
        )
        if len(below) <= 2 and len(running) <= 2:
            self.commit(CleanedUp(redrive_count=ended.redrive_count), ended.execution_id)

    def tidy(self) -> None:
        for record in self.executions():
            if record.dead_letter_due:
                self.commit(DeadLetterSent(redrive_count=record.redrive_count), record.execution_id)
            while self.execution(record.execution_id).cleanup_due:
                self.clean_up_some(self.execution(record.execution_id))

    # ── a world in which all goes well from now on ──

    def settle(self) -> None:
        """Everything due is done, everything asked is answered, until the root has ended.

        Raises:
            AssertionError: it does not get there.
        """
        for _ in range(100):
            if self.root.status.terminal:
                return
            self.check()
            for record in self.executions():
                self.go_on(self.execution(record.execution_id))
            for one in self.interactions():
                if self.interaction(one.item_index, one.unit_id).status.open:
                    self.answer(one.item_index, unit=one.unit_id)
            self.sweep_units()
            self.sweep_interactions()
            self.now = max(self.now, *(self._due_at() or [self.now]))
        raise AssertionError(f"stuck: {self.root}")

    def go_on(self, record: ExecutionRecord) -> None:
        """One execution does its next thing: it is claimed, its living owner goes on, or it is answered."""
        if record.status is S.REMOTE_OUTCOME_UNKNOWN:
            event = Redrive(expected_version=record.version, reason="r", actor="a", confirmed_stopped=True)
            self.commit(event, record.execution_id)
        elif record.status is S.RUNNING and self.now < (record.next_check_epoch_ms or 0):
            self.attempt(record)
        elif record.status in WAKES_UP:
            for claimed in self.claims(record.execution_id).records:
                self.attempt(claimed)
        elif record.status is S.WAITING_EXTERNAL and record.parent_execution_id is not None:
            self.answer(0, unit=record.await_unit_id or "")

    def _due_at(self) -> list[int]:
        """The nearest time at which something wakes up, if it is still to come."""
        times = [one.next_check_epoch_ms for one in self.executions() if one.status in WAKES_UP]
        times += [unit.next_check_epoch_ms for unit in self.units()]
        return sorted(at for at in times if at is not None and at > self.now)[:1]


def _await_failed(claimed: ExecutionRecord) -> Fail:
    return Fail(
        fence=claimed.fence, code="await_failed", message="m", retryable=False, reason=TerminalReason.AWAIT_FAILED
    )
