"""What an attempt opens towards the outside, and how a second run of it finds everything again."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.core.applier import START, TENANT, Applier, await_terms, request
from tpfd.core.awaits import Request
from tpfd.core.budget import Place
from tpfd.core.dispatching import Opened
from tpfd.core.events import Complete
from tpfd.core.execution import Refused
from tpfd.core.kinds import INTERACTION_HELD, SOCKET, queue_partition
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    InteractionStatus,
    JsonText,
    SocketRecord,
    UnitRecord,
    UnitStatus,
)

TERMS = await_terms()


def opened(store: Applier, claimed: ExecutionRecord, *indexes: int, sockets: tuple[str, ...] = ()) -> list[Opened]:
    for name in sockets:
        socket = SocketRecord(
            tenant_id=TENANT, socket_id=name, pipeline_id="p", node="a", version=1, expires_epoch_ms=store.now
        )
        store.records[SOCKET.key_of(socket)] = socket
    requests = [request(index) for index in indexes]
    places = [Place(SOCKET.key(TENANT, name)) for name in sockets]
    return [item.opened for item in store.open_items(claimed, TERMS, requests, tuple(places)).items]


def taken_over(store: Applier) -> ExecutionRecord:
    """The lease ran out and somebody else has it."""
    store.now = store.execution().next_check_epoch_ms or 0
    return store.claim()


# ── the unit ──


def test_the_first_attempt_opens_the_unit_and_names_it() -> None:
    store = Applier()
    store.new()
    unit = store.open_stream(store.claim(), TERMS)
    assert isinstance(unit, UnitRecord)
    assert (unit.status, unit.itemised, unit.dispatch_complete) == (UnitStatus.WAITING_EXTERNAL, True, False)
    assert (unit.expected_item_count, unit.primary_interaction_id, unit.next_check_epoch_ms) == (None, None, None)
    assert store.execution().await_unit_id == unit.unit_id
    assert store.execution().status is ExecutionStatus.RUNNING


def test_opening_again_writes_nothing() -> None:
    store = Applier()
    claimed = store.live(TERMS, 0)
    before = dict(store.records)
    assert store.open_stream(claimed, TERMS) == store.unit()
    assert store.records == before


def test_an_old_owner_opens_nothing() -> None:
    store = Applier()
    old = store.live(TERMS, 1)
    taken_over(store)
    before = dict(store.records)
    outcome = store.open_stream(old, TERMS)
    refused = store.open_items(old, TERMS, [request(1)]).refused
    assert isinstance(outcome, Refused)
    assert refused is not None
    assert outcome.code == refused.code == "lost_lease"
    assert store.records == before


def test_a_redriven_execution_opens_its_unit_again() -> None:
    store = Applier()
    store.live(TERMS, 1)
    store.now = store.interaction(0).deadline_epoch_ms
    store.expire(0)
    store.fail()
    store.redrive()
    unit = store.open_stream(store.claim(), TERMS)
    assert isinstance(unit, UnitRecord)
    assert (unit.status, unit.redrive_count) == (UnitStatus.WAITING_EXTERNAL, 1)


# ── its items ──


def test_new_items_go_to_sockets_with_a_place_and_the_rest_into_the_queue() -> None:
    store = Applier()
    claimed = store.live(TERMS, 0)
    assert opened(store, claimed, 0, 1, 2, sockets=("s1", "s2")) == [Opened.SENT] * 3
    records = [store.interaction(index) for index in range(3)]
    assert [record.delivery for record in records] == ["s1", "s2", None]
    assert [record.send_count for record in records] == [1, 1, 0]
    assert [record.status for record in records] == [
        InteractionStatus.DISPATCHED,
        InteractionStatus.DISPATCHED,
        InteractionStatus.WAITING,
    ]
    held = [entry.partition for record in records if (entry := INTERACTION_HELD.entry(record)) is not None]
    assert held == ["s1", "s2", queue_partition(records[0].tenant_id, "p", "c", "approve")]


def test_a_second_attempt_attaches_hands_on_and_asks_only_what_is_new() -> None:
    store = Applier()
    store.live(TERMS, 2)
    store.answer(1)
    again = taken_over(store)
    before = store.interaction(0), store.interaction(1)
    assert opened(store, again, 0, 1, 2, sockets=("s1",)) == [Opened.ATTACHED, Opened.ANSWERED, Opened.SENT]
    assert (store.interaction(0), store.interaction(1)) == before
    assert store.interaction(2).delivery == "s1", "places are for what is sent"


def test_one_changed_item_stops_its_whole_page() -> None:
    store = Applier()
    store.live(TERMS, 1)
    again = taken_over(store)
    before = dict(store.records)
    page = [request(1), Request(0, JsonText('"other"'), "another digest")]
    items = store.open_items(again, TERMS, page).items
    assert [item.opened for item in items] == [Opened.SENT, Opened.CHANGED]
    assert store.records == before


def test_an_item_that_was_answered_must_not_change_either() -> None:
    store = Applier()
    store.live(TERMS, 1)
    store.answer(0)
    (item,) = store.open_items(taken_over(store), TERMS, [Request(0, JsonText("1"), "another digest")]).items
    assert item.opened is Opened.CHANGED


def test_an_item_that_ended_in_this_drive_is_told() -> None:
    store = Applier()
    claimed = store.live(TERMS, 1)
    store.write(evolve(store.interaction(0), status=InteractionStatus.FAILED, version=2))
    assert opened(store, claimed, 0) == [Opened.ENDED]


def test_nothing_is_opened_in_an_ended_unit() -> None:
    store = Applier()
    claimed = store.live(TERMS, 1)
    store.now = store.interaction(0).deadline_epoch_ms
    store.expire(0)
    refused = store.open_items(claimed, TERMS, [request(1)]).refused
    assert refused is not None
    assert refused.code == "await_timeout"


def test_two_equal_rows_stay_two() -> None:
    store = Applier()
    claimed = store.live(TERMS, 0)
    assert opened(store, claimed, 16, 17) == [Opened.SENT, Opened.SENT]
    assert store.interaction(16).idempotency_key != store.interaction(17).idempotency_key


def test_the_idempotency_key_survives_take_over_and_redrive() -> None:
    store = Applier()
    store.live(TERMS, 1)
    key = store.interaction(0).idempotency_key
    store.now = store.interaction(0).deadline_epoch_ms
    store.expire(0)
    store.fail()
    store.redrive()
    claimed = store.claim()
    store.open_stream(claimed, TERMS)
    assert opened(store, claimed, 0) == [Opened.SENT]
    assert store.interaction(0).idempotency_key == key == "t1:e1:approve:0"


@pytest.mark.parametrize("business_key", ["", "order-7"])
def test_a_declared_business_key_is_part_of_it(business_key: str) -> None:
    store = Applier()
    claimed = store.live(TERMS, 0)
    store.open_items(claimed, TERMS, [Request(0, JsonText("1"), "d", business_key)])
    assert store.interaction(0).idempotency_key.endswith(business_key or "approve:0")


# ── re-drive of a live stream ──


def _redriven(store: Applier) -> ExecutionRecord:
    """The live execution fails and is re-driven, before any clean-up comes by; its stream is open again."""
    store.now += 30_000
    store.fail()
    store.redrive()
    claimed = store.claim()
    store.open_stream(claimed, TERMS)
    return claimed


def test_what_is_still_out_after_a_redrive_stays_out_and_gets_a_new_deadline() -> None:
    store = Applier()
    store.live(TERMS, 0)
    opened(store, store.execution(), 0, sockets=("s1",))
    claimed = _redriven(store)
    assert opened(store, claimed, 0, sockets=("s2",)) == [Opened.ATTACHED]
    record = store.interaction(0)
    assert (record.delivery, record.send_count, record.redrive_count) == ("s1", 1, 1)
    assert record.deadline_epoch_ms == record.next_check_epoch_ms == store.now + TERMS.timeout_ms


def test_a_deadline_from_before_the_redrive_does_not_end_it() -> None:
    """The source has not come to the item again; its old deadline passes meanwhile."""
    store = Applier()
    store.live(TERMS, 1)
    _redriven(store)
    store.now = START + TERMS.timeout_ms
    store.expire(0)
    record = store.interaction(0)
    assert (record.status.open, record.redrive_count) == (True, 0)
    assert record.deadline_epoch_ms == record.next_check_epoch_ms == store.now + TERMS.timeout_ms
    assert store.unit().status is UnitStatus.WAITING_EXTERNAL


def test_an_answer_behind_the_old_deadline_counts_after_a_redrive() -> None:
    store = Applier()
    store.live(TERMS, 1)
    claimed = _redriven(store)
    store.now = START + TERMS.timeout_ms
    store.answer(0)
    assert opened(store, claimed, 0) == [Opened.ANSWERED]


def test_a_cancelled_item_is_asked_again_after_a_redrive() -> None:
    store = Applier()
    store.live(TERMS, 1)
    store.write(evolve(store.interaction(0), status=InteractionStatus.CANCELLED, version=2, next_check_epoch_ms=None))
    store.write(evolve(store.unit(), status=UnitStatus.CANCELLED, version=2))
    claimed = _redriven(store)
    assert opened(store, claimed, 0, sockets=("s1",)) == [Opened.SENT]
    assert store.interaction(0).delivery == "s1"
    assert store.interaction(0).status is InteractionStatus.DISPATCHED


def test_a_live_success_completes_the_unit() -> None:
    store = Applier()
    claimed = store.live(TERMS, 1)
    store.answer(0)
    done = store.commit(Complete(fence=claimed.fence, result=None)).record
    assert done is not None
    assert (done.status, done.cleanup_due) == (ExecutionStatus.SUCCEEDED, False)
    assert store.unit().status is UnitStatus.COMPLETED
