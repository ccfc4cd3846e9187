"""Transitions of an attempt: claim, lease, and what the owner of a fence commits.

Every handler has one shape, ``(record, event, now, policy) -> Transition | Refused``, and is pure. The table of
``tpfd.core.execution`` says when one may run; a handler checks what a table cannot: the fence and times.
"""

from __future__ import annotations

from attrs import evolve

from tpfd.core import moves
from tpfd.core.events import (
    Advance,
    Break,
    Claim,
    Complete,
    Defer,
    ExecutionPolicy,
    Fail,
    HandBack,
    LoseOutcome,
    NoteFact,
    OpenUnit,
    PreparePublication,
    Renew,
    Suspend,
)
from tpfd.core.moves import Outcome, Refused, Transition
from tpfd.core.records import ExecutionRecord, ExecutionStatus, Fact, FactType, PublicationState, TerminalReason

S = ExecutionStatus


# ── claims and leases ────────────────────────────────────────────────────────────────────────────────────────────────


def claim_due(record: ExecutionRecord, event: Claim, now: int, policy: ExecutionPolicy) -> Outcome:
    if record.next_check_epoch_ms is None or record.next_check_epoch_ms > now:
        return Refused("not_due", "it is not due yet")
    if event.unit_ended is not None:
        return moves.failed(
            record, S.FAILED, now, policy, event.unit_ended, event.unit_ended.value, "its await ended before it went on"
        )
    return _start(record, event, now, policy)


def claim_expired(record: ExecutionRecord, event: Claim, now: int, policy: ExecutionPolicy) -> Outcome:
    expires = record.lease_expires_epoch_ms or 0
    if now < expires + policy.skew_ms or not event.witnessed:
        return Refused("not_due", "its lease has not run out")
    losses = record.worker_losses + 1
    lost = moves.fact(
        record,
        FactType.LEASE_TAKEN_OVER,
        f"lease-lost-{record.fence}",
        now,
        owner=record.lease_owner,
        fence=record.fence,
        workerLosses=losses,
        stepIndex=record.step_index,
    )
    if losses > policy.max_worker_losses:
        message = f"{losses} workers were lost while they ran step {record.step_index}"
        dead = moves.failed(
            evolve(record, worker_losses=losses), S.DLQ, now, policy, TerminalReason.WORKER_LOST, "worker_lost", message
        )
        return Transition(dead.record, (lost, *dead.facts))
    started = _start(evolve(record, worker_losses=losses), event, now, policy)
    return Transition(started.record, (lost, *started.facts))


def _start(record: ExecutionRecord, event: Claim, now: int, policy: ExecutionPolicy) -> Transition:
    fence = record.fence + 1
    expires = now + policy.lease_ms
    after = evolve(
        record,
        status=S.RUNNING,
        version=record.version + 1,
        fence=fence,
        lease_owner=event.owner,
        lease_expires_epoch_ms=expires,
        next_check_epoch_ms=expires + policy.skew_ms,
        updated_epoch_ms=now,
    )
    after = evolve(after, last_transition_key=moves.transition_key(after))
    started = moves.fact(
        after,
        FactType.SEGMENT_ATTEMPT_STARTED,
        f"attempt-{fence}",
        now,
        owner=event.owner,
        fence=fence,
        stepIndex=after.step_index,
        attempt=after.attempt,
    )
    return Transition(after, (started,))


def renew(record: ExecutionRecord, event: Renew, now: int, policy: ExecutionPolicy) -> Outcome:
    expires = now + policy.lease_ms
    return moves.own(record, event.fence) or Transition(
        evolve(
            record,
            version=record.version + 1,
            lease_expires_epoch_ms=expires,
            next_check_epoch_ms=expires + policy.skew_ms,
            updated_epoch_ms=now,
        )
    )


# ── what an attempt commits ──────────────────────────────────────────────────────────────────────────────────────────


def complete(record: ExecutionRecord, event: Complete, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    publication = record.publication
    facts: list[Fact] = []
    if event.published:
        if publication is None:
            return Refused("not_legal", "nothing was prepared for publication")
        publication = evolve(publication, state=PublicationState.COMPLETED)
        facts.append(
            moves.fact(
                record,
                FactType.PUBLICATION_COMPLETED,
                f"published-{record.redrive_count}",
                now,
                objectKey=publication.object_key,
                digest=publication.digest,
                itemCount=publication.item_count,
            )
        )
    after = moves.ended(record, S.SUCCEEDED, now, policy, result=event.result, publication=publication)
    completed = moves.fact(
        after, FactType.SEGMENT_COMPLETED, f"segment-{record.fence}", now, stepIndex=record.step_index
    )
    succeeded = moves.fact(after, FactType.RUN_SUCCEEDED, f"run-succeeded-{record.redrive_count}", now)
    return Transition(after, (*facts, completed, succeeded))


def advance(record: ExecutionRecord, event: Advance, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    after = moves.moved(
        record,
        S.QUEUED,
        now,
        now,
        step_index=event.step_index,
        input=event.input,
        attempt=0,
        worker_losses=0,
        deferred_count=0,
        deferred_since_epoch_ms=None,
    )
    return Transition(
        after,
        (moves.fact(after, FactType.SEGMENT_COMPLETED, f"segment-{record.fence}", now, stepIndex=event.step_index),),
    )


def open_unit(record: ExecutionRecord, event: OpenUnit, now: int, policy: ExecutionPolicy) -> Outcome:
    return moves.own(record, event.fence) or Transition(
        evolve(record, version=record.version + 1, updated_epoch_ms=now, await_unit_id=event.unit_id)
    )


def suspend(record: ExecutionRecord, event: Suspend, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    after = moves.moved(
        record,
        S.WAITING_EXTERNAL,
        now,
        None,
        await_unit_id=event.unit_id,
        step_index=event.step_index,
        input=event.input,
        attempt=0,
        worker_losses=0,
        deferred_count=0,
        deferred_since_epoch_ms=None,
    )
    key = f"suspended-{record.fence}"
    return Transition(after, (moves.fact(after, FactType.SEGMENT_SUSPENDED, key, now, unitId=event.unit_id),))


def prepare(record: ExecutionRecord, event: PreparePublication, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    publication = event.publication
    after = evolve(record, version=record.version + 1, updated_epoch_ms=now, publication=publication)
    prepared = moves.fact(
        after,
        FactType.PUBLICATION_PREPARED,
        # One attempt may prepare again under the next version of the key.
        f"prepared-{after.version}",
        now,
        objectKey=publication.object_key,
        digest=publication.digest,
        sizeBytes=publication.size_bytes,
        itemCount=publication.item_count,
    )
    return Transition(after, (prepared,))


def note(record: ExecutionRecord, event: NoteFact, now: int, policy: ExecutionPolicy) -> Outcome:
    """A fact about progress inside an attempt; the record stays as it is."""
    return moves.own(record, event.fence) or Transition(
        record, (moves.fact(record, event.type, f"{event.key}-{record.fence}", now, **event.data),)
    )


def fail(record: ExecutionRecord, event: Fail, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    if not event.retryable:
        return moves.failed(record, S.FAILED, now, policy, event.reason, event.code, event.message)
    attempt = record.attempt + 1
    failed = moves.fact(
        record,
        FactType.SEGMENT_ATTEMPT_FAILED,
        f"attempt-failed-{record.fence}",
        now,
        attempt=attempt,
        code=event.code,
        message=event.message,
    )
    if attempt > policy.max_retries:
        message = f"{event.message} (after {attempt} runs)"
        dead = moves.failed(
            evolve(record, attempt=attempt), S.DLQ, now, policy, TerminalReason.RETRY_EXHAUSTED, event.code, message
        )
        return Transition(dead.record, (failed, *dead.facts))
    due = now + policy.backoff.delay_ms(attempt, event.draw, event.floor_ms)
    after = moves.moved(
        record, S.WAIT_RETRY, now, due, attempt=attempt, error_code=event.code, error_message=event.message
    )
    return Transition(after, (failed,))


def break_(record: ExecutionRecord, event: Break, now: int, policy: ExecutionPolicy) -> Outcome:
    return moves.own(record, event.fence) or moves.failed(
        record, S.FAILED, now, policy, TerminalReason.INTERNAL, "internal", event.message
    )


def hand_back(record: ExecutionRecord, event: HandBack, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    after = moves.moved(record, S.QUEUED, now, now)
    return Transition(
        after,
        (moves.fact(after, FactType.SEGMENT_HANDED_BACK, f"handed-back-{record.fence}", now, reason=event.reason),),
    )


def lose_outcome(record: ExecutionRecord, event: LoseOutcome, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    after = moves.moved(
        record, S.REMOTE_OUTCOME_UNKNOWN, now, None, error_code="remote_outcome_unknown", error_message=event.message
    )
    key = f"outcome-unknown-{record.fence}"
    return Transition(after, (moves.fact(after, FactType.OUTCOME_UNKNOWN, key, now, message=event.message),))


def defer(record: ExecutionRecord, event: Defer, now: int, policy: ExecutionPolicy) -> Outcome:
    if lost := moves.own(record, event.fence):
        return lost
    deferred = record.deferred_count + 1
    since = now if record.deferred_since_epoch_ms is None else record.deferred_since_epoch_ms
    due = max(now + policy.backoff.delay_ms(deferred, event.draw), event.not_before_epoch_ms)
    if due - since > policy.max_deferral_ms:
        return moves.failed(
            record, S.FAILED, now, policy, TerminalReason.CIRCUIT_DEFERRAL_EXHAUSTED, event.code, event.message
        )
    after = moves.moved(
        record,
        S.WAIT_RETRY,
        now,
        due,
        deferred_count=deferred,
        deferred_since_epoch_ms=since,
        error_code=event.code,
        error_message=event.message,
    )
    key = f"deferred-{record.fence}"
    return Transition(after, (moves.fact(after, FactType.SEGMENT_DEFERRED, key, now, code=event.code, dueEpochMs=due),))
