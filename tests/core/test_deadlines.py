"""Deadlines, reminders and escalations, and both orders of every race with an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.applier import START, Applier, await_terms, check_timed_out, facts
from tpfd.core.admission import TIMEOUT_ACTOR, Verdict
from tpfd.core.awaits import AwaitTerms
from tpfd.core.events import Cancel
from tpfd.core.execution import Transition
from tpfd.core.records import (
    ExecutionStatus,
    FactType,
    InteractionStatus,
    JsonText,
    TerminalReason,
)

TERMS = await_terms()
DEADLINE = START + TERMS.timeout_ms
YES = JsonText('"yes"')


def test_the_deadline_fails_a_parked_execution_in_one_step() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE
    assert store.expire().verdict is Verdict.TIMED_OUT
    check_timed_out(store)
    assert store.expire().verdict is Verdict.ENDED


def test_the_deadline_does_not_come_early() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE - 1
    before = dict(store.records)
    assert store.expire().verdict is Verdict.NOT_DUE
    assert store.records == before


def test_a_standing_answer_is_admitted_at_the_deadline() -> None:
    store = Applier()
    store.parked_scalar(await_terms(on_timeout=JsonText('"default"')))
    store.now = DEADLINE
    assert store.expire().verdict is Verdict.ADMITTED
    assert store.interaction().actor == TIMEOUT_ACTOR
    assert store.execution().status is ExecutionStatus.QUEUED
    assert facts(store, FactType.INTERACTION_TIMED_OUT) == 0


ORDERS: dict[str, tuple[list[Callable[[Applier], Verdict]], list[Verdict], ExecutionStatus]] = {
    "answer first": (
        [lambda store: store.answer().verdict, lambda store: store.expire().verdict],
        [Verdict.ADMITTED, Verdict.ENDED],
        ExecutionStatus.QUEUED,
    ),
    "deadline first": (
        [lambda store: store.expire().verdict, lambda store: store.answer().verdict],
        [Verdict.TIMED_OUT, Verdict.TIMED_OUT],
        ExecutionStatus.FAILED,
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_answer_and_deadline_meet_and_one_wins(order: str) -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    calls, verdicts, status = ORDERS[order]
    store.now = DEADLINE - 1
    first = calls[0]
    if order == "deadline first":
        store.now = DEADLINE
    assert first(store) is verdicts[0]
    store.now = DEADLINE
    assert calls[1](store) is verdicts[1]
    assert store.execution().status is status


def test_a_running_owner_finds_its_unit_timed_out() -> None:
    store = Applier()
    claimed = store.live(TERMS, 2)
    store.now = DEADLINE
    ended = store.expire(0)
    assert (ended.verdict, ended.unit_ended, ended.due) == (Verdict.TIMED_OUT, True, ())
    assert store.execution().status is ExecutionStatus.RUNNING
    refused = store.open_items(claimed, TERMS, []).refused
    assert refused is not None
    assert refused.code == "await_timeout"
    outcome = store.park_items(claimed, 2)
    assert isinstance(outcome, Transition)
    assert (outcome.record.status, outcome.record.terminal_reason) == (
        ExecutionStatus.FAILED,
        TerminalReason.AWAIT_TIMEOUT,
    )


def test_one_unit_times_out_once_however_many_items_do() -> None:
    store = Applier()
    store.live(TERMS, 2)
    store.now = DEADLINE
    store.expire(0)
    unit = store.unit()
    assert store.expire(1).verdict is Verdict.TIMED_OUT
    assert store.interaction(1).status is InteractionStatus.TIMED_OUT
    assert store.unit() == unit


def test_a_waiting_owner_fails_at_its_next_claim() -> None:
    store = Applier()
    store.live(TERMS, 2)
    store.put_status(ExecutionStatus.WAIT_RETRY, next_check_epoch_ms=DEADLINE)
    store.now = DEADLINE
    store.expire(0)
    assert store.execution().status is ExecutionStatus.WAIT_RETRY
    claimed = store.claims("e1")
    assert (claimed.records, [record.status for record in claimed.ended]) == ((), [ExecutionStatus.FAILED])
    assert store.execution().terminal_reason is TerminalReason.AWAIT_TIMEOUT


def test_a_second_deadline_in_an_ended_unit_only_ends_its_interaction() -> None:
    store = Applier()
    store.parked_items(TERMS, 2)
    store.now = DEADLINE
    store.expire(0)
    failed, unit = store.execution(), store.unit()
    assert store.expire(1).verdict is Verdict.ENDED
    assert store.interaction(1).status is InteractionStatus.CANCELLED
    assert (store.execution(), store.unit()) == (failed, unit)


HUMAN: AwaitTerms = await_terms(
    assignee="ann", group="clerks", remind_after_ms=10_000, escalate_to="boss", escalate_after_ms=20_000
)


def test_a_reminder_is_sent_once_then_it_is_escalated_then_it_times_out() -> None:
    store = Applier()
    store.parked_scalar(HUMAN)
    at = []
    for _ in range(3):
        store.now = store.interaction().next_check_epoch_ms or 0
        at.append(store.now - START)
        store.expire()
        assert store.interaction().next_check_epoch_ms != store.now
    assert at == [10_000, 20_000, 60_000]
    assert store.interaction().assignee == "boss"
    assert store.interaction().status is InteractionStatus.TIMED_OUT
    assert facts(store, FactType.INTERACTION_REMINDED) == facts(store, FactType.INTERACTION_ESCALATED) == 1


def test_an_overslept_sweep_does_all_that_is_due_one_after_the_other() -> None:
    store = Applier()
    store.parked_scalar(HUMAN)
    store.now = START + 25_000
    assert [store.expire().verdict for _ in range(3)] == [Verdict.NOT_DUE] * 3
    assert facts(store, FactType.INTERACTION_REMINDED) == facts(store, FactType.INTERACTION_ESCALATED) == 1
    assert store.interaction().next_check_epoch_ms == DEADLINE


def test_without_somebody_to_escalate_to_nothing_is_escalated() -> None:
    store = Applier()
    store.parked_scalar(await_terms(assignee="ann", remind_after_ms=1, escalate_after_ms=2))
    store.now = DEADLINE - 1
    store.expire()
    store.expire()
    assert store.interaction().assignee == "ann"


def test_a_deadline_of_an_ended_execution_cancels() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.commit(Cancel(reason="r", actor="a"))
    store.now = DEADLINE
    assert store.expire().verdict is Verdict.ENDED
    assert store.interaction().status is InteractionStatus.CANCELLED
    assert store.execution().status is ExecutionStatus.CANCELLED
