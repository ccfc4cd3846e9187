"""The sweeper: does what is due by time and nobody did.

It reads due indexes only, so its cost follows what is due, never what is parked; and it decides nothing: every due row
goes through the same transaction that anybody else would have used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeVar

import trio
from attrs import define, field

from tpfd.bell import wait_for
from tpfd.boundaries import one_pass
from tpfd.core.admission import Ended
from tpfd.core.kinds import (
    DUE_PARTITION,
    EXECUTION_DUE,
    INTERACTION_DUE,
    SOCKET_DUE,
    TIDY_PARTITION,
    UNIT_DUE,
)
from tpfd.core.records import ExecutionRecord, InteractionRecord, SocketRecord
from tpfd.core.transact import Index
from tpfd.due import next_due_in_s
from tpfd.engine.continuations import Continuations
from tpfd.engine.tidying import Tidying
from tpfd.errors import DispatchError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

R = TypeVar("R")
log = get_logger("tpfd.sweep")

AT_ONCE = 16
"""Due rows worked on side by side, so that the store commits them together."""

BACK_OFF_S = 30.0

SHORTEST_S = 0.02
AGAIN_S = 1.0
"""Pause after a sweep that did something, in case that made something else due without a hint."""


class Deadlines(Protocol):
    """Ends interactions by time."""

    async def expire(self, seen: InteractionRecord) -> Ended:
        """Does what is due for one interaction."""


@define(eq=False, kw_only=True)
class Sweeper:
    """Sweeps for this process.

    Attributes:
        take_back: puts back what an expired socket held.
    """

    runtime: Runtime
    deadlines: Deadlines
    continuations: Continuations
    tidying: Tidying
    take_back: Callable[[SocketRecord], Awaitable[int]]
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)
    _letters: Repeating = field(factory=lambda: Repeating(log), init=False)
    _undelivered: DispatchError | None = field(default=None, init=False)

    async def run(self) -> NoReturn:
        """Sweeps for ever: when something is due, when the bell rings, at the latest after the interval."""
        failures = 0
        while True:
            ticket = self.runtime.bells.sweep.ticket()
            wait_s = await one_pass("sweep", self._repeating, self.runtime.trouble, self.sweep)
            if wait_s is None:
                failures += 1
                await trio.sleep(min(BACK_OFF_S, 0.25 * 2**failures))
            else:
                failures = 0
                await wait_for(ticket, wait_s)

    async def sweep(self) -> float:
        """One sweep over everything; seconds until the next thing is due."""
        interval_s = self.runtime.settings.sweep_interval_ms / 1000
        waits = [
            await self._due(SOCKET_DUE, DUE_PARTITION, self.take_back),
            await self._due(INTERACTION_DUE, DUE_PARTITION, self.deadlines.expire),
            await self._due(UNIT_DUE, DUE_PARTITION, self.continuations.work_on),
            await self._due(EXECUTION_DUE, TIDY_PARTITION, self._tidy),
        ]
        self._tell_of_letters()
        return min(interval_s, *waits)

    async def _tidy(self, record: ExecutionRecord) -> None:
        """Works on an ended execution. A dead letter that cannot be sent keeps nothing else waiting."""
        try:
            await self.tidying.work_on(record)
        except DispatchError as error:
            self._undelivered = error

    def _tell_of_letters(self) -> None:
        error, self._undelivered = self._undelivered, None
        if error is None:
            self.runtime.trouble.pop("dead_letters", None)
            self._letters.worked("dead_letters_work_again")
            return
        self.runtime.trouble["dead_letters"] = error.message
        self._letters.failed("dead_letter_failed", code=error.code, message=error.message)

    async def _due(self, index: Index[R], partition: str, work_on: Callable[[R], Awaitable[object]]) -> float:
        """Works once through what an index shows as due; seconds until the next row of it is due."""
        store, now = self.runtime.store, self.runtime.now()
        cursor: str | None = None
        worked = False
        while True:
            page = await store.query(index, partition, limit=self.runtime.settings.sweep_limit, cursor=cursor, last=now)
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
