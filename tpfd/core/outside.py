"""Transitions that others than the owner decide: the unit it waits for, operators, clean-up.

The handlers have the same shape as those of ``tpfd.core.attempt``.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tpfd.core import moves
from tpfd.core.events import Cancel, CleanedUp, DeadLetterSent, ExecutionPolicy, Redrive, Release, UnitEnded
from tpfd.core.moves import Outcome, Refused, Transition
from tpfd.core.records import ExecutionRecord, ExecutionStatus, FactType, TerminalReason

S = ExecutionStatus


def release(record: ExecutionRecord, event: Release, now: int, policy: ExecutionPolicy) -> Outcome:
    if record.await_unit_id != event.unit_id:
        return Refused("other_unit", f"it waits for {record.await_unit_id}")
    after = moves.moved(record, S.QUEUED, now, now, step_index=event.step_index, input=event.input)
    key = f"released-{event.unit_id}-{record.redrive_count}"
    return Transition(after, (moves.fact(after, FactType.RESUME_RELEASED, key, now, unitId=event.unit_id),))


def unit_ended(record: ExecutionRecord, event: UnitEnded, now: int, policy: ExecutionPolicy) -> Outcome:
    if record.await_unit_id != event.unit_id:
        return Refused("other_unit", f"it waits for {record.await_unit_id}")
    return moves.failed(record, S.FAILED, now, policy, event.reason, event.code, event.message)


def cancel(record: ExecutionRecord, event: Cancel, now: int, policy: ExecutionPolicy) -> Outcome:
    if record.publication is not None:
        return Refused("publication_prepared", "its output is being put in place; it can no longer be cancelled")
    message = f"cancelled by {event.actor}: {event.reason}"
    after = moves.ended(
        record, S.CANCELLED, now, policy, reason=TerminalReason.CANCELLED, code="cancelled", message=message
    )
    key = f"cancelled-{record.redrive_count}"
    return Transition(
        after, (moves.fact(after, FactType.RUN_CANCELLED, key, now, actor=event.actor, reason=event.reason),)
    )


def redrive(record: ExecutionRecord, event: Redrive, now: int, policy: ExecutionPolicy) -> Outcome:
    if event.expected_version != record.version:
        return Refused("stale_version", f"it is at version {record.version}, not {event.expected_version}")
    if record.parent_execution_id is not None and record.status.terminal:
        return Refused("not_allowed", f"it continues an item of {record.parent_execution_id}; re-drive that one")
    if record.ttl_epoch_s is not None and record.ttl_epoch_s * 1000 <= now:
        # Part of what it was told may be gone already: it would ask again what was answered.
        return Refused("not_allowed", "its time is over and it is being removed; submit it anew")
    if record.status is S.FAILED and not event.allow_failed:
        return Refused("not_allowed", "it FAILED for good; re-drive it with allowFailed if that was mended")
    if record.status is S.REMOTE_OUTCOME_UNKNOWN and not event.confirmed_stopped:
        return Refused("not_confirmed", "its remote call may still run; state with confirmedStopped that it does not")
    after = moves.moved(
        record,
        S.QUEUED,
        now,
        now,
        attempt=0,
        worker_losses=0,
        deferred_count=0,
        deferred_since_epoch_ms=None,
        redrive_count=record.redrive_count + 1,
        error_code=None,
        error_message=None,
        terminal_reason=None,
        dead_letter_due=False,
        cleanup_due=False,
        ttl_epoch_s=None,
    )
    redriven = moves.fact(
        after,
        FactType.RUN_REDRIVEN,
        f"redriven-{after.redrive_count}",
        now,
        actor=event.actor,
        reason=event.reason,
        fromStatus=record.status,
    )
    return Transition(after, (redriven,))


# ── clean-up after the end ───────────────────────────────────────────────────────────────────────────────────────────


def _after_end(record: ExecutionRecord, now: int, **changes: Any) -> ExecutionRecord:
    after = evolve(record, version=record.version + 1, updated_epoch_ms=now, **changes)
    if after.dead_letter_due or after.cleanup_due:
        return evolve(after, next_check_epoch_ms=now)
    is_child = after.parent_execution_id is not None
    return evolve(
        after, next_check_epoch_ms=None if is_child or after.ttl_epoch_s is None else after.ttl_epoch_s * 1000
    )


def dead_letter_sent(record: ExecutionRecord, event: DeadLetterSent, now: int, policy: ExecutionPolicy) -> Outcome:
    if not record.dead_letter_due:
        return Refused("not_legal", "its dead letter was sent already")
    if event.redrive_count != record.redrive_count:
        return Refused("stale_version", "it was re-driven since and has another dead letter to send")
    after = _after_end(record, now, dead_letter_due=False)
    return Transition(
        after, (moves.fact(after, FactType.DEAD_LETTER_SENT, f"dead-letter-{record.redrive_count}", now),)
    )


def cleaned_up(record: ExecutionRecord, event: CleanedUp, now: int, policy: ExecutionPolicy) -> Outcome:
    if not record.cleanup_due:
        return Refused("not_legal", "it is cleaned up already")
    if event.redrive_count != record.redrive_count:
        return Refused("stale_version", "it was re-driven since and has to be cleaned up again")
    return Transition(_after_end(record, now, cleanup_due=False))
