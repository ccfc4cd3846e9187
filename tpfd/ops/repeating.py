"""A failure that comes back every second, told once and then ever more seldom."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import attrs

from tpfd.ops.logs import Log

FIRST_QUIET_S: Final = 10.0
LONGEST_QUIET_S: Final = 3_600.0


@attrs.define
class _Series:
    """Failures of one kind since the last success.

    Attributes:
        since_s: when the first came.
        count: how many came.
        quiet_s: length of the current silence.
        speak_at_s: when the next may be told.
    """

    since_s: float
    count: int
    quiet_s: float
    speak_at_s: float


class Repeating:
    """Logs the first failure at once, then with doubling pauses up to an hour, each time with the count so far.

    One per place that repeats (a sweep, a poll). Kinds are event names, which are constants, so it stays small.
    """

    def __init__(self, log: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            log: where to.
            clock: monotonic seconds.
        """
        self._log = log
        self._clock = clock
        self._series: dict[str, _Series] = {}

    def failed(self, event: str, /, **fields: object) -> None:
        """It failed (again); logged as an error if it is time to."""
        now_s = self._clock()
        series = self._series.get(event)
        if series is None:
            self._series[event] = _Series(now_s, 1, FIRST_QUIET_S, now_s + FIRST_QUIET_S)
            self._log.error(event, **fields)
            return
        series.count += 1
        if now_s >= series.speak_at_s:
            series.quiet_s = min(series.quiet_s * 2, LONGEST_QUIET_S)
            series.speak_at_s = now_s + series.quiet_s
            self._log.error(event, **fields, repeated=series.count, failing_for_s=round(now_s - series.since_s))

    def worked(self, event: str, /, **fields: object) -> None:
        """It works (again): the end of every series is logged once under ``event``; without one nothing is."""
        now_s = self._clock()
        for failure, series in self._series.items():
            failing_for_s = round(now_s - series.since_s)
            self._log.info(event, **fields, after=failure, repeated=series.count, failing_for_s=failing_for_s)
        self._series.clear()
