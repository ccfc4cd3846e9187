"""A parked stream after a re-drive: what was done is kept, what failed is taken up again, nothing counts twice."""

from __future__ import annotations

from tests.core.applier import Applier, await_terms, blocks, child_name, finish, request
from tpfd.core.events import Cancel
from tpfd.core.execution import Transition
from tpfd.core.kinds import BLOCK_SIZE
from tpfd.core.records import ExecutionStatus, InteractionStatus, TerminalReason, UnitStatus

TERMS = await_terms()
S = ExecutionStatus


def _redriven(store: Applier, count: int) -> None:
    """The parent fails with item 0's child, is re-driven and parked again."""
    store.claim(child_name(0))
    store.fail(child_name(0))
    _parked_again(store, count)


def _parked_again(store: Applier, count: int) -> None:
    store.redrive()
    assert isinstance(store.park_items(store.claim(), count), Transition)
    assert store.execution().status is S.WAITING_EXTERNAL


def test_a_redrive_takes_failed_children_up_again_and_keeps_the_others() -> None:
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(0)
    store.answer(1)
    finish(store, 1)
    done = store.execution(child_name(1))
    _redriven(store, 2)
    failed = store.execution(child_name(0))
    store.continue_all()
    again = store.execution(child_name(0))
    assert (again.status, again.redrive_count, again.fence) == (S.QUEUED, 1, failed.fence)
    assert (again.error_code, again.ttl_epoch_s, again.attempt) == (None, None, 0)
    assert store.execution(child_name(1)) == done
    finish(store, 0)
    assert blocks(store) == {0: 2}
    assert isinstance(store.release(), Transition)


def test_a_child_that_succeeds_after_its_parent_failed_still_counts() -> None:
    """It ends only once: if it did not count now, the parent would wait for it for ever after a re-drive."""
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(0)
    store.answer(1)
    store.claim(child_name(1))
    store.claim(child_name(0))
    store.fail(child_name(0))
    store.complete(child_name(1))
    assert store.unit().next_check_epoch_ms is None, "a unit that is over is not due"
    _parked_again(store, 2)
    store.continue_all()
    finish(store, 0)
    assert isinstance(store.release(), Transition)


def test_the_block_that_a_straggler_fills_is_not_due_before_the_unit_is_parked_again() -> None:
    store = Applier()
    store.parked_items(TERMS, BLOCK_SIZE + 1)
    for item in (0, BLOCK_SIZE):
        store.answer(item)
        store.claim(child_name(item))
    store.fail(child_name(0))
    store.complete(child_name(BLOCK_SIZE))
    unit = store.unit()
    assert (unit.status, unit.full_block_count, unit.next_check_epoch_ms) == (UnitStatus.FAILED, 1, None)


def test_a_child_that_fails_between_redrive_and_parking_does_not_fail_the_new_drive() -> None:
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(0)
    store.answer(1)
    store.claim(child_name(0))
    store.claim(child_name(1))
    store.fail(child_name(0))
    store.redrive()
    claimed = store.claim()
    store.fail(child_name(1))
    assert store.execution().status is S.RUNNING
    assert isinstance(store.park_items(claimed, 2), Transition)
    store.continue_all()
    assert [child.status for child in store.children()] == [S.QUEUED, S.QUEUED]


def test_a_redrive_asks_again_what_timed_out_and_gives_the_rest_a_new_deadline() -> None:
    store = Applier()
    store.parked_items(TERMS, 3)
    store.answer(2)
    store.now = store.interaction(0).deadline_epoch_ms
    store.expire(0)
    assert store.execution().terminal_reason is TerminalReason.AWAIT_TIMEOUT
    _parked_again(store, 3)
    # Its deadline from the first drive is over, and a sweep comes by before the scan does.
    store.expire(1)
    assert store.execution().status is S.WAITING_EXTERNAL
    store.continue_all()
    waiting = [store.interaction(item) for item in (0, 1)]
    assert [record.status for record in waiting] == [InteractionStatus.WAITING] * 2
    assert [record.deadline_epoch_ms for record in waiting] == [store.now + TERMS.timeout_ms] * 2
    assert store.interaction(2).status is InteractionStatus.COMPLETED
    assert [child.item_index for child in store.children()] == [2]
    for item in (0, 1):
        store.answer(item)
    finish(store, 0, 1, 2)
    assert isinstance(store.release(), Transition)


def test_deadlines_wait_until_a_redriven_execution_comes_to_its_items() -> None:
    """However long it stands in the queue: a deadline that ended an item now would leave it out for ever."""
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(0)
    store.claim(child_name(0))
    store.fail(child_name(0))
    store.redrive()
    for _ in range(3):
        store.now = store.interaction(1).deadline_epoch_ms
        store.expire(1)
        assert store.interaction(1).status.open
    assert isinstance(store.park_items(store.claim(), 2), Transition)
    store.continue_all()
    assert store.interaction(1).redrive_count == 1
    store.now = store.interaction(1).deadline_epoch_ms
    store.expire(1)
    assert store.execution().terminal_reason is TerminalReason.AWAIT_TIMEOUT


def test_the_scan_of_a_redrive_gives_open_items_a_new_deadline() -> None:
    store = Applier()
    store.parked_items(TERMS, 2)
    store.answer(0)
    store.now += TERMS.timeout_ms - 1
    _redriven(store, 2)
    store.continue_all()
    store.now += 1
    store.expire(1)
    assert store.execution().status is S.WAITING_EXTERNAL
    assert store.interaction(1).deadline_epoch_ms == store.now - 1 + TERMS.timeout_ms


def test_a_rejected_item_counts_once_over_a_redrive() -> None:
    store = Applier()
    claimed = store.live(TERMS, 0)
    store.open_items(claimed, TERMS, [request(0), request(2)])
    store.park_items(claimed, 3)
    store.answer(0)
    store.continue_all()
    _redriven(store, 3)
    store.continue_all()
    assert blocks(store) == {0: 1}
    store.answer(2)
    finish(store, 0, 2)
    assert isinstance(store.release(), Transition)


def test_a_child_that_is_taken_up_again_still_knows_what_it_asked() -> None:
    """It may end again before it comes to its question: the one from before is then still there to be cleaned up."""
    store = Applier()
    store.parked_items(TERMS, 1)
    store.answer(0)
    assert isinstance(store.park_scalar(store.claim(child_name(0)), await_terms(step_index=2)), Transition)
    asked = store.execution(child_name(0)).await_unit_id
    store.commit(Cancel(reason="a mistake", actor="ops"), child_name(0))
    _parked_again(store, 1)
    store.continue_all()
    assert store.execution(child_name(0)).status is S.QUEUED
    store.commit(Cancel(reason="another one", actor="ops"), child_name(0))
    ended = store.execution(child_name(0))
    assert (ended.await_unit_id, ended.cleanup_due) == (asked, True)
