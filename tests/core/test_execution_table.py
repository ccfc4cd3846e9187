"""Every row of the status table, every refusal: what an event makes of an execution, and what it must not touch."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from tests.core.applier import POLICY, START, Applier
from tpfd.core import events
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
from tpfd.core.execution import TABLE, Refused, Transition, apply
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    JsonText,
    Payload,
    Publication,
    PublicationState,
    TerminalReason,
    UnitId,
)

S = ExecutionStatus
R = TerminalReason
UNIT = UnitId("e1.s001")
OTHER = UnitId("e1.s007")
FENCE = 4
NEXT = Payload(type_name="Next", json=JsonText('"next"'))
PREPARED = Publication(
    state=PublicationState.PREPARED,
    target="out",
    object_key="out.csv",
    temporary=".out.csv.4",
    digest="d",
    size_bytes=1,
    item_count=1,
)
LEASE_END = START + POLICY.lease_ms


def record(status: ExecutionStatus, **changes: Any) -> ExecutionRecord:
    """An execution in some status, with everything that could wrongly be touched."""
    base = evolve(
        Applier().new(),
        status=status,
        version=9,
        fence=FENCE,
        step_index=1,
        attempt=2,
        worker_losses=1,
        await_unit_id=UNIT,
        next_check_epoch_ms=None,
    )
    if status is S.RUNNING:
        base = evolve(
            base,
            lease_owner="w0",
            lease_expires_epoch_ms=LEASE_END,
            next_check_epoch_ms=LEASE_END + POLICY.skew_ms,
        )
    elif status in (S.QUEUED, S.WAIT_RETRY):
        base = evolve(base, next_check_epoch_ms=START)
    elif status in (S.FAILED, S.DLQ):
        base = evolve(
            base,
            terminal_reason=R.NON_RETRYABLE,
            error_code="x",
            dead_letter_due=True,
            cleanup_due=True,
            ttl_epoch_s=1 + START // 1000,
        )
    elif status is S.CANCELLED:
        base = evolve(base, cleanup_due=True, ttl_epoch_s=1 + START // 1000)
    return evolve(base, **changes)


def step(before: ExecutionRecord, event: Event, now: int = START) -> Transition:
    outcome = apply(before, event, now, POLICY)
    assert isinstance(outcome, Transition), outcome
    return outcome


def refusal(before: ExecutionRecord, event: Event, now: int = START) -> str:
    outcome = apply(before, event, now, POLICY)
    assert isinstance(outcome, Refused), outcome
    return outcome.code


SUSPEND = Suspend(fence=FENCE, unit_id=UNIT, step_index=1, input=NEXT)
FAIL = Fail(fence=FENCE, code="x", message="m", retryable=True, draw=0.5)
DEFER = Defer(fence=FENCE, code="open", message="m", not_before_epoch_ms=START + 90_000)
REDRIVE = Redrive(expected_version=9, reason="r", actor="a")
AFTER_LEASE = LEASE_END + POLICY.skew_ms

# One line per row of the design's table: from, changes to it, event, now, to, changes that must follow.
ROWS: list[tuple[ExecutionStatus, dict[str, Any], Event, int, ExecutionStatus, dict[str, Any]]] = [
    (S.QUEUED, {}, Claim(owner="w"), START, S.RUNNING, {"fence": FENCE + 1, "lease_owner": "w", "attempt": 2}),
    (S.WAIT_RETRY, {}, Claim(owner="w"), START, S.RUNNING, {"fence": FENCE + 1, "worker_losses": 1}),
    (
        S.QUEUED,
        {},
        Claim(owner="w", unit_ended=R.AWAIT_TIMEOUT),
        START,
        S.FAILED,
        {"fence": FENCE, "terminal_reason": R.AWAIT_TIMEOUT},
    ),
    (
        S.WAIT_RETRY,
        {},
        Claim(owner="w", unit_ended=R.AWAIT_FAILED),
        START,
        S.FAILED,
        {"terminal_reason": R.AWAIT_FAILED},
    ),
    (S.RUNNING, {}, Claim(owner="w"), AFTER_LEASE, S.RUNNING, {"fence": FENCE + 1, "worker_losses": 2, "attempt": 2}),
    (S.RUNNING, {"worker_losses": 5}, Claim(owner="w"), AFTER_LEASE, S.DLQ, {"terminal_reason": R.WORKER_LOST}),
    (S.RUNNING, {}, Renew(fence=FENCE), START + 5, S.RUNNING, {"lease_expires_epoch_ms": LEASE_END + 5}),
    (S.RUNNING, {}, OpenUnit(fence=FENCE, unit_id=OTHER), START, S.RUNNING, {"await_unit_id": OTHER, "fence": FENCE}),
    (
        S.RUNNING,
        {},
        PreparePublication(fence=FENCE, publication=PREPARED),
        START,
        S.RUNNING,
        {"publication": PREPARED, "lease_owner": "w0"},
    ),
    (S.RUNNING, {}, Complete(fence=FENCE, result=NEXT), START, S.SUCCEEDED, {"result": NEXT, "error_code": None}),
    (
        S.RUNNING,
        {"publication": PREPARED},
        Complete(fence=FENCE, result=None, published=True),
        START,
        S.SUCCEEDED,
        {"publication": evolve(PREPARED, state=PublicationState.COMPLETED), "cleanup_due": False},
    ),
    (
        S.RUNNING,
        {"deferred_count": 2, "deferred_since_epoch_ms": 7},
        Advance(fence=FENCE, step_index=2, input=NEXT),
        START,
        S.QUEUED,
        {"step_index": 2, "input": NEXT, "attempt": 0, "worker_losses": 0, "deferred_since_epoch_ms": None},
    ),
    (S.RUNNING, {}, SUSPEND, START, S.WAITING_EXTERNAL, {"lease_owner": None, "attempt": 0, "input": NEXT}),
    (S.RUNNING, {}, FAIL, START, S.WAIT_RETRY, {"attempt": 3, "error_code": "x", "lease_owner": None}),
    (S.RUNNING, {"attempt": 3}, FAIL, START, S.DLQ, {"attempt": 4, "terminal_reason": R.RETRY_EXHAUSTED}),
    (S.RUNNING, {}, evolve(FAIL, retryable=False), START, S.FAILED, {"terminal_reason": R.NON_RETRYABLE, "attempt": 2}),
    (
        S.RUNNING,
        {},
        evolve(FAIL, retryable=False, reason=R.AWAIT_TIMEOUT),
        START,
        S.FAILED,
        {"terminal_reason": R.AWAIT_TIMEOUT},
    ),
    (S.RUNNING, {}, Break(fence=FENCE, message="m"), START, S.FAILED, {"terminal_reason": R.INTERNAL}),
    (
        S.RUNNING,
        {},
        HandBack(fence=FENCE, reason="drain"),
        START + 3,
        S.QUEUED,
        {"attempt": 2, "worker_losses": 1, "next_check_epoch_ms": START + 3},
    ),
    (S.RUNNING, {}, LoseOutcome(fence=FENCE, message="m"), START, S.REMOTE_OUTCOME_UNKNOWN, {"attempt": 2}),
    (
        S.RUNNING,
        {},
        DEFER,
        START,
        S.WAIT_RETRY,
        {"attempt": 2, "deferred_count": 1, "next_check_epoch_ms": START + 90_000, "deferred_since_epoch_ms": START},
    ),
    (
        S.RUNNING,
        {"deferred_since_epoch_ms": START - POLICY.max_deferral_ms},
        DEFER,
        START,
        S.FAILED,
        {"terminal_reason": R.CIRCUIT_DEFERRAL_EXHAUSTED},
    ),
    (
        S.WAITING_EXTERNAL,
        {},
        Release(unit_id=UNIT, step_index=2, input=NEXT),
        START,
        S.QUEUED,
        {"step_index": 2, "input": NEXT},
    ),
    (
        S.WAITING_EXTERNAL,
        {},
        UnitEnded(unit_id=UNIT, reason=R.AWAIT_TIMEOUT, code="await_timeout", message="m"),
        START,
        S.FAILED,
        {"terminal_reason": R.AWAIT_TIMEOUT, "cleanup_due": True},
    ),
    (S.DLQ, {}, REDRIVE, START, S.QUEUED, {"attempt": 0, "worker_losses": 0, "redrive_count": 1, "ttl_epoch_s": None}),
    (S.FAILED, {}, evolve(REDRIVE, allow_failed=True), START, S.QUEUED, {"terminal_reason": None, "error_code": None}),
    (S.REMOTE_OUTCOME_UNKNOWN, {}, evolve(REDRIVE, confirmed_stopped=True), START, S.QUEUED, {"redrive_count": 1}),
    *(
        (status, {}, Cancel(reason="r", actor="a"), START, S.CANCELLED, {"terminal_reason": R.CANCELLED})
        for status in (S.QUEUED, S.RUNNING, S.WAIT_RETRY, S.WAITING_EXTERNAL, S.REMOTE_OUTCOME_UNKNOWN)
    ),
    (S.FAILED, {}, DeadLetterSent(redrive_count=0), START, S.FAILED, {"dead_letter_due": False, "cleanup_due": True}),
    (S.DLQ, {}, DeadLetterSent(redrive_count=0), START, S.DLQ, {"next_check_epoch_ms": START}),
    (S.FAILED, {}, CleanedUp(redrive_count=0), START, S.FAILED, {"cleanup_due": False, "dead_letter_due": True}),
    (S.DLQ, {"dead_letter_due": False}, CleanedUp(redrive_count=0), START, S.DLQ, {"cleanup_due": False}),
    (
        S.CANCELLED,
        {},
        CleanedUp(redrive_count=0),
        START,
        S.CANCELLED,
        {"next_check_epoch_ms": (1 + START // 1000) * 1000},
    ),
]


def _name(row: tuple[Any, ...]) -> str:
    return f"{row[0]}-{type(row[2]).__name__}-{row[4]}"


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_each_row_of_the_table(row: tuple[Any, ...]) -> None:
    status, changes, event, now, target, expected = row
    before = record(status, **changes)
    after = step(before, event, now).record
    assert after.status is target
    assert {name: getattr(after, name) for name in expected} == expected
    assert after.version == before.version + 1
    assert after.updated_epoch_ms == now
    assert target in TABLE[status, type(event)].targets


def test_the_rows_cover_the_table_and_its_targets() -> None:
    tried = {(status, type(event), target) for status, _, event, _, target, _ in ROWS}
    cells = {(status, event, target) for (status, event), rule in TABLE.items() for target in rule.targets}
    assert cells - tried == {(S.RUNNING, NoteFact, S.RUNNING)}  # it writes no record: see test_a_note_…
    assert tried - cells == set()


EVENTS: list[Event] = [
    Claim(owner="w"),
    Renew(fence=FENCE),
    OpenUnit(fence=FENCE, unit_id=UNIT),
    PreparePublication(fence=FENCE, publication=PREPARED),
    NoteFact(fence=FENCE, type=FactType.OUTPUT_STARTED, key="k"),
    Complete(fence=FENCE, result=NEXT),
    Advance(fence=FENCE, step_index=2, input=NEXT),
    SUSPEND,
    FAIL,
    Break(fence=FENCE, message="m"),
    HandBack(fence=FENCE, reason="r"),
    LoseOutcome(fence=FENCE, message="m"),
    DEFER,
    Release(unit_id=UNIT, step_index=2, input=NEXT),
    UnitEnded(unit_id=UNIT, reason=R.AWAIT_FAILED, code="c", message="m"),
    evolve(REDRIVE, allow_failed=True, confirmed_stopped=True),
    Cancel(reason="r", actor="a"),
    DeadLetterSent(redrive_count=0),
    CleanedUp(redrive_count=0),
]


def test_the_events_are_all_there_are() -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert {type(event) for event in EVENTS} == kinds - {Event, events.AttemptEvent}


@pytest.mark.parametrize("status", S)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_pair_outside_the_table_changes_nothing(status: ExecutionStatus, event: Event) -> None:
    outcome = apply(record(status), event, START, POLICY)
    if (status, type(event)) not in TABLE:
        assert isinstance(outcome, Refused)
        assert outcome.code == "not_legal"
        assert status in outcome.message
    elif isinstance(outcome, Transition):
        assert outcome.record.status in TABLE[status, type(event)].targets


@pytest.mark.parametrize(
    "event",
    [event for event in EVENTS if isinstance(event, events.AttemptEvent)],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("fence", [FENCE - 1, FENCE + 1])
def test_a01_no_commit_of_another_fence_lands(event: events.AttemptEvent, fence: int) -> None:
    before = record(S.RUNNING, publication=PREPARED)
    assert refusal(before, evolve(event, fence=fence)) == "lost_lease"
    assert isinstance(apply(before, event, START, POLICY), Transition), "with its own fence it lands"


def test_the_owner_may_commit_late_while_nobody_has_acted() -> None:
    assert step(record(S.RUNNING), Complete(fence=FENCE, result=NEXT), AFTER_LEASE + 1).record.status is S.SUCCEEDED


EARLY = [
    pytest.param(record(S.QUEUED), Claim(owner="w"), START - 1, id="claim before it is due"),
    pytest.param(record(S.RUNNING), Claim(owner="w"), AFTER_LEASE - 1, id="take-over inside the skew"),
    pytest.param(record(S.RUNNING), Claim(owner="w", witnessed=False), AFTER_LEASE, id="take-over nobody witnessed"),
]


@pytest.mark.parametrize(("before", "event", "now"), EARLY)
def test_nothing_is_claimed_early(before: ExecutionRecord, event: Event, now: int) -> None:
    assert refusal(before, event, now) == "not_due"


REFUSALS = [
    (S.RUNNING, {}, Complete(fence=FENCE, result=None, published=True), "not_legal"),
    (S.WAITING_EXTERNAL, {}, Release(unit_id=OTHER, step_index=2, input=NEXT), "other_unit"),
    (S.WAITING_EXTERNAL, {}, UnitEnded(unit_id=OTHER, reason=R.AWAIT_FAILED, code="c", message="m"), "other_unit"),
    (S.DLQ, {}, evolve(REDRIVE, expected_version=8), "stale_version"),
    (S.FAILED, {}, REDRIVE, "not_allowed"),
    (S.FAILED, {}, evolve(REDRIVE, confirmed_stopped=True), "not_allowed"),
    (S.REMOTE_OUTCOME_UNKNOWN, {}, evolve(REDRIVE, allow_failed=True), "not_confirmed"),
    (S.DLQ, {"parent_execution_id": ExecutionId("e0")}, REDRIVE, "not_allowed"),
    (S.DLQ, {"ttl_epoch_s": START // 1000}, REDRIVE, "not_allowed"),
    (S.RUNNING, {"publication": PREPARED}, Cancel(reason="r", actor="a"), "publication_prepared"),
    (S.FAILED, {"dead_letter_due": False}, DeadLetterSent(redrive_count=0), "not_legal"),
    (S.FAILED, {"redrive_count": 1}, DeadLetterSent(redrive_count=0), "stale_version"),
    (S.FAILED, {"cleanup_due": False}, CleanedUp(redrive_count=0), "not_legal"),
    (S.CANCELLED, {"redrive_count": 1}, CleanedUp(redrive_count=0), "stale_version"),
]


@pytest.mark.parametrize(
    ("status", "changes", "event", "code"), REFUSALS, ids=lambda value: repr(value) if isinstance(value, str) else None
)
def test_each_refusal(status: ExecutionStatus, changes: dict[str, Any], event: Event, code: str) -> None:
    assert refusal(record(status, **changes), event) == code


def test_a_child_whose_outcome_is_unknown_can_be_redriven_itself() -> None:
    """Its parent waits for it; nobody else can settle it."""
    child = record(S.REMOTE_OUTCOME_UNKNOWN, parent_execution_id=ExecutionId("e0"))
    assert step(child, evolve(REDRIVE, confirmed_stopped=True)).record.status is S.QUEUED


def test_a_note_is_a_fact_and_writes_nothing() -> None:
    before = record(S.RUNNING)
    noted = step(before, NoteFact(fence=FENCE, type=FactType.OUTPUT_STARTED, key="k"))
    assert noted.record is before
    assert [fact.type for fact in noted.facts] == [FactType.OUTPUT_STARTED]
