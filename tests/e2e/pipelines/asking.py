"""Steps around awaits: the rows of a batch are asked about, and what was answered can be read from the output.

They are slow enough to be caught in the middle by a kill.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio
from attrs import frozen

PER_ROW_S = 0.003


@frozen
class Batch:
    """Asks for `count` rows.

    Attributes:
        padding: every row carries it, to make lists of rows large.
    """

    name: str
    count: int
    padding: str


@frozen
class Row:
    number: int
    text: str


@frozen
class Verdict:
    """What is said about a row or a line."""

    number: int
    yes: bool
    text: str


@frozen
class Line:
    number: int
    yes: bool
    text: str


@frozen
class Ruling:
    """What is said about all lines together."""

    count: int
    yes: bool
    text: str


@frozen
class Total:
    count: int
    text: str


async def make_rows(batch: Batch) -> AsyncIterator[Row]:
    """The same rows in every attempt."""
    for number in range(batch.count):
        await trio.sleep(PER_ROW_S)
        yield Row(number=number, text=f"{batch.name}-{number}{batch.padding}")


async def note(verdict: Verdict) -> Line:
    await trio.sleep(PER_ROW_S)
    return Line(number=verdict.number, yes=verdict.yes, text=verdict.text)


async def add_up(lines: AsyncIterator[Line]) -> Total:
    """The verdicts in the order in which the lines come."""
    said = [f"{line.number}:{'yes' if line.yes else 'no'}" async for line in lines]
    return Total(count=len(said), text=" ".join(said))


async def close(ruling: Ruling) -> Total:
    await trio.sleep(PER_ROW_S)
    return Total(count=ruling.count, text=f"{'yes' if ruling.yes else 'no'} to {ruling.text}")
