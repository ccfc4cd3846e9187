"""Virtual time: the clock jumps to the next deadline whenever every task waits, and one seed orders the tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import trio
import trio.abc
from attrs import define, field

from tests.engine import virtual
from tpfd.clock import Clock, TrioClock

T = TypeVar("T")
START_EPOCH_MS = 1_800_000_000_000
"""Wall-clock time at the start of every run."""

MAX_STEPS_AT_ONCE = 200_000
"""Task steps at one moment: more is a loop that spins."""


class Stuck(Exception):
    """Every task waits for something that will never come, or one of them never waits."""


@define(eq=False)
class VirtualClock(trio.abc.Clock):
    """Jumps. If no task has a deadline either, nothing will ever happen again: that ends the run.

    Raising in a clock would break Trio, so it cancels the root scope instead.
    """

    root: trio.CancelScope = field(factory=trio.CancelScope)
    stuck: bool = False
    _now_s: float = 0.0

    def start_clock(self) -> None:
        """There is nothing to start."""

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline == float("inf"):
            self.stuck = True
            self.root.cancel("every task waits for ever")
            return 0.0
        self._now_s = max(self._now_s, deadline)
        return 0.0


@define(eq=False)
class WallClock:
    """The wall clock of one replica: it is off, and it may be set at any time."""

    ahead_ms: int = 0
    _true: Clock = field(factory=lambda: TrioClock(START_EPOCH_MS))

    def now_ms(self) -> int:
        return self._true.now_ms() + self.ahead_ms


@contextmanager
def _one_order(seed: int) -> Iterator[None]:
    """Trio's choice between tasks that could run is the seed's."""
    loop: Any = trio._core._run  # Trio keeps this switch for tests, without a public name
    state, usual = loop._r.getstate(), loop._ALLOW_DETERMINISTIC_SCHEDULING
    loop._r.seed(seed)
    loop._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        yield
    finally:
        loop._r.setstate(state)
        loop._ALLOW_DETERMINISTIC_SCHEDULING = usual


def run(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Runs `main` to its end on virtual time.

    Raises:
        Stuck: nothing could ever happen any more, or time did not go on.
        BaseException: whatever `main` raised.
    """
    clock, guard = VirtualClock(), virtual.SpinGuard()

    async def guarded() -> T:
        with clock.root, guard.scope:
            return await main()
        raise Stuck("every task waits for ever" if clock.stuck else "a task spins: time does not go on")

    with _one_order(seed), mock.patch.object(virtual, "MAX_STEPS_AT_ONCE", MAX_STEPS_AT_ONCE):
        return trio.run(guarded, clock=clock, instruments=[guard], strict_exception_groups=True)
