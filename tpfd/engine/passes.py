"""Loops over what is due by time: passes when the bell rings or the time has come, each once through an index.

Each loop waits for nothing but its own pass. So what may take long (a heap of ended executions) holds up nothing that
must happen in time (deadlines).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import trio

from tpfd.bell import Bell, wait_for
from tpfd.boundaries import one_pass
from tpfd.core.transact import Index
from tpfd.due import next_due_in_s
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

R = TypeVar("R")

AT_ONCE = 16
"""Due rows worked on side by side, so that the store commits them together."""

BACK_OFF_S = 30.0
"""Longest wait between passes while the store is away."""

SHORTEST_S = 0.02
AGAIN_S = 1.0
"""Pause after a pass that did something, in case that made something else due without a hint."""


async def run_passes(
    name: str, repeating: Repeating, runtime: Runtime, bell: Bell, one: Callable[[], Awaitable[float]]
) -> NoReturn:
    """Makes passes for ever, one after the other: when the bell rings, or when the last one said.

    Args:
        name: of the loop, in the log and in what readiness shows.
        repeating: tells of failures.
        bell: something may be due.
        one: a pass; seconds until the next thing is due.
    """
    failures = 0
    while True:
        ticket = bell.ticket()
        wait_s = await one_pass(name, repeating, runtime.trouble, one)
        if wait_s is None:
            failures += 1
            await trio.sleep(min(BACK_OFF_S, 0.25 * 2**failures))
        else:
            failures = 0
            await wait_for(ticket, min(wait_s, runtime.settings.sweep_interval_ms / 1000))


async def work_through(
    runtime: Runtime, index: Index[R], partition: str, work_on: Callable[[R], Awaitable[object]]
) -> float:
    """Works once through what an index shows as due, also past rows that stay due.

    Returns:
        Seconds until the next row of it is due.

    Raises:
        OutsideError: what `work_on` raised, or the store.
    """
    store, now = runtime.store, runtime.now()
    cursor: str | None = None
    worked = False
    while True:
        page = await store.query(index, partition, limit=runtime.settings.sweep_limit, cursor=cursor, last=now)
        for first in range(0, len(page.records), AT_ONCE):
            worked = True
            async with trio.open_nursery() as nursery:
                for record in page.records[first : first + AT_ONCE]:
                    nursery.start_soon(_only_await, work_on, record)
        if (cursor := page.cursor) is None:
            break
    later_s = max(SHORTEST_S, await next_due_in_s(store, index, partition, now))
    return min(later_s, AGAIN_S) if worked else later_s


async def _only_await(call: Callable[[R], Awaitable[object]], record: R) -> None:
    await call(record)
