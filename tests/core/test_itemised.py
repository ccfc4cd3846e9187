"""Parked streams: children for answered items, exact counts over blocks, one release, failures, re-drives."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.core.applier import Applier, await_terms, blocks, child_name, finish, request
from tpfd.core import itemised
from tpfd.core.events import Break, Cancel, LoseOutcome
from tpfd.core.execution import Refused, Transition
from tpfd.core.itemised import CONTINUE_PAGE, block_count, block_size, first_unfinished
from tpfd.core.kinds import BLOCK, BLOCK_SIZE, UNIT
from tpfd.core.records import (
    ExecutionStatus,
    FactType,
    Payload,
    TerminalReason,
    UnitStatus,
)

TERMS = await_terms()
S = ExecutionStatus


# ── sizes ──


@pytest.mark.parametrize(
    ("expected", "sizes"),
    [(0, []), (1, [1]), (255, [255]), (256, [256]), (257, [256, 1]), (513, [256, 256, 1])],
)
def test_blocks_cover_a_unit_exactly(expected: int, sizes: list[int]) -> None:
    assert BLOCK_SIZE == 256
    assert [block_size(expected, index) for index in range(block_count(expected))] == sizes


def test_a_page_of_children_is_looked_through_in_order() -> None:
    store = Applier()
    done = store.new("a", status=S.SUCCEEDED)
    running = store.new("b")
    assert first_unfinished([], 7) is None
    assert first_unfinished([done, done], 7) is None
    assert first_unfinished([done, running, None], 7) == 8
    assert first_unfinished([done, done, None], 7) == 9


# ── parking and the scan ──


def test_parking_makes_the_unit_due_and_starts_nothing() -> None:
    store = Applier()
    claimed = store.live(TERMS, 3)
    store.answer(1)
    assert isinstance(store.park_items(claimed, 3), Transition)
    unit = store.unit()
    assert (unit.dispatch_complete, unit.expected_item_count, unit.next_check_epoch_ms) == (True, 3, store.now)
    assert store.execution().status is S.WAITING_EXTERNAL
    assert store.children() == []


def test_what_was_answered_before_the_parking_is_found_by_the_scan() -> None:
    store = Applier()
    claimed = store.live(TERMS, 3)
    store.answer(1)
    store.park_items(claimed, 3)
    store.continue_all()
    (child,) = store.children()
    assert (child.execution_id, child.item_index, child.status) == (child_name(1), 1, S.QUEUED)
    assert (child.step_index, child.stop_index, child.next_check_epoch_ms) == (2, 3, store.now)
    assert child.input == Payload(type_name="Answer", json=store.interaction(1).response)
    assert (child.parent_execution_id, child.unit_id) == ("e1", "e1.s001")
    assert store.unit().next_check_epoch_ms is None


@pytest.mark.parametrize("scan_first", [True, False])
def test_an_answer_around_the_scan_gets_one_child_either_way(scan_first: bool) -> None:
    store = Applier()
    store.park_items(store.live(TERMS, 2), 2)
    if scan_first:
        store.continue_all()
    assert store.answer(0).due == (child_name(0),)
    store.continue_all()
    assert [child.item_index for child in store.children()] == [0]
    assert sum(fact.type is FactType.CONTINUATION_CREATED for fact in store.facts) == 1


def test_an_answer_to_a_live_stream_gets_no_child() -> None:
    store = Applier()
    store.live(TERMS, 1)
    assert store.answer(0).due == ()
    assert store.children() == []


def test_the_scan_goes_on_in_pages_and_can_be_taken_up_anywhere() -> None:
    count = 3 * CONTINUE_PAGE + 1
    store = Applier()
    claimed = store.live(TERMS, count)
    for item in range(count):
        store.answer(item)
    store.park_items(claimed, count)
    pages = 0
    while store.unit().next_check_epoch_ms is not None:
        pages += 1
        more = store.continue_page()
        assert more == (store.unit().scanned_index + 1 < count)
        assert len(store.children()) == store.unit().scanned_index + 1
    assert pages == 4
    assert [child.item_index for child in store.children()] == list(range(count))


def test_two_sweepers_on_one_page_make_one_child_each() -> None:
    store = Applier()
    claimed = store.live(TERMS, 1)
    store.answer(0)
    store.park_items(claimed, 1)
    seen = store.unit()
    store.continue_page()
    before = dict(store.records)
    again = store.transact(
        itemised.continue_reads(seen),
        lambda snapshot: itemised.continue_items(snapshot, UNIT.key_of(seen), seen, store.now),
    )
    assert again == store.unit(), "go on from how far it is"
    assert store.records == before


def test_the_scan_of_an_ended_execution_starts_nothing() -> None:
    store = Applier()
    claimed = store.live(TERMS, 1)
    store.answer(0)
    store.park_items(claimed, 1)
    store.commit(Cancel(reason="r", actor="a"))
    assert store.continue_page() is False
    assert store.children() == []
    assert store.unit().next_check_epoch_ms is None


# ── counting and release ──


def test_the_last_child_makes_the_unit_due_and_the_parent_is_released_once() -> None:
    store = Applier()
    store.parked_items(TERMS, 3)
    for item in range(3):
        store.answer(item)
    finish(store, 2, 0)
    assert store.unit().next_check_epoch_ms is None
    refused = store.release()
    assert isinstance(refused, Refused)
    assert refused.code == "not_full"
    store.claim(child_name(1))
    assert store.complete(child_name(1)).unit_due
    assert store.unit().next_check_epoch_ms == store.now
    outcome = store.release()
    assert isinstance(outcome, Transition)
    parent = store.execution()
    assert (parent.status, parent.step_index) == (S.QUEUED, 3)
    assert parent.input == Payload(type_name="Out", outputs_of=store.unit().unit_id, item_count=3)
    assert (store.unit().status, store.unit().next_check_epoch_ms) == (UnitStatus.COMPLETED, None)
    before = dict(store.records)
    assert isinstance(store.release(), Refused)
    assert store.records == before


def test_a_unit_whose_execution_is_over_does_not_become_due() -> None:
    store = Applier()
    store.parked_items(TERMS, 1)
    store.answer(0)
    store.claim(child_name(0))
    store.commit(Cancel(reason="r", actor="a"))
    assert not store.complete(child_name(0)).unit_due
    assert (store.unit().full_block_count, store.unit().next_check_epoch_ms) == (1, None)
    assert isinstance(store.release(), Refused)


def test_a_unit_that_gets_full_during_its_scan_stays_due_behind_it() -> None:
    count = CONTINUE_PAGE + 1
    store = Applier()
    store.parked_items(TERMS, count)
    for item in range(count):
        store.answer(item)
    finish(store, *range(1, count))
    store.claim(child_name(0))
    store.fail(child_name(0))
    store.redrive()
    store.park_items(store.claim(), count)
    assert store.continue_page() is True
    finish(store, 0)
    assert store.continue_page() is True
    assert store.unit().next_check_epoch_ms == store.now
    assert isinstance(store.release(), Transition)


def test_an_empty_unit_is_released_at_once() -> None:
    store = Applier()
    store.park_items(store.live(TERMS, 0), 0)
    assert store.continue_page() is True
    assert isinstance(store.release(), Transition)
    assert store.execution().input.item_count == 0


@pytest.mark.parametrize("expected", [BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 3])
def test_progress_over_several_blocks_is_exact(expected: int) -> None:
    """The unit's own row is written once per block, and only the very last child makes it full."""
    store = Applier()
    store.live(TERMS, 0)
    store.park_items(store.execution(), expected)
    # As if every item had been scanned before it was answered.
    unit = store.unit()
    store.write(evolve(unit, version=unit.version + 1, scanned_index=expected - 1, next_check_epoch_ms=None))
    version = store.unit().version
    order = [*range(expected - 1, -1, -2), *range(expected - 2, -1, -2)]
    for item in order:
        assert not itemised.is_full(store.unit())
        _child(store, item)
        due = store.complete(child_name(item)).unit_due
        assert due == (item == order[-1])
    assert itemised.is_full(store.unit())
    assert store.unit().version == version + block_count(expected)
    assert blocks(store) == {index: block_size(expected, index) for index in range(block_count(expected))}


def test_an_item_that_was_rejected_before_it_was_asked_counts_as_done_without_an_output() -> None:
    store = Applier()
    claimed = store.live(TERMS, 0)
    store.open_items(claimed, TERMS, [request(1), request(BLOCK_SIZE + 1)])
    store.answer(1)
    store.park_items(claimed, BLOCK_SIZE + 2)
    store.continue_all()
    assert blocks(store) == {0: BLOCK_SIZE - 1, 1: 1}
    skipped = [child for child in store.children() if child.item_index not in {1, BLOCK_SIZE + 1}]
    assert len(skipped) == BLOCK_SIZE
    assert {(child.status, child.result, child.next_check_epoch_ms) for child in skipped} == {(S.SUCCEEDED, None, None)}
    finish(store, 1)
    store.answer(BLOCK_SIZE + 1)
    finish(store, BLOCK_SIZE + 1)
    assert itemised.is_full(store.unit())
    # A second scan, after a re-drive, counts none of them twice.
    assert itemised.first_unfinished(store.children(), 0) is None
    store.continue_all()
    assert blocks(store) == {0: BLOCK_SIZE, 1: 2}
    assert isinstance(store.release(), Transition)


def test_a_unit_of_nothing_but_rejected_items_is_released() -> None:
    store = Applier()
    store.park_items(store.live(TERMS, 0), 3)
    assert store.continue_page() is True
    assert itemised.is_full(store.unit())
    assert isinstance(store.release(), Transition)


def _child(store: Applier, item: int) -> None:
    """A running child, without going through its interaction."""
    store.new(
        child_name(item),
        status=S.RUNNING,
        fence=1,
        parent_execution_id="e1",
        unit_id="e1.s001",
        item_index=item,
        next_check_epoch_ms=store.now,
    )


def test_two_ends_of_one_child_count_once() -> None:
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(0)
    finish(store, 0)
    assert isinstance(store.complete(child_name(0)).outcome, Refused)
    assert blocks(store) == {0: 1}


# ── failures ──


def test_a_childs_failure_fails_the_parked_parent_in_the_same_step() -> None:
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(1)
    store.claim(child_name(1))
    store.fail(child_name(1))
    parent = store.execution()
    assert (parent.status, parent.terminal_reason) == (S.FAILED, TerminalReason.AWAIT_FAILED)
    assert parent.error_code == "broken"
    assert "item 1" in (parent.error_message or "")
    assert (parent.dead_letter_due, parent.cleanup_due) == (True, True)
    assert store.unit().status is UnitStatus.FAILED
    assert store.execution(child_name(1)).dead_letter_due is False


@pytest.mark.parametrize("status", [S.CANCELLED, S.DLQ, S.FAILED])
def test_any_bad_end_of_a_child_is_a_real_failure(status: ExecutionStatus) -> None:
    store = Applier()
    store.parked_items(TERMS, 1)
    store.answer(0)
    child = store.claim(child_name(0))
    if status is S.CANCELLED:
        store.commit(Cancel(reason="r", actor="a"), child_name(0))
    elif status is S.FAILED:
        store.commit(Break(fence=child.fence, message="m"), child_name(0))
    else:
        store.put_status(S.RUNNING, child_name(0), worker_losses=5)
        store.now = child.next_check_epoch_ms or 0
        assert [record.status for record in store.claims(child_name(0)).ended] == [S.DLQ]
    assert store.execution(child_name(0)).status is status
    assert store.execution().status is S.FAILED


def test_a_child_whose_outcome_is_unknown_holds_the_parent() -> None:
    store = Applier()
    store.parked_items(TERMS, 1)
    store.answer(0)
    child = store.claim(child_name(0))
    store.commit(LoseOutcome(fence=child.fence, message="m"), child_name(0))
    assert store.execution().status is S.WAITING_EXTERNAL
    assert store.unit().status is UnitStatus.WAITING_EXTERNAL


def test_two_children_that_die_in_one_claim_pass_fail_the_parent_once() -> None:
    store = Applier()
    store.parked_items(TERMS, 300)
    names = [child_name(item) for item in (0, 299)]
    for item, name in zip((0, 299), names, strict=True):
        store.answer(item)
        store.claim(name)
        store.put_status(S.RUNNING, name, worker_losses=5)
    store.now = max(store.execution(name).next_check_epoch_ms or 0 for name in names)
    assert [record.execution_id for record in store.claims(*names).ended] == names[:1]
    assert store.execution().status is S.FAILED
    assert [record.execution_id for record in store.claims(*names).ended] == names[1:]
    assert [store.execution(name).status for name in names] == [S.DLQ, S.DLQ]


def test_a_dying_child_next_to_its_redriven_parent_in_one_claim_pass() -> None:
    """The parent's unit is read for the parent already; what the child needs beside it must still be read."""
    inner = await_terms(step_id="second", step_index=2, continue_index=3, suffix_stop_index=4)
    store = Applier()
    store.parked_items(await_terms(suffix_stop_index=4), 2)
    store.answer(0)
    store.answer(1)
    store.park_scalar(store.claim(child_name(1)), inner)
    store.answer(0, unit=f"{child_name(1)}.s002")
    store.claim(child_name(1))
    store.put_status(S.RUNNING, child_name(1), worker_losses=5)
    store.claim(child_name(0))
    store.fail(child_name(0))
    store.redrive()
    store.now = store.execution(child_name(1)).next_check_epoch_ms or 0
    claimed = store.claims("e1", child_name(1))
    assert [record.execution_id for record in claimed.records] == ["e1"]
    assert [record.execution_id for record in claimed.ended] == [child_name(1)]
    assert store.execution().status is S.RUNNING


def test_a_unit_that_ended_in_this_drive_is_not_parked_on() -> None:
    store = Applier()
    claimed = store.live(TERMS, 1)
    store.write(evolve(store.unit(), status=UnitStatus.FAILED, version=2))
    outcome = store.park_items(claimed, 1)
    assert isinstance(outcome, Transition)
    assert (outcome.record.status, outcome.record.terminal_reason) == (S.FAILED, TerminalReason.AWAIT_FAILED)


def test_a_block_is_kept_under_its_own_key() -> None:
    store = Applier()
    store.parked_items(TERMS, BLOCK_SIZE + 1)
    store.answer(BLOCK_SIZE)
    finish(store, BLOCK_SIZE)
    assert store.get(BLOCK.key(store.unit().tenant_id, "e1.s001.0000001")).continued_count == 1
