"""When to try again: backoff as a pure function of attempt and a random number that the caller draws."""

from __future__ import annotations

from attrs import frozen

_MANY = 10**9
"""Exponents beyond it change no wait; a larger integer could not become a float."""


@frozen
class Backoff:
    """A growing wait with spread.

    Attributes:
        base_ms: wait before the first retry.
        multiplier: growth from one retry to the next, >= 1.
        cap_ms: longest wait before the spread is added.
        jitter: part of the wait that is added at most, 0 to 1.
    """

    base_ms: int
    multiplier: float
    cap_ms: int
    jitter: float

    def delay_ms(self, attempt: int, draw: float, floor_ms: int = 0) -> int:
        """The wait before retry number `attempt`.

        Args:
            attempt: 1 for the first retry; any size.
            draw: uniform in [0, 1).
            floor_ms: shortest wait (a provider's Retry-After); the spread is added on top, so that everything that
                failed in one outage does not come back in the same second.
        """
        delay = max(min(self.base_ms * self._growth(attempt), float(self.cap_ms)), float(floor_ms))
        return int(delay + delay * self.jitter * draw)

    def _growth(self, attempt: int) -> float:
        """Multiplier of the wait, never more than it takes to reach the cap."""
        enough = self.cap_ms / max(self.base_ms, 1) + 1
        try:
            return float(min(float(self.multiplier) ** min(max(attempt - 1, 0), _MANY), enough))
        except OverflowError:
            return enough
