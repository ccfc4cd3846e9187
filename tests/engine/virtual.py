"""Runs a test on virtual time: the clock jumps whenever every task waits.

The order in which tasks run is drawn from a seed, so that a failure comes back. ``TPFD_TEST_SEED`` draws another order.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
import trio.abc
import trio.testing

MAX_STEPS_AT_ONCE = 3_000_000
"""Task steps without any time passing: more is a loop that spins."""


class SpinGuard(trio.abc.Instrument):
    """Ends a test in which virtual time stands still because some task never waits."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.spun = False
        self._steps = 0
        self._at = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1
        if self._steps % 4096:
            return
        now = trio.current_time()
        if now > self._at:
            self._at, self._steps = now, 0
        elif self._steps > MAX_STEPS_AT_ONCE:
            self.spun = True
            self.scope.cancel(f"{task} and others spin")


def run(
    test: Callable[[], Awaitable[Any]],
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Any:
    """What pytest-trio calls instead of ``trio.run``."""
    guard = SpinGuard()
    trio._core._run._r.seed(int(os.environ.get("TPFD_TEST_SEED", "1")))

    async def guarded() -> Any:
        with guard.scope:
            return await test()
        raise AssertionError("a task spins: virtual time does not go on")

    return trio.run(
        guarded,
        clock=clock or trio.testing.MockClock(autojump_threshold=0),
        instruments=[*instruments, guard],
        strict_exception_groups=True,
    )
