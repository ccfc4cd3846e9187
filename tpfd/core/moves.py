"""What all transitions share: their two outcomes, and how a record moves to another status."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from tpfd.core import ids
from tpfd.core.events import ExecutionPolicy
from tpfd.core.records import ExecutionRecord, ExecutionStatus, Fact, FactType, FactValue, TerminalReason

S = ExecutionStatus


@frozen
class Refused:
    """A transition that did not happen.

    Attributes:
        code: stable, snake_case: not_legal, lost_lease, not_due, stale_version, publication_prepared, not_confirmed,
            other_unit, not_allowed.
        message: for a person.
    """

    code: str
    message: str


@frozen
class Transition:
    """A transition that did: the next record and its facts."""

    record: ExecutionRecord
    facts: tuple[Fact, ...] = ()


Outcome = Transition | Refused


def fact(record: ExecutionRecord, fact_type: FactType, key: str, now_epoch_ms: int, **data: FactValue) -> Fact:
    """A fact of this execution; `key` is unique within it."""
    return Fact(
        tenant_id=record.tenant_id,
        execution_id=record.execution_id,
        pipeline_id=record.pipeline_id,
        key=key,
        type=fact_type,
        at_epoch_ms=now_epoch_ms,
        data=data,
    )


def transition_key(record: ExecutionRecord) -> str:
    """Names the attempt that this record is in."""
    return ids.transition_key(record.execution_id, record.step_index, record.redrive_count, record.fence)


def moved(
    record: ExecutionRecord, status: ExecutionStatus, now: int, due: int | None, **changes: Any
) -> ExecutionRecord:
    """The record in its next status, off its lease, to be looked at when `due`."""
    return evolve(
        record,
        status=status,
        version=record.version + 1,
        updated_epoch_ms=now,
        next_check_epoch_ms=due,
        lease_owner=record.lease_owner if status.terminal else None,
        lease_expires_epoch_ms=None,
        last_transition_key=transition_key(record),
        **changes,
    )


def ended(
    record: ExecutionRecord,
    status: ExecutionStatus,
    now: int,
    policy: ExecutionPolicy,
    *,
    reason: TerminalReason | None = None,
    code: str | None = None,
    message: str | None = None,
    **changes: Any,
) -> ExecutionRecord:
    """The record in a terminal status, with what has still to be done about it."""
    succeeded = status is S.SUCCEEDED
    is_child = record.parent_execution_id is not None
    dead_letter_due = status in (S.FAILED, S.DLQ) and not is_child
    cleanup_due = not succeeded and record.await_unit_id is not None
    ttl_ms = policy.succeeded_ttl_ms if succeeded else policy.failed_ttl_ms
    ends_at = now + ttl_ms
    return moved(
        record,
        status,
        now,
        # A child is kept and removed with its parent.
        now if dead_letter_due or cleanup_due else None if is_child else ends_at,
        terminal_reason=reason,
        error_code=None if succeeded else code,
        error_message=None if succeeded else message,
        dead_letter_due=dead_letter_due,
        cleanup_due=cleanup_due,
        ttl_epoch_s=ends_at // 1000,
        **changes,
    )


def failed(
    record: ExecutionRecord,
    status: ExecutionStatus,
    now: int,
    policy: ExecutionPolicy,
    reason: TerminalReason,
    code: str,
    message: str,
) -> Transition:
    after = ended(record, status, now, policy, reason=reason, code=code, message=message)
    key = f"run-failed-{record.redrive_count}"
    return Transition(
        after, (fact(after, FactType.RUN_FAILED, key, now, status=status, reason=reason, code=code, message=message),)
    )


def own(record: ExecutionRecord, fence: int) -> Refused | None:
    """The guard of an attempt."""
    if record.fence != fence:
        return Refused("lost_lease", f"fence {fence} was overtaken by {record.fence}")
    return None
