"""How messages go into batches: in order, by number and by encoded bytes."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

BATCH_COUNT = 10
"""Entries that one batch call of SQS takes."""


@frozen
class Batches:
    """Places in the sequence that was given.

    Attributes:
        batches: places that go together, in order; every batch fits the limit.
        too_large: places that fit no batch, alone neither.
    """

    batches: tuple[tuple[int, ...], ...]
    too_large: tuple[int, ...]


def in_batches(sizes_bytes: Sequence[int], limit_bytes: int) -> Batches:
    """Puts messages of these sizes into batches.

    Args:
        limit_bytes: the limit of one message and, at the same time, of the sum of one batch.
    """
    batches: list[tuple[int, ...]] = []
    too_large: list[int] = []
    current: list[int] = []
    filled_bytes = 0
    for place, size in enumerate(sizes_bytes):
        if size > limit_bytes:
            too_large.append(place)
            continue
        if current and (len(current) == BATCH_COUNT or filled_bytes + size > limit_bytes):
            batches.append(tuple(current))
            current, filled_bytes = [], 0
        current.append(place)
        filled_bytes += size
    if current:
        batches.append(tuple(current))
    return Batches(tuple(batches), tuple(too_large))
