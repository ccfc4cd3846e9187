"""The life of an execution: one table of legal transitions.

``apply(record, event, now, policy)`` is the only way from one execution record to the next. It looks up the pair
(status, event type) in ``TABLE``; a pair that is not there, or a guard that does not hold, gives ``Refused`` and
changes nothing. Losing a race is a value here, not an exception.

Two guards carry all correctness. Events of an attempt (renew, complete, advance, suspend, fail, ...) need status
RUNNING and the attempt's own ``fence``; whatever happened to the lease meanwhile, if the fence has not moved, nobody
else has acted, and the commit stands. Events from elsewhere (claim, release, cancel, re-drive) need the status the
table names and, where a person asks, the version that person saw.

``next_check_epoch_ms`` is derived here from status and times: it is what the sweeper looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from tpfd.core import attempt, outside
from tpfd.core.events import (
    Advance,
    Break,
    Cancel,
    Claim,
    CleanedUp,
    Complete,
    DeadLetterSent,
    Defer,
    Event,
    ExecutionPolicy,
    Fail,
    HandBack,
    LoseOutcome,
    NoteFact,
    OpenUnit,
    PreparePublication,
    Redrive,
    Release,
    Renew,
    Suspend,
    UnitEnded,
)
from tpfd.core.moves import Outcome, Refused, Transition, fact, transition_key
from tpfd.core.records import ExecutionRecord, ExecutionStatus

__all__ = ["TABLE", "Outcome", "Refused", "Rule", "Transition", "apply", "fact", "follow", "transition_key"]

S = ExecutionStatus
Handler = Callable[[ExecutionRecord, Any, int, ExecutionPolicy], Outcome]


@frozen
class Rule:
    """One cell of the table: the statuses it may lead to, and how."""

    targets: tuple[ExecutionStatus, ...]
    handler: Handler


def apply(record: ExecutionRecord, event: Event, now_epoch_ms: int, policy: ExecutionPolicy) -> Outcome:
    """The next record, or why not."""
    rule = TABLE.get((record.status, type(event)))
    if rule is None:
        return Refused("not_legal", f"{type(event).__name__} is not possible while the execution is {record.status}")
    return rule.handler(record, event, now_epoch_ms, policy)


def follow(first: Transition, event: Event, now_epoch_ms: int, policy: ExecutionPolicy) -> Outcome:
    """A second transition in the same write as the first: both happened, the version rises once."""
    second = apply(first.record, event, now_epoch_ms, policy)
    if isinstance(second, Refused):
        return second
    return Transition(evolve(second.record, version=first.record.version), (*first.facts, *second.facts))


def _rows() -> dict[tuple[ExecutionStatus, type[Event]], Rule]:
    table: dict[tuple[ExecutionStatus, type[Event]], Rule] = {}

    def row(
        sources: tuple[ExecutionStatus, ...], event: type[Event], targets: tuple[ExecutionStatus, ...], handler: Handler
    ) -> None:
        for source in sources:
            table[source, event] = Rule(targets, handler)

    waiting = (S.QUEUED, S.WAIT_RETRY)
    running = (S.RUNNING,)
    open_ = (*waiting, S.RUNNING, S.WAITING_EXTERNAL, S.REMOTE_OUTCOME_UNKNOWN)
    ended_badly = (S.FAILED, S.DLQ, S.CANCELLED)
    row(waiting, Claim, (S.RUNNING, S.FAILED), attempt.claim_due)
    row(running, Claim, (S.RUNNING, S.DLQ), attempt.claim_expired)
    row(running, Renew, running, attempt.renew)
    row(running, OpenUnit, running, attempt.open_unit)
    row(running, PreparePublication, running, attempt.prepare)
    row(running, NoteFact, running, attempt.note)
    row(running, Complete, (S.SUCCEEDED,), attempt.complete)
    row(running, Advance, (S.QUEUED,), attempt.advance)
    row(running, Suspend, (S.WAITING_EXTERNAL,), attempt.suspend)
    row(running, Fail, (S.WAIT_RETRY, S.FAILED, S.DLQ), attempt.fail)
    row(running, Break, (S.FAILED,), attempt.break_)
    row(running, HandBack, (S.QUEUED,), attempt.hand_back)
    row(running, LoseOutcome, (S.REMOTE_OUTCOME_UNKNOWN,), attempt.lose_outcome)
    row(running, Defer, (S.WAIT_RETRY, S.FAILED), attempt.defer)
    row((S.WAITING_EXTERNAL,), Release, (S.QUEUED,), outside.release)
    row((S.WAITING_EXTERNAL,), UnitEnded, (S.FAILED,), outside.unit_ended)
    row((S.FAILED, S.DLQ, S.REMOTE_OUTCOME_UNKNOWN), Redrive, (S.QUEUED,), outside.redrive)
    row(open_, Cancel, (S.CANCELLED,), outside.cancel)
    row((S.FAILED,), DeadLetterSent, (S.FAILED,), outside.dead_letter_sent)
    row((S.DLQ,), DeadLetterSent, (S.DLQ,), outside.dead_letter_sent)
    for status in ended_badly:
        row((status,), CleanedUp, (status,), outside.cleaned_up)
    return table


TABLE: Mapping[tuple[ExecutionStatus, type[Event]], Rule] = _rows()
"""Every legal pair. README's diagram is drawn from it (``tpfd.core.diagram``)."""
