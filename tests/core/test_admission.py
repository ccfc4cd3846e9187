"""How interactions end: completions in each status, deadlines, reminders, and both orders of every race."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from tests.core.applier import START, Applier, await_terms, child_name
from tpfd.core import admission
from tpfd.core.admission import TIMEOUT_ACTOR, Verdict
from tpfd.core.awaits import AwaitTerms, Completion
from tpfd.core.events import Cancel
from tpfd.core.execution import Refused, Transition
from tpfd.core.kinds import LATE
from tpfd.core.records import (
    ExecutionStatus,
    FactType,
    InteractionId,
    InteractionStatus,
    JsonText,
    LateRecord,
    Payload,
    TerminalReason,
    UnitStatus,
)

TERMS = await_terms()
DEADLINE = START + TERMS.timeout_ms
YES = JsonText('"yes"')


def late(store: Applier) -> list[LateRecord]:
    return [record for record in store.records.values() if isinstance(record, LateRecord)]


def facts(store: Applier, fact_type: FactType) -> int:
    return sum(fact.type is fact_type for fact in store.facts)


# ── asking and answering one question ──


def test_parking_asks_and_suspends_at_once() -> None:
    store = Applier()
    parked = store.parked_scalar(TERMS)
    assert parked.status is ExecutionStatus.WAITING_EXTERNAL
    assert (parked.await_unit_id, parked.next_check_epoch_ms, parked.lease_owner) == ("e1.s001", None, None)
    asked = store.interaction()
    assert (asked.status, asked.next_check_epoch_ms) == (InteractionStatus.WAITING, DEADLINE)
    assert store.unit().dispatch_complete
    assert facts(store, FactType.INTERACTION_DISPATCHED) == facts(store, FactType.SEGMENT_SUSPENDED) == 1


def test_a_listed_request_is_out_without_a_queue() -> None:
    store = Applier()
    store.parked_scalar(await_terms(pulled=False))
    assert store.interaction().status is InteractionStatus.DISPATCHED


def test_an_old_owner_parks_nothing() -> None:
    store = Applier()
    store.new(step_index=1)
    old = store.claim()
    store.put_status(ExecutionStatus.RUNNING, fence=old.fence + 1)
    before = dict(store.records)
    outcome = store.park_scalar(old, TERMS)
    assert isinstance(outcome, Refused)
    assert outcome.code == "lost_lease"
    assert store.records == before


def test_an_answer_releases_behind_the_await() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now += 1_000
    ended = store.answer(actor="ann", key="k1")
    assert (ended.verdict, ended.due) == (Verdict.ADMITTED, ("e1",))
    released = store.execution()
    assert (released.status, released.step_index, released.next_check_epoch_ms) == (
        ExecutionStatus.QUEUED,
        2,
        store.now,
    )
    assert released.input == Payload(type_name="Answer", json=YES)
    answered = store.interaction()
    assert (answered.status, answered.response, answered.actor) == (InteractionStatus.COMPLETED, YES, "ann")
    assert (answered.completion_key, answered.next_check_epoch_ms) == ("k1", None)
    assert store.unit().status is UnitStatus.COMPLETED
    assert store.claim().step_index == 2


# ── the five statuses of a completion's interaction ──


def test_1_the_same_answer_again_changes_nothing() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.answer()
    before = dict(store.records)
    store.now += 10 * TERMS.timeout_ms
    assert store.answer(actor="somebody else").verdict is Verdict.DUPLICATE
    assert store.records == before


def test_1_another_answer_is_kept_and_the_admitted_one_stands() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.answer()
    before = dict(store.records)
    ended = store.answer(response="no", actor="bob")
    assert (ended.verdict, ended.due) == (Verdict.CONFLICTING, ())
    (kept,) = late(store)
    assert (kept.reason, kept.body, kept.actor, kept.execution_id) == ("conflicting", '"no"', "bob", "e1")
    assert {key: record for key, record in store.records.items() if key.kind is not LATE} == before
    assert facts(store, FactType.COMPLETION_CONFLICTING) == 1


def test_2_an_answer_past_the_deadline_performs_the_timeout() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE
    ended = store.answer()
    assert (ended.verdict, ended.due, ended.unit_ended) == (Verdict.TIMED_OUT, ("e1",), True)
    _timed_out(store)
    assert [kept.reason for kept in late(store)] == ["late"]


def test_2_one_millisecond_earlier_it_counts() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE - 1
    assert store.answer().verdict is Verdict.ADMITTED


def test_2_past_the_deadline_the_standing_answer_wins() -> None:
    store = Applier()
    store.parked_scalar(await_terms(on_timeout=JsonText('"default"')))
    store.now = DEADLINE
    ended = store.answer()
    assert (ended.verdict, ended.due) == (Verdict.TIMED_OUT, ("e1",))
    assert store.interaction().response == '"default"'
    assert store.execution().input.json == '"default"'
    assert [kept.body for kept in late(store)] == [YES]


def test_a10_3_an_answer_after_the_timeout_is_kept_and_changes_nothing() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE
    store.expire()
    before = dict(store.records)
    store.now += 2_000
    assert store.answer().verdict is Verdict.TIMED_OUT
    assert store.answer().verdict is Verdict.TIMED_OUT
    (kept,) = late(store)
    assert (kept.reason, kept.body, kept.created_epoch_ms) == ("late", YES, store.now)
    assert {key: record for key, record in store.records.items() if key.kind is not LATE} == before


@pytest.mark.parametrize("status", [InteractionStatus.FAILED, InteractionStatus.CANCELLED, InteractionStatus.EXPIRED])
def test_3_an_answer_to_what_ended_otherwise_is_late(status: InteractionStatus) -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.write(evolve(store.interaction(), status=status, version=2))
    assert store.answer().verdict is Verdict.ENDED
    assert store.execution().status is ExecutionStatus.WAITING_EXTERNAL
    assert len(late(store)) == 1


def test_4_nothing_is_admitted_once_the_execution_is_over() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.commit(Cancel(reason="r", actor="a"))
    assert store.interaction().status.open, "clean-up has not come by yet"
    assert store.answer().verdict is Verdict.ENDED
    assert store.interaction().status.open
    assert [kept.reason for kept in late(store)] == ["late"]


def test_5_an_open_one_is_admitted_while_its_stream_is_alive() -> None:
    """It is durable before the session hears of it; nothing else moves."""
    store = Applier()
    before = store.live(TERMS, 2)
    unit = store.unit()
    assert store.answer(1).due == ()
    assert (store.execution(), store.unit(), store.children()) == (before, unit, [])
    assert store.interaction(1).status is InteractionStatus.COMPLETED


def test_a11_what_does_not_exist_is_not_found_and_nothing_is_written() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    gone = evolve(store.interaction(), interaction_id=InteractionId("nothing"))
    before = dict(store.records)
    decide = Completion(response=YES)
    found = store.transact(
        admission.reads(gone), lambda seen: admission.admit(seen, gone, decide, store.now, store.policy)
    )
    assert (found.verdict, found.interaction) == (Verdict.NOT_FOUND, None)
    assert (
        store.transact(
            admission.reads(gone), lambda seen: admission.expire(seen, gone, store.now, store.policy)
        ).verdict
        is Verdict.NOT_FOUND
    )
    assert store.records == before


# ── time ──


def _timed_out(store: Applier) -> None:
    failed = store.execution()
    assert (failed.status, failed.terminal_reason) == (ExecutionStatus.FAILED, TerminalReason.AWAIT_TIMEOUT)
    assert (failed.error_code, failed.cleanup_due, failed.dead_letter_due) == ("await_timeout", True, True)
    assert store.interaction().status is InteractionStatus.TIMED_OUT
    assert store.unit().status is UnitStatus.TIMED_OUT
    assert facts(store, FactType.INTERACTION_TIMED_OUT) == facts(store, FactType.RUN_FAILED) == 1


def test_the_deadline_fails_a_parked_execution_in_one_step() -> None:
    store = Applier()
    store.parked_scalar(TERMS)
    store.now = DEADLINE
    assert store.expire().verdict is Verdict.TIMED_OUT
    _timed_out(store)
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
