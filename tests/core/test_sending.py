"""Requests that we send ourselves: who may send which when, and what becomes of those whose sender is gone."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.core.applier import TENANT, Applier, await_terms
from tpfd.core import admission, sending
from tpfd.core.admission import Ended, Verdict
from tpfd.core.kinds import INTERACTION, INTERACTION_DUE, INTERACTION_HELD, send_partition
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    InteractionRecord,
    InteractionStatus,
    TerminalReason,
    UnitStatus,
)
from tpfd.core.transact import Read

TERMS = await_terms(transport_type="webhook")
LEASE_MS = 35_000
WAITS = InteractionStatus.WAITING
QUEUE = send_partition("p", "c", "approve")


class Sender(Applier):
    """A store with a sender."""

    def take(self, *seen: InteractionRecord) -> tuple[InteractionRecord, ...]:
        return self.transact(sending.take_reads(seen), lambda found: sending.take(found, seen, LEASE_MS, self.now))

    def sent(self, seen: InteractionRecord) -> bool:
        return self.transact(
            (Read(INTERACTION.key_of(seen)),), lambda found: sending.mark_sent(found, seen, self.now)
        )

    def later(self, seen: InteractionRecord, wait_ms: int = 10_000) -> bool:
        return self.transact(
            (Read(INTERACTION.key_of(seen)),),
            lambda found: sending.mark_later(found, seen, self.now + wait_ms, "not now", self.now),
        )

    def give_up(
        self,
        item_index: int = 0,
        message: str = "gone for good",
        seen: InteractionRecord | None = None,
        *,
        rejected: bool = False,
    ) -> Ended:
        seen = seen or self.interaction(item_index)
        ended: Ended = self.transact(
            admission.reads(seen),
            lambda found: admission.fail(found, seen, message, self.now, self.policy, rejected=rejected),
        )
        return ended

    def item_of(self, seen: InteractionRecord) -> ExecutionRecord | None:
        """Who asks, if an item of it can be rejected alone."""
        found: ExecutionRecord | None = self.transact(
            admission.reads(seen), lambda snapshot: admission.item_of(snapshot, seen)
        )
        return found

    def queued(self) -> list[int]:
        """Items in the queue of the step."""
        entries = [(INTERACTION_HELD.entry(record), record) for record in self.interactions()]
        return sorted(record.item_index for entry, record in entries if entry is not None and entry.partition == QUEUE)


@pytest.fixture
def store() -> Sender:
    made = Sender()
    made.parked_scalar(TERMS)
    return made


def test_a_new_request_waits_in_the_queue_of_its_step_for_all_tenants(store: Sender) -> None:
    assert (store.interaction().status, store.queued()) == (WAITS, [0])
    entry = INTERACTION_HELD.entry(store.interaction())
    assert entry is not None
    assert TENANT not in entry.partition


def test_who_takes_it_has_the_lease_and_the_queue_has_it_no_more(store: Sender) -> None:
    (taken,) = store.take(store.interaction())
    assert taken == store.interaction()
    assert (taken.status, taken.send_count) == (InteractionStatus.DISPATCHING, 1)
    assert taken.dispatch_due_epoch_ms == taken.next_check_epoch_ms == store.now + LEASE_MS
    assert store.queued() == []


def test_only_one_takes_it(store: Sender) -> None:
    seen = store.interaction()
    assert len(store.take(seen)) == 1
    assert store.take(seen) == ()


def test_a_page_is_taken_together_and_without_what_is_gone() -> None:
    store = Sender()
    store.live(TERMS, 5)
    first, *others = store.interactions()
    store.take(first)
    store.answer(1)
    assert [record.item_index for record in store.take(first, *others)] == [2, 3, 4]


def test_nothing_is_taken_for_an_execution_that_has_ended(store: Sender) -> None:
    seen = store.interaction()
    store.put_status(ExecutionStatus.CANCELLED)
    assert store.take(seen) == ()


def test_what_was_sent_waits_for_its_answer_alone(store: Sender) -> None:
    (taken,) = store.take(store.interaction())
    assert store.sent(taken)
    record = store.interaction()
    assert (record.status, record.dispatch_due_epoch_ms) == (InteractionStatus.DISPATCHED, None)
    assert record.next_check_epoch_ms == record.deadline_epoch_ms
    assert store.queued() == []


def test_the_lease_of_a_sender_that_died_puts_it_back(store: Sender) -> None:
    store.take(store.interaction())
    store.now += LEASE_MS - 1
    assert not store.expire().queued
    store.now += 1
    ended = store.expire()
    assert (ended.queued, store.interaction().status, store.queued()) == (True, WAITS, [0])
    (again,) = store.take(store.interaction())
    assert again.send_count == 2


def test_a_sender_that_comes_back_late_notes_nothing(store: Sender) -> None:
    (late,) = store.take(store.interaction())
    store.now += LEASE_MS
    store.expire()
    before = store.interaction()
    assert not store.sent(late)
    assert not store.later(late)
    assert store.interaction() == before
    (again,) = store.take(before)
    assert not store.sent(late), "it is another's now"
    assert store.sent(again)


def test_an_answer_that_is_quicker_than_the_note_stands(store: Sender) -> None:
    (taken,) = store.take(store.interaction())
    store.answer()
    assert not store.sent(taken)
    assert not store.later(taken)
    assert store.interaction().status is InteractionStatus.COMPLETED
    assert store.execution().status is ExecutionStatus.QUEUED


def test_what_could_not_be_sent_is_due_again_at_its_time_and_says_why(store: Sender) -> None:
    (taken,) = store.take(store.interaction())
    assert store.later(taken, 10_000)
    record = store.interaction()
    assert (record.status, record.error_message) == (InteractionStatus.DISPATCHING, "not now")
    entry = INTERACTION_DUE.entry(record)
    assert entry is not None
    assert entry.sort == store.now + 10_000
    assert store.queued() == [], "it does not stand in the way of others"
    store.now += 10_000
    assert store.expire().queued
    (again,) = store.take(store.interaction())
    store.sent(again)
    assert store.interaction().error_message is None


def test_the_deadline_comes_first(store: Sender) -> None:
    (taken,) = store.take(store.interaction())
    store.later(taken, TERMS.timeout_ms + 1)
    assert store.interaction().next_check_epoch_ms == store.interaction().deadline_epoch_ms
    store.now = store.interaction().deadline_epoch_ms
    ended = store.expire()
    assert (ended.verdict, ended.queued) == (Verdict.TIMED_OUT, False)
    assert store.execution().terminal_reason is TerminalReason.AWAIT_TIMEOUT


def test_what_can_never_be_sent_ends_its_execution(store: Sender) -> None:
    store.take(store.interaction())
    ended = store.give_up()
    assert (ended.verdict, ended.unit_ended, ended.due) == (Verdict.ENDED, True, ("e1",))
    assert store.interaction().status is InteractionStatus.FAILED
    assert store.unit().status is UnitStatus.FAILED
    execution = store.execution()
    assert (execution.status, execution.terminal_reason) == (ExecutionStatus.FAILED, TerminalReason.AWAIT_FAILED)
    assert execution.error_message == "gone for good"
    assert execution.dead_letter_due
    assert execution.cleanup_due
    assert [fact.data["message"] for fact in store.facts if fact.type is FactType.DISPATCH_FAILED] == ["gone for good"]


def test_giving_up_what_was_answered_meanwhile_changes_nothing(store: Sender) -> None:
    store.take(store.interaction())
    store.answer()
    before = dict(store.records)
    assert store.give_up().verdict is Verdict.ENDED
    assert store.records == before


def test_one_item_that_can_never_be_sent_ends_the_unit_under_a_running_owner() -> None:
    store = Sender()
    store.live(TERMS, 3)
    store.take(*store.interactions())
    ended = store.give_up(1)
    assert (ended.unit_ended, ended.due) == (True, ())
    assert store.unit().status is UnitStatus.FAILED
    assert store.execution().status is ExecutionStatus.RUNNING, "its owner commits the failure under its fence"


def test_one_item_that_can_never_be_sent_ends_a_parked_parent() -> None:
    store = Sender()
    store.parked_items(TERMS, 3)
    store.take(*store.interactions())
    store.give_up(1)
    assert store.execution().terminal_reason is TerminalReason.AWAIT_FAILED
    assert store.interaction(0).status is InteractionStatus.DISPATCHING, "the clean-up takes the others"
    store.now += LEASE_MS
    assert not store.expire(0).queued
    assert store.interaction(0).status is InteractionStatus.CANCELLED


def test_a_re_drive_queues_it_again_under_the_same_key(store: Sender) -> None:
    store.take(store.interaction())
    before = store.interaction()
    store.give_up()
    store.redrive()
    store.park_scalar(store.claim(), TERMS)
    again = store.interaction()
    assert (again.status, store.queued(), again.error_message) == (WAITS, [0], None)
    assert evolve(again, version=0).idempotency_key == before.idempotency_key
    assert store.take(again)[0].send_count == before.send_count + 1


def test_a_sender_that_comes_back_late_ends_nothing(store: Sender) -> None:
    (late,) = store.take(store.interaction())
    store.now += LEASE_MS
    store.expire()
    (again,) = store.take(store.interaction())
    assert store.give_up(seen=late).verdict is Verdict.NOT_DUE
    assert store.interaction() == again, "it is on its way again, and that sending decides"
    assert store.give_up(seen=again).verdict is Verdict.ENDED
    assert store.interaction().status is InteractionStatus.FAILED
