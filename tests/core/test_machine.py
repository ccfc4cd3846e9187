"""Random histories: claims by many, stale owners, answers, deadlines, cancels, re-drives, a clock that jumps.

Whatever happened, the invariants hold after every step, and from every state on an execution that is re-driven into a
world where all goes well gets to its end with every item once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.applier import request
from tests.core.world import ASKED, BLOCK_SIZE, END, INNER, ITEM_COUNT, ITEMS, STREAM, WAKES_UP, World
from tpfd.core import itemised
from tpfd.core.events import (
    AttemptEvent,
    Break,
    Cancel,
    Complete,
    DeadLetterSent,
    Defer,
    Fail,
    HandBack,
    LoseOutcome,
    Redrive,
    Renew,
)
from tpfd.core.execution import Transition
from tpfd.core.records import ExecutionRecord, ExecutionStatus, UnitStatus

S = ExecutionStatus
MAKE: dict[str, Callable[[int], AttemptEvent]] = {
    "renew": lambda fence: Renew(fence=fence),
    "fail": lambda fence: Fail(fence=fence, code="c", message="m", retryable=False),
    "retry": lambda fence: Fail(fence=fence, code="c", message="m", retryable=True, draw=0.5),
    "break": lambda fence: Break(fence=fence, message="m"),
    "hand back": lambda fence: HandBack(fence=fence, reason="drain"),
    "lose": lambda fence: LoseOutcome(fence=fence, message="m"),
    "defer": lambda fence: Defer(fence=fence, code="c", message="m", not_before_epoch_ms=0),
}


T = TypeVar("T")


def _one_of(data: st.DataObject, found: Sequence[T]) -> T:
    """Drawn by its number, so that a failing history can be read."""
    return found[data.draw(st.integers(0, len(found) - 1))]


class Machine(RuleBasedStateMachine):
    """One world, any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.claimed: list[ExecutionRecord] = []
        self.dead_letters: list[ExecutionRecord] = []

    @initialize(
        start=st.sampled_from(["new", "live", "parked", "parked", "parked"]),
        answered=st.integers(0, len(ASKED)),
        steps=st.lists(st.integers(0, 4), min_size=ITEM_COUNT, max_size=ITEM_COUNT),
        broken=st.booleans(),
    )
    def somewhere_on_its_way(self, start: str, answered: int, steps: list[int], broken: bool) -> None:
        """Random events alone would seldom get far: some items are answered, some of their children got on."""
        it = self.world
        if start == "new":
            return
        it.attempt(it.claim())
        it.answer(0, unit="e1.s001")
        self.claimed.append(it.claim())
        it.open_stream(it.root, ITEMS)
        it.open_items(it.root, ITEMS, [request(index) for index in ASKED])
        for item in ASKED[:answered]:
            it.answer(item, unit=STREAM)
        if start == "live":
            return
        it.park_items(it.root, ITEM_COUNT, STREAM)
        it.continue_all(STREAM)
        for child, count in zip(it.children(STREAM), steps, strict=False):
            for _ in range(count):
                it.go_on(it.execution(child.execution_id))
        names = [child.execution_id for child in it.children(STREAM) if child.status in WAKES_UP]
        self.claimed.extend(it.claims(*names).records)
        if broken and names:
            it.fail(names[0])

    def _owned(self, claimed: ExecutionRecord) -> bool:
        now = self.world.execution(claimed.execution_id)
        return now.status is S.RUNNING and now.fence == claimed.fence

    def _draw_claim(self, data: st.DataObject) -> ExecutionRecord:
        """One that holds its fence, or, more seldom, anybody who ever held one."""
        owners = [claimed for claimed in self.claimed if self._owned(claimed)]
        old = not owners or data.draw(st.integers(0, 3), "old") == 0
        return _one_of(data, self.claimed if old else owners)

    @rule(by_ms=st.sampled_from([1, 999, 9_000, 31_000, 61_000, -5_000, -61_000]))
    def time_passes(self, by_ms: int) -> None:
        self.world.now += by_ms

    @rule(data=st.data(), witnessed=st.booleans())
    def claim(self, data: st.DataObject, witnessed: bool) -> None:
        names = [record.execution_id for record in self.world.executions() if record.status in WAKES_UP]
        if names:
            chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
            seen = dict.fromkeys(chosen, witnessed)
            self.claimed.extend(self.world.claims(*chosen, witnessed=seen).records)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), live_end=st.booleans())
    def run_a_segment(self, data: st.DataObject, live_end: bool) -> None:
        claimed = self._draw_claim(data)
        owned = self._owned(claimed)
        landed = self.world.attempt(self.world.execution(claimed.execution_id) if owned else claimed, live_end=live_end)
        assert owned or not landed, "an old owner committed"

    @precondition(lambda self: self.world.children(STREAM))
    @rule(data=st.data())
    def a_child_gets_on(self, data: st.DataObject) -> None:
        """It is claimed, runs to its end or its own await, which is answered."""
        child = _one_of(data, self.world.children(STREAM))
        for _ in range(data.draw(st.integers(1, 3))):
            self.world.go_on(self.world.execution(child.execution_id))

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), what=st.sampled_from(sorted(MAKE)))
    def an_attempt_says(self, data: st.DataObject, what: str) -> None:
        claimed = self._draw_claim(data)
        owned = self._owned(claimed)
        landed = self.world.act(claimed, MAKE[what](claimed.fence))
        assert landed == owned

    @precondition(lambda self: self.world.interactions())
    @rule(data=st.data(), response=st.sampled_from(["yes", "yes", "no"]))
    def an_answer_comes(self, data: st.DataObject, response: str) -> None:
        one = _one_of(data, self.world.interactions())
        self.world.answer(one.item_index, response, one.unit_id)

    @precondition(lambda self: self.world.interactions())
    @rule(data=st.data())
    def somebody_looks_at_a_deadline(self, data: st.DataObject) -> None:
        one = _one_of(data, self.world.interactions())
        self.world.expire(one.item_index, one.unit_id)

    @rule(all_of_it=st.booleans())
    def a_sweep_comes_by(self, all_of_it: bool) -> None:
        self.world.sweep_units()
        if all_of_it:
            self.world.sweep_interactions()

    @precondition(lambda self: any(unit.itemised for unit in self.world.units()))
    @rule()
    def one_page_is_scanned(self) -> None:
        self.world.continue_page(STREAM)

    @rule(data=st.data(), seldom=st.integers(0, 9))
    def cancel(self, data: st.DataObject, seldom: int) -> None:
        """Of the root seldom: nothing comes back from that."""
        found = [record.execution_id for record in self.world.executions() if record.parent_execution_id is not None]
        if seldom == 0 or (seldom < 4 and found):
            name = "e1" if seldom == 0 else data.draw(st.sampled_from(found))
            self.world.commit(Cancel(reason="r", actor="a"), name)

    @rule(data=st.data(), stale=st.booleans())
    def redrive(self, data: st.DataObject, stale: bool) -> None:
        record = _one_of(data, self.world.executions())
        event = Redrive(
            expected_version=record.version - stale, reason="r", actor="a", allow_failed=True, confirmed_stopped=True
        )
        landed = isinstance(self.world.commit(event, record.execution_id).outcome, Transition)
        assert not (stale and landed)

    @precondition(lambda self: self.world.root.status in (S.FAILED, S.DLQ))
    @rule()
    def redrive_the_root(self) -> None:
        self.world.redrive()

    @rule(data=st.data(), finish=st.booleans())
    def clean_up(self, data: st.DataObject, finish: bool) -> None:
        record = _one_of(data, self.world.executions())
        if finish:
            self.world.tidy()
        elif record.cleanup_due:
            self.world.clean_up_some(record)

    @rule(data=st.data())
    def a_dead_letter_is_sent(self, data: st.DataObject) -> None:
        """The publisher tells of the end it has sent, perhaps much later."""
        due = [record for record in self.world.executions() if record.dead_letter_due]
        self.dead_letters.extend(due)
        if self.dead_letters:
            sent = _one_of(data, self.dead_letters)
            now = self.world.execution(sent.execution_id)
            outcome = self.world.commit(DeadLetterSent(redrive_count=sent.redrive_count), sent.execution_id).outcome
            assert isinstance(outcome, Transition) == (now.dead_letter_due and now.redrive_count == sent.redrive_count)

    @invariant()
    def nothing_is_lost_doubled_or_forgotten(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """From here on all goes well."""
        it = self.world
        it.settle()
        for _ in range(2):
            # Re-driven before the clean-up, it may meet the deadline of a child's await from before; not a second time.
            if it.root.status in (S.FAILED, S.DLQ):
                it.redrive()
                it.settle()
        it.check()
        assert it.root.status in (S.SUCCEEDED, S.CANCELLED)
        it.tidy()
        if it.root.status is S.CANCELLED:
            assert not [one for one in it.interactions() if one.status.open]
            assert not [unit for unit in it.units() if unit.status is UnitStatus.WAITING_EXTERNAL]
            assert not [record for record in it.executions() if not record.status.terminal]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five items in blocks of two, scanned two at a time: every border is near."""
    monkeypatch.setattr(itemised, "BLOCK_SIZE", BLOCK_SIZE)
    monkeypatch.setattr(itemised, "CONTINUE_PAGE", 2)


def test_any_history_keeps_the_invariants_and_can_be_brought_to_an_end() -> None:
    run: Any = Machine.TestCase
    run.settings = settings(
        max_examples=300, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run("runTest").runTest()


def test_the_world_gets_to_its_end_undisturbed() -> None:
    it = World()
    it.settle()
    assert it.root.status is S.SUCCEEDED
    assert it.root.step_index == END
    assert [child.status for child in it.children(STREAM)] == [S.SUCCEEDED] * ITEM_COUNT
    inner = [one for one in it.interactions() if one.step_id == INNER.step_id]
    assert len(inner) == len(ASKED)
    assert it.commit(Complete(fence=it.root.fence, result=None)).record is None
