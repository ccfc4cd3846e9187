"""The sweeper: does what must happen in time and nobody did.

It reads due indexes only, so its cost follows what is due, never what is parked; and it decides nothing: every due row
goes through the same transaction that anybody else would have used. Ended executions are tidied beside it
(``tpfd.engine.tidying``): there may be a heap of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

from attrs import define, field

from tpfd.core.admission import Ended
from tpfd.core.kinds import DUE_PARTITION, INTERACTION_DUE, SOCKET_DUE, UNIT_DUE
from tpfd.core.records import InteractionRecord, SocketRecord
from tpfd.engine.continuations import Continuations
from tpfd.engine.passes import run_passes, work_through
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

log = get_logger("tpfd.sweep")


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
    take_back: Callable[[SocketRecord], Awaitable[int]]
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)

    async def run(self) -> NoReturn:
        """Sweeps for ever: when something is due, when the bell rings, at the latest after the interval."""
        await run_passes("sweep", self._repeating, self.runtime, self.runtime.bells.sweep, self.sweep)

    async def sweep(self) -> float:
        """One sweep; seconds until the next thing is due."""
        runtime = self.runtime
        return min(
            await work_through(runtime, SOCKET_DUE, DUE_PARTITION, self.take_back),
            await work_through(runtime, INTERACTION_DUE, DUE_PARTITION, self.deadlines.expire),
            await work_through(runtime, UNIT_DUE, DUE_PARTITION, self.continuations.work_on),
        )
