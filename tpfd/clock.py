"""Wall-clock time as a dependency, so that tests and simulations can own it."""

from __future__ import annotations

import time
from typing import Protocol

import trio


class Clock(Protocol):
    """Tells the wall-clock time. It may step; only what is persisted uses it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""


class SystemClock:
    """The host's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class TrioClock:
    """Wall-clock time that follows Trio's clock: virtual wherever Trio's is.

    Args:
        start_epoch_ms: wall-clock time at Trio's time zero.
    """

    def __init__(self, start_epoch_ms: int = 1_800_000_000_000) -> None:
        self._start_epoch_ms = start_epoch_ms

    def now_ms(self) -> int:
        return self._start_epoch_ms + int(trio.current_time() * 1000)
