"""Arithmetic: waits between runs, leases and what a would-be taker saw of them, ids that sort."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.applier import START, TENANT, Applier
from tpfd.core import ids
from tpfd.core.events import Claim, Complete, ExecutionPolicy, Renew
from tpfd.core.execution import Refused, Transition, apply
from tpfd.core.lease import Witness, renew_after_ms, trust_ms
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus, UnitId
from tpfd.core.retry import Backoff

PLAIN = Backoff(1_000, 2.0, 60_000, 0.0)


# ── waits ──


@pytest.mark.parametrize(
    ("attempt", "delay_ms"), [(0, 1_000), (1, 1_000), (2, 2_000), (6, 32_000), (7, 60_000), (8, 60_000)]
)
def test_the_wait_grows_up_to_its_cap(attempt: int, delay_ms: int) -> None:
    assert PLAIN.delay_ms(attempt, 0.0) == delay_ms


@pytest.mark.parametrize("attempt", [1023, 1024, 1025, 10**6, 10**400])
@pytest.mark.parametrize(
    ("backoff", "delay_ms"),
    [
        (PLAIN, 60_000),
        (Backoff(1_000, 1.0, 60_000, 0.0), 1_000),
        (Backoff(0, 2.0, 60_000, 0.0), 0),
        (Backoff(1_000, 2, 60_000, 0.0), 60_000),
    ],
    ids=["doubling", "constant", "none", "whole multiplier"],
)
def test_no_attempt_is_too_high(backoff: Backoff, attempt: int, delay_ms: int) -> None:
    assert backoff.delay_ms(attempt, 0.0) == delay_ms


@given(
    st.integers(0, 10**6),
    st.floats(1.0, 10.0),
    st.integers(0, 10**8),
    st.floats(0.0, 1.0),
    st.integers(1, 5_000),
    st.floats(0.0, 1.0, exclude_max=True),
    st.integers(0, 10**7),
)
def test_the_wait_stays_between_floor_and_spread_cap(
    base: int, multiplier: float, cap: int, jitter: float, attempt: int, draw: float, floor: int
) -> None:
    delay_ms = Backoff(base, multiplier, cap, jitter).delay_ms(attempt, draw, floor)
    assert max(floor, min(base, cap)) <= delay_ms + 1
    assert floor <= delay_ms <= max(cap, floor) * (1 + jitter) + 1


def test_a07_what_failed_together_does_not_come_back_together() -> None:
    backoff = Backoff(60_000, 1.0, 60_000, 0.2)
    draw = random.Random(7)
    waits = [backoff.delay_ms(1, draw.random(), 60_000) for _ in range(500)]
    assert min(waits) >= 60_000
    assert max(waits) < 72_000
    assert max(Counter(wait // 1000 for wait in waits).values()) <= 75


# ── leases ──


@pytest.mark.parametrize(("lease_ms", "trusted_ms"), [(30_000, 27_000), (5_000, 4_000), (1_500, 1_000), (90, 60)])
def test_an_owner_trusts_its_lease_less_long_than_it_lasts(lease_ms: int, trusted_ms: int) -> None:
    assert trust_ms(lease_ms) == trusted_ms
    assert renew_after_ms(lease_ms) < trusted_ms


def test_a_witness_wants_the_lease_unmoved_for_half_its_length() -> None:
    witness = Witness()

    def look(at_ms: float, fence: int = 1, expires: int = 100, name: str = "e") -> bool:
        return witness.unmoved(ExecutionId(name), fence, expires, lease_ms=1_000, at_ms=at_ms)

    assert not look(0)
    assert not look(499)
    assert look(500)
    assert not look(501, expires=200), "it was renewed"
    assert not look(1_000, fence=2, expires=200), "it was taken over"
    assert look(1_500, fence=2, expires=200)
    witness.forget(ExecutionId("e"))
    assert not look(2_500, fence=2, expires=200)


def test_a_witness_forgets_the_oldest_and_never_grows() -> None:
    witness = Witness(capacity=2)
    for name in ("a", "b", "c"):
        witness.unmoved(ExecutionId(name), 1, 1, lease_ms=10, at_ms=0)
    assert not witness.unmoved(ExecutionId("a"), 1, 1, lease_ms=10, at_ms=99)
    assert witness.unmoved(ExecutionId("c"), 1, 1, lease_ms=10, at_ms=99)


class TwoHosts:
    """Two hosts whose wall clocks differ, one store; time moves on both alike."""

    def __init__(self, ahead_ms: int) -> None:
        self.policy = ExecutionPolicy(lease_ms=20_000, skew_ms=2_000)
        self.ahead_ms = ahead_ms
        self.at_ms = 0
        self.witness = Witness()
        self.record: ExecutionRecord = self._must(Claim(owner="one"), Applier().new())

    def _must(self, event: Claim | Renew, record: ExecutionRecord | None = None) -> ExecutionRecord:
        outcome = apply(record or self.record, event, START + self.at_ms, self.policy)
        assert isinstance(outcome, Transition)
        return outcome.record

    def renew(self) -> None:
        self.record = self._must(Renew(fence=self.record.fence))

    def two_tries(self) -> bool:
        """The host that runs ahead looks, and takes what it may."""
        seen = self.record
        witnessed = self.witness.unmoved(
            seen.execution_id,
            seen.fence,
            seen.lease_expires_epoch_ms or 0,
            lease_ms=self.policy.lease_ms,
            at_ms=self.at_ms,
        )
        claim = Claim(owner="two", witnessed=witnessed)
        outcome = apply(seen, claim, START + self.at_ms + self.ahead_ms, self.policy)
        if isinstance(outcome, Refused):
            return False
        self.record = outcome.record
        return True


@pytest.mark.parametrize("ahead_ms", [25_000, 86_400_000, -25_000])
def test_a03_a_clock_that_runs_ahead_cannot_take_a_lease_that_is_renewed(ahead_ms: int) -> None:
    hosts = TwoHosts(ahead_ms)
    for _ in range(100):
        hosts.at_ms += 1_000
        if hosts.at_ms % 5_000 == 0:
            hosts.renew()
        assert not hosts.two_tries()
    stopped_ms, fence = hosts.at_ms, hosts.record.fence
    while not hosts.two_tries():
        hosts.at_ms += 1_000
    assert hosts.at_ms - stopped_ms >= hosts.policy.lease_ms / 2
    assert hosts.record.fence == fence + 1


def test_a01_who_wakes_up_after_a_take_over_commits_nothing() -> None:
    hosts = TwoHosts(0)
    asleep = hosts.record
    hosts.two_tries()
    hosts.at_ms += 31_000
    assert hosts.two_tries()
    outcome = apply(hosts.record, Complete(fence=asleep.fence, result=None), START + hosts.at_ms, hosts.policy)
    assert isinstance(outcome, Refused)
    assert outcome.code == "lost_lease"
    assert hosts.record.status is ExecutionStatus.RUNNING


# ── ids ──


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1), st.integers(0, 2**80 - 1))
@example(1, 2, 2**80 - 1, 0)
def test_execution_ids_sort_by_time(first: int, second: int, bits: int, other_bits: int) -> None:
    one, two = ids.execution_id(first, bits), ids.execution_id(second, other_bits)
    assert len(one) == len(two) == 26
    if first != second:
        assert (one < two) == (first < second)
    else:
        assert (one == two) == (bits == other_bits)


@pytest.mark.parametrize("make", [ids.interaction_id, ids.child_id], ids=["interaction", "child"])
def test_what_hangs_on_a_unit_sorts_by_item(make: Callable[[UnitId, int], str]) -> None:
    unit = ids.unit_id(ExecutionId("e1"), 3)
    places = [0, 1, 9, 10, 255, 256, 999_999, ids.MAX_ITEMS - 1]
    made = [make(unit, place) for place in places]
    assert made == sorted(made)
    assert all(name.startswith(f"{unit}.") for name in made)
    assert len({len(name) for name in made}) == 1


def test_ids_of_one_thing_never_change_and_of_two_never_meet() -> None:
    unit = ids.unit_id(ExecutionId("e1"), 1)
    child = ids.child_id(unit, 7)
    names = {unit, child, ids.interaction_id(unit, 7), ids.unit_id(child, 2), ids.unit_id(ExecutionId("e1"), 2)}
    assert len(names) == 5
    assert ids.unit_id(ExecutionId("e1"), 1) == unit


def test_the_idempotency_key_does_not_know_of_attempts() -> None:
    assert ids.idempotency_key(TENANT, ExecutionId("e1"), "pay", 17) == "t1:e1:pay:17"
    assert ids.transition_key(ExecutionId("e1"), 2, 1, 9) == "e1:2:1:9"
