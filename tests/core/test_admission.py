"""How interactions end: completions in each status, deadlines, reminders, and both orders of every race."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.core.applier import START, Applier, await_terms, check_timed_out, facts, late
from tpfd.core import admission
from tpfd.core.admission import Verdict
from tpfd.core.awaits import Completion
from tpfd.core.events import Cancel
from tpfd.core.execution import Refused
from tpfd.core.kinds import LATE
from tpfd.core.records import (
    ExecutionStatus,
    FactType,
    InteractionId,
    InteractionStatus,
    JsonText,
    Payload,
    UnitStatus,
)

TERMS = await_terms()
DEADLINE = START + TERMS.timeout_ms
YES = JsonText('"yes"')


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
    check_timed_out(store)
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
