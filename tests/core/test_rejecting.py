"""Requests that can never be sent, of steps that recover: the item is done, without an output, and it ends alone."""

from __future__ import annotations

import pytest

from tests.core.applier import Applier, await_terms, request
from tests.core.test_sending import Sender
from tpfd.core import ids
from tpfd.core.admission import Verdict
from tpfd.core.awaits import NOTHING, answer_of, was_rejected
from tpfd.core.dispatching import Opened
from tpfd.core.events import Complete
from tpfd.core.kinds import INTERACTION_DUE
from tpfd.core.records import (
    ExecutionId,
    ExecutionStatus,
    FactType,
    InteractionStatus,
    LateRecord,
    Payload,
    TerminalReason,
    UnitId,
    UnitStatus,
)

TERMS = await_terms(transport_type="webhook")
INNER = await_terms(step_index=2, transport_type="webhook")
COUNT = 3
BAD = 1


@pytest.fixture
def store() -> Sender:
    return Sender()


def child(item_index: int) -> ExecutionId:
    return ids.child_id(UnitId("e1.s001"), item_index)


def taken(store: Sender) -> None:
    store.take(*store.interactions())


def run(store: Applier, item_index: int) -> None:
    """A child runs to its end, as an attempt runs it."""
    claimed = store.claim(child(item_index))
    result = None if claimed.input == NOTHING else Payload(type_name="Out")
    store.commit(Complete(fence=claimed.fence, result=result), claimed.execution_id)


def test_it_is_done_without_an_answer_and_its_unit_waits_for_the_others(store: Sender) -> None:
    store.live(TERMS, COUNT)
    taken(store)
    ended = store.give_up(BAD, "too large", rejected=True)
    assert (ended.verdict, ended.due, ended.unit_ended) == (Verdict.REJECTED, (), False)
    record = store.interaction(BAD)
    assert was_rejected(record)
    assert (record.status, record.response, record.error_message) == (InteractionStatus.COMPLETED, None, "too large")
    assert INTERACTION_DUE.entry(record) is None, "nothing is due about it any more"
    assert answer_of(record) == NOTHING
    assert store.unit().status is UnitStatus.WAITING_EXTERNAL
    assert store.execution().status is ExecutionStatus.RUNNING
    facts = [fact for fact in store.facts if fact.type is FactType.DISPATCH_FAILED]
    assert [(fact.data["message"], fact.data["rejected"]) for fact in facts] == [("too large", True)]


def test_a_later_attempt_does_not_ask_it_again(store: Sender) -> None:
    claimed = store.live(TERMS, COUNT)
    taken(store)
    store.give_up(BAD, rejected=True)
    opened = store.open_items(claimed, TERMS, [request(index) for index in range(COUNT)])
    assert [item.opened for item in opened.items] == [Opened.ATTACHED, Opened.ANSWERED, Opened.ATTACHED]


@pytest.mark.parametrize("early", [True, False], ids=["before parking", "after parking"])
def test_a_parked_unit_is_released_without_it(store: Sender, early: bool) -> None:
    claimed = store.live(TERMS, COUNT)
    taken(store)
    if early:
        store.give_up(BAD, rejected=True)
    store.park_items(claimed, COUNT)
    if not early:
        assert store.give_up(BAD, rejected=True).due == (child(BAD),)
    store.continue_all()
    assert store.execution(child(BAD)).input == NOTHING
    for index in range(COUNT):
        if index != BAD:
            store.answer(index)
        run(store, index)
    store.continue_all()
    store.release()
    assert store.execution().status is ExecutionStatus.QUEUED
    assert [one.result is None for one in store.children()] == [index == BAD for index in range(COUNT)]


def test_a_re_drive_leaves_it_as_it_is(store: Sender) -> None:
    store.parked_items(TERMS, COUNT)
    taken(store)
    store.give_up(BAD, rejected=True)
    store.give_up(0)
    before = store.interaction(BAD)
    store.redrive()
    store.open_stream(claimed := store.claim(), TERMS)
    opened = store.open_items(claimed, TERMS, [request(index) for index in range(COUNT)])
    assert [item.opened for item in opened.items] == [Opened.SENT, Opened.ANSWERED, Opened.ATTACHED]
    assert store.interaction(BAD) == before


def test_an_answer_that_comes_all_the_same_is_late_and_kept(store: Sender) -> None:
    store.live(TERMS, COUNT)
    taken(store)
    store.give_up(BAD, rejected=True)
    before = store.interaction(BAD)
    assert store.answer(BAD).verdict is Verdict.ENDED
    assert store.interaction(BAD) == before
    assert [one.interaction_id for one in store.records.values() if isinstance(one, LateRecord)] == [
        before.interaction_id
    ]


def test_an_execution_that_is_the_item_itself_fails(store: Sender) -> None:
    store.parked_scalar(TERMS)
    taken(store)
    assert store.item_of(store.interaction()) is None
    store.give_up(rejected=True)
    assert store.interaction().status is InteractionStatus.FAILED
    assert store.execution().terminal_reason is TerminalReason.AWAIT_FAILED


def test_a_child_that_asks_goes_on_with_nothing(store: Sender) -> None:
    store.parked_items(TERMS, 1)
    store.answer(0)
    unit = f"{child(0)}.s002"
    store.park_scalar(store.claim(child(0)), INNER)
    store.take(store.interaction(0, unit))
    asked = store.interaction(0, unit)
    found = store.item_of(asked)
    assert found is not None
    assert found.execution_id == child(0)
    ended = store.give_up(seen=asked, rejected=True)
    assert (ended.verdict, ended.due) == (Verdict.REJECTED, (child(0),))
    assert store.unit(unit).status is UnitStatus.COMPLETED
    released = store.execution(child(0))
    assert (released.status, released.input) == (ExecutionStatus.QUEUED, NOTHING)
    run(store, 0)
    assert store.execution(child(0)).status is ExecutionStatus.SUCCEEDED
    assert FactType.COMPLETION_ADMITTED not in {fact.type for fact in store.facts}


def test_a_child_that_is_taken_up_again_does_not_ask_again(store: Sender) -> None:
    store.parked_items(TERMS, 1)
    store.answer(0)
    unit = f"{child(0)}.s002"
    claimed = store.claim(child(0))
    store.park_scalar(claimed, INNER)
    store.take(store.interaction(0, unit))
    store.put_status(ExecutionStatus.QUEUED, child(0), next_check_epoch_ms=store.now)
    store.give_up(seen=store.interaction(0, unit), rejected=True)
    store.park_scalar(store.claim(child(0)), INNER)
    again = store.execution(child(0))
    assert (again.status, again.input) == (ExecutionStatus.QUEUED, NOTHING)


def test_nothing_is_rejected_that_is_answered_or_over_or_on_its_way_again(store: Sender) -> None:
    store.live(TERMS, COUNT)
    taken(store)
    answered, late, over = store.interactions()
    assert store.item_of(answered) == store.execution()
    store.answer(0)
    assert store.item_of(answered) is None
    store.now += 35_000
    store.expire(1)
    store.take(store.interaction(1))
    assert store.item_of(late) is None
    assert store.give_up(seen=late, rejected=True).verdict is Verdict.NOT_DUE
    store.put_status(ExecutionStatus.CANCELLED)
    assert store.item_of(over) is None
    assert store.give_up(2, rejected=True).verdict is Verdict.ENDED
    assert store.interaction(2).status is InteractionStatus.CANCELLED
