"""Awaits of one value: asked again after a re-drive, and inside the children of a stream."""

from __future__ import annotations

from attrs import evolve

from tests.core.applier import START, Applier, await_terms, child_name, late
from tpfd.core.admission import Verdict
from tpfd.core.awaits import AwaitTerms
from tpfd.core.events import Cancel
from tpfd.core.execution import Refused, Transition
from tpfd.core.records import (
    ExecutionStatus,
    FactType,
    InteractionStatus,
    JsonText,
    TerminalReason,
    UnitStatus,
)

TERMS = await_terms()
DEADLINE = START + TERMS.timeout_ms
YES = JsonText('"yes"')
HUMAN: AwaitTerms = await_terms(
    assignee="ann", group="clerks", remind_after_ms=10_000, escalate_to="boss", escalate_after_ms=20_000
)


# ── re-drive ──


def test_a_redrive_asks_a_question_that_timed_out_again_under_the_same_id() -> None:
    store = Applier()
    store.parked_scalar(HUMAN)
    store.now = DEADLINE
    store.expire()
    store.redrive()
    assert store.answer().verdict is Verdict.TIMED_OUT, "it is not asked again yet"
    assert isinstance(store.park_scalar(store.claim(), HUMAN), Transition)
    again = store.interaction()
    assert (again.status, again.deadline_epoch_ms) == (InteractionStatus.WAITING, DEADLINE + TERMS.timeout_ms)
    assert again.next_check_epoch_ms == DEADLINE + HUMAN.remind_after_ms  # type: ignore[operator]
    assert store.unit().redrive_count == 1
    store.now += 60_000 - 1
    assert store.answer().verdict is Verdict.ADMITTED
    assert store.execution().status is ExecutionStatus.QUEUED


def test_a_redrive_from_before_the_await_uses_the_answer_that_is_there() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.answer()
    store.claim()
    store.fail()
    store.put_status(ExecutionStatus.FAILED, step_index=1)
    store.redrive()
    outcome = store.park_scalar(store.claim(), TERMS)
    assert isinstance(outcome, Transition)
    assert (outcome.record.status, outcome.record.step_index) == (ExecutionStatus.QUEUED, 2)
    assert outcome.record.input.json == YES
    assert [fact.type for fact in outcome.facts] == [FactType.SEGMENT_SUSPENDED, FactType.RESUME_RELEASED]


def test_a_question_that_changed_is_not_asked_in_the_place_of_the_old_one() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE
    store.expire()
    store.redrive()
    claimed = store.claim()
    before = dict(store.records)
    outcome = store.park_scalar(claimed, TERMS, question="another")
    assert isinstance(outcome, Refused)
    assert outcome.code == "source_changed"
    assert store.records == before


# ── an await inside a child ──


def _child_parked(store: Applier, inner: AwaitTerms) -> str:
    """A parent parked on two items; the child of the first is parked on a question of its own."""
    store.parked_items(await_terms(suffix_stop_index=4), 2)
    store.answer(0)
    child = store.claim(child_name(0))
    assert isinstance(store.park_scalar(child, inner), Transition)
    return f"{child_name(0)}.s002"


INNER = await_terms(step_id="second", step_index=2, continue_index=3, suffix_stop_index=4, timeout_ms=10_000)


def test_a_childs_timeout_fails_its_parent_with_it() -> None:
    store = Applier()
    unit = _child_parked(store, INNER)
    store.now += 10_000
    ended = store.expire(0, unit)
    assert (ended.verdict, ended.due) == (Verdict.TIMED_OUT, (child_name(0), "e1"))
    assert store.execution(child_name(0)).terminal_reason is TerminalReason.AWAIT_TIMEOUT
    assert store.execution(child_name(0)).dead_letter_due is False
    parent = store.execution()
    assert (parent.status, parent.error_code) == (ExecutionStatus.FAILED, "await_timeout")
    assert parent.dead_letter_due
    assert store.unit().status is UnitStatus.FAILED


def test_a_late_answer_to_a_child_fails_its_parent_with_it() -> None:
    store = Applier()
    unit = _child_parked(store, INNER)
    store.now += 10_000
    assert store.answer(0, unit=unit).verdict is Verdict.TIMED_OUT
    assert store.execution().status is ExecutionStatus.FAILED
    assert len(late(store)) == 1


def test_an_answer_to_a_child_moves_only_the_child() -> None:
    store = Applier()
    unit = _child_parked(store, INNER)
    parent = store.execution()
    assert store.answer(0, unit=unit).due == (child_name(0),)
    assert store.execution(child_name(0)).status is ExecutionStatus.QUEUED
    assert store.execution() == parent
    store.claim(child_name(0))
    assert isinstance(store.complete(child_name(0)).outcome, Transition)
    assert store.unit(unit).status is UnitStatus.COMPLETED


def test_a_child_of_an_ended_root_takes_no_answer() -> None:
    """From the transition on, not only from the clean-up on."""
    store = Applier()
    unit = _child_parked(store, INNER)
    store.commit(Cancel(reason="r", actor="a"))
    assert store.answer(0, unit=unit).verdict is Verdict.ENDED
    assert store.execution(child_name(0)).status is ExecutionStatus.WAITING_EXTERNAL


def test_a_deadline_below_an_ended_root_calls_the_child_off_with_its_question() -> None:
    """A child left parked on a question that is gone would never wake up, should the root be re-driven now."""
    store = Applier()
    unit = _child_parked(store, INNER)
    store.answer(1)
    store.claim(child_name(1))
    store.fail(child_name(1))
    store.now += 10_000
    assert store.expire(0, unit).verdict is Verdict.ENDED
    assert store.interaction(0, unit).status is InteractionStatus.CANCELLED
    assert store.execution(child_name(0)).status is ExecutionStatus.CANCELLED
    store.redrive()
    assert isinstance(store.park_items(store.claim(), 2), Transition)
    store.continue_all()
    assert [child.status for child in store.children()] == [ExecutionStatus.QUEUED] * 2


def test_an_ended_unit_fails_a_child_at_its_claim_and_the_parent_with_it() -> None:
    store = Applier()
    unit = _child_parked(store, INNER)
    child = child_name(0)
    store.write(evolve(store.unit(unit), status=UnitStatus.TIMED_OUT, version=store.unit(unit).version + 1))
    store.put_status(ExecutionStatus.QUEUED, child, next_check_epoch_ms=store.now)
    assert [record.execution_id for record in store.claims(child).ended] == [child]
    assert store.execution().status is ExecutionStatus.FAILED
