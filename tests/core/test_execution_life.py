"""Counting runs and lost workers, ends and what is kept: executions over more than one transition."""

from __future__ import annotations

import pytest
from attrs import evolve, fields_dict

from tests.core.applier import POLICY, START
from tests.core.test_execution_table import AFTER_LEASE, FAIL, FENCE, NEXT, PREPARED, REDRIVE, UNIT, record, step
from tpfd.core.events import (
    Break,
    Claim,
    Complete,
    Fail,
    PreparePublication,
)
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    TerminalReason,
)

S = ExecutionStatus
R = TerminalReason


def test_max_retries_means_so_many_runs_after_the_first() -> None:
    """`max-retries: 3` means four runs."""
    runs = 0
    now = START
    current = record(S.QUEUED, attempt=0)
    while not current.status.terminal:
        current = step(current, Claim(owner="w"), now).record
        runs += 1
        current = step(current, evolve(FAIL, fence=current.fence), now).record
        now = current.next_check_epoch_ms or now
    assert (runs, current.status) == (4, S.DLQ)


def test_a06_every_death_counts_until_the_worker_killer_is_parked() -> None:
    now = START
    current = step(record(S.QUEUED, worker_losses=0), Claim(owner="w"), now).record
    claims = 1
    while current.status is S.RUNNING:
        now = current.next_check_epoch_ms or 0
        current = step(current, Claim(owner="w"), now).record
        claims += current.status is S.RUNNING
    assert (claims, current.status, current.terminal_reason) == (6, S.DLQ, R.WORKER_LOST)
    assert "step 1" in (current.error_message or "")


def test_a26_recovery_looks_at_the_lease_and_never_at_the_owner() -> None:
    same_name = step(record(S.RUNNING, lease_owner="pod-0"), Claim(owner="pod-0"), AFTER_LEASE).record
    assert (same_name.fence, same_name.worker_losses) == (FENCE + 1, 2)


@pytest.mark.parametrize("status", [S.FAILED, S.DLQ])
def test_a_child_sends_no_dead_letter_and_is_removed_with_its_parent(status: ExecutionStatus) -> None:
    event = Fail(fence=FENCE, code="x", message="m", retryable=status is S.DLQ)
    child = record(
        S.RUNNING, attempt=3, await_unit_id=None, parent_execution_id=ExecutionId("e0"), unit_id=UNIT, item_index=0
    )
    after = step(child, event).record
    assert after.status is status
    assert (after.dead_letter_due, after.next_check_epoch_ms) == (False, None)


def test_the_end_says_how_long_it_is_kept() -> None:
    done = step(record(S.RUNNING), Complete(fence=FENCE, result=NEXT)).record
    dead = step(record(S.RUNNING), Break(fence=FENCE, message="m")).record
    assert done.ttl_epoch_s == (START + POLICY.succeeded_ttl_ms) // 1000
    assert dead.ttl_epoch_s == (START + POLICY.failed_ttl_ms) // 1000


def test_two_publications_of_one_attempt_are_two_facts() -> None:
    """Under `onExisting: version` an attempt prepares again when its first key was taken meanwhile."""
    first = step(record(S.RUNNING), PreparePublication(fence=FENCE, publication=PREPARED))
    again = evolve(PREPARED, object_key="out-2.csv")
    second = step(first.record, PreparePublication(fence=FENCE, publication=again))
    assert first.facts[0].key != second.facts[0].key


def test_a_redrive_keeps_what_was_done() -> None:
    before = record(S.DLQ, publication=PREPARED, input=NEXT)
    after = step(before, REDRIVE).record
    kept = ["execution_id", "step_index", "input", "publication", "await_unit_id", "fence", "created_epoch_ms"]
    assert {name: getattr(after, name) for name in kept} == {name: getattr(before, name) for name in kept}
    assert set(kept) <= set(fields_dict(ExecutionRecord))
