"""Batches by number and by bytes, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.aws.sqs_batches import BATCH_COUNT, in_batches


@pytest.mark.parametrize(
    ("sizes", "batches", "too_large"),
    [
        ([], (), ()),
        ([1], ((0,),), ()),
        ([100], ((0,),), ()),
        ([101], (), (0,)),
        ([50, 50, 1], ((0, 1), (2,)), ()),
        ([60, 60, 40], ((0,), (1, 2)), ()),
        ([1, 101, 1], ((0, 2),), (1,)),
        ([1] * 11, (tuple(range(10)), (10,)), ()),
    ],
)
def test_batches(sizes: list[int], batches: tuple[tuple[int, ...], ...], too_large: tuple[int, ...]) -> None:
    made = in_batches(sizes, 100)
    assert (made.batches, made.too_large) == (batches, too_large)


@pytest.mark.parametrize(("limit", "batch_count"), [(262_144, 2), (1_048_576, 1)])
def test_a12_ten_messages_of_which_two_are_large_are_split_by_bytes(limit: int, batch_count: int) -> None:
    sizes = [100, 200_000, *[100] * 4, 200_000, *[100] * 3]
    made = in_batches(sizes, limit)
    assert len(made.batches) == batch_count
    assert [place for batch in made.batches for place in batch] == list(range(10))
    assert all(sum(sizes[place] for place in batch) <= limit for batch in made.batches)


@given(st.lists(st.integers(min_value=0, max_value=150)))
def test_every_message_stands_once_in_order_and_no_batch_is_too_much(sizes: list[int]) -> None:
    made = in_batches(sizes, 100)
    flat = [place for batch in made.batches for place in batch]
    assert flat == sorted(flat)
    assert sorted((*flat, *made.too_large)) == list(range(len(sizes)))
    assert all(sizes[place] > 100 for place in made.too_large)
    for batch in made.batches:
        assert 0 < len(batch) <= BATCH_COUNT
        assert sum(sizes[place] for place in batch) <= 100
    for one, following in zip(made.batches, made.batches[1:], strict=False):
        assert len(one) == BATCH_COUNT or sum(sizes[place] for place in one) + sizes[following[0]] > 100
