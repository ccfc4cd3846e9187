"""When to try again: backoff as a pure function of attempt and a random number that the caller draws."""

from __future__ import annotations

from attrs import frozen


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
        delay = float(self.cap_ms)
        exponent = max(attempt - 1, 0)
        # An exponent this high is past any cap; the power itself would overflow.
        if exponent < 1024 and self.base_ms * _power(self.multiplier, exponent) < self.cap_ms:
            delay = self.base_ms * _power(self.multiplier, exponent)
        delay = max(delay, float(floor_ms))
        return int(delay + delay * self.jitter * draw)


def _power(base: float, exponent: int) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return float("inf")
