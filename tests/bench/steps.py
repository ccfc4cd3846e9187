"""Step functions and types of the benchmarks' pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import trio
from attrs import frozen

PAUSE_S = 0.05
FIRST_OUT_VARIABLE = "BENCH_FIRST_OUT"


@frozen
class Ticket:
    """The input of most workloads."""

    id: str
    note: str


@frozen
class Decision:
    """What the outside says about a ticket or an item."""

    id: str
    outcome: str


@frozen
class Order:
    """Becomes so many items."""

    count: int


@frozen
class Item:
    """One of many."""

    id: str
    note: str


async def nothing(value: Ticket) -> Ticket:
    """The no-op step."""
    return value


async def settle(value: Decision) -> Decision:
    """The no-op step behind an await."""
    return value


async def pause(value: Ticket) -> Ticket:
    """A step that takes its time."""
    await trio.sleep(PAUSE_S)
    return value


async def expand(order: Order) -> AsyncIterator[Item]:
    """The items of an order."""
    for number in range(order.count):
        yield Item(f"item-{number:07d}", "n" * 150)


_first_out = Path(os.environ[FIRST_OUT_VARIABLE]) if FIRST_OUT_VARIABLE in os.environ else None


async def pass_on(value: Decision) -> Decision:
    """The no-op step behind a stream await; notes when the first item came out."""
    global _first_out
    if _first_out is not None:
        _first_out.write_text(str(time.time()), encoding="ascii")
        _first_out = None
    return value
