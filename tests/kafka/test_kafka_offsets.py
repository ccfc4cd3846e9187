"""Offsets: only what lies before a gap counts, and only in the turn in which it was received."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from tpfd.transports.kafka_offsets import Mark, Offsets, Partition

P = Partition("t", 0)
Q = Partition("t", 1)


def received(offsets: Offsets, *numbers: int, partition: Partition = P) -> list[Mark]:
    marks = [offsets.received(partition, number) for number in numbers]
    return [mark for mark in marks if mark is not None]


def test_a_gap_holds_the_prefix_back() -> None:
    offsets = Offsets()
    offsets.assigned(P)
    first, second, third = received(offsets, 7, 8, 12)
    offsets.done(second)
    offsets.done(third)
    assert offsets.reached() == {}
    offsets.done(first)
    assert offsets.reached() == {P: 13}, "numbers that no message has are no gap"


def test_partitions_do_not_meet() -> None:
    offsets = Offsets()
    for partition in (P, Q):
        offsets.assigned(partition)
    received(offsets, 0)
    (mark,) = received(offsets, 0, partition=Q)
    offsets.done(mark)
    assert offsets.reached() == {Q: 1}


def test_what_was_received_before_a_partition_went_means_nothing_when_it_is_back() -> None:
    offsets = Offsets()
    offsets.assigned(P)
    old = received(offsets, 0, 1)
    offsets.done(old[0])
    assert offsets.taken_away(P) == 1
    assert received(offsets, 2) == []
    offsets.assigned(P)
    (again,) = received(offsets, 1)
    offsets.done(old[1])
    assert offsets.reached() == {}
    offsets.done(again)
    assert offsets.reached() == {P: 2}


def test_a_partition_that_never_was_here_is_taken_away_without_harm() -> None:
    assert Offsets().taken_away(P) is None


@hypothesis.given(st.permutations(range(12)), st.integers(0, 12))
def test_in_any_order_exactly_the_prefix_is_reached(order: list[int], count: int) -> None:
    offsets = Offsets()
    offsets.assigned(P)
    marks = received(offsets, *range(12))
    for number in order[:count]:
        offsets.done(marks[number])
    prefix = 0
    while prefix in order[:count]:
        prefix += 1
    assert offsets.reached() == ({P: prefix} if prefix else {})
