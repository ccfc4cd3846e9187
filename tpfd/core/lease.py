"""The arithmetic of leases.

A lease is a promise about time, a fence decides. An owner trusts its lease for a little less than it lasts, measured
on its own monotonic clock from before the claim was sent; a taker waits a little longer than it lasts and, where
several hosts' clocks write to one store, until it has itself seen the lease unmoved for half its length. So a wrong
clock can only make work start later or twice, never commit twice.
"""

from __future__ import annotations

from attrs import frozen

from tpfd.core.records import ExecutionId


def trust_ms(lease_ms: int) -> int:
    """How long an owner trusts its lease, counted from before the claim or renewal was sent.

    Ends a tenth of the lease early, and at least 1 s early, or a third of a short lease.
    """
    early_ms = max(lease_ms // 10, min(1000, lease_ms // 3))
    return lease_ms - early_ms


def renew_after_ms(lease_ms: int) -> int:
    """When to renew, counted from the claim or the last renewal."""
    return lease_ms // 3


@frozen
class Sighting:
    """What a would-be taker saw of a lease: fence, expiry, and when on its own monotonic clock (ms)."""

    fence: int
    expires_epoch_ms: int
    seen_at_ms: float


class Witness:
    """Remembers, per execution, since when its lease has stood still. Bounded: the oldest sightings are forgotten."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._seen: dict[ExecutionId, Sighting] = {}

    def unmoved(
        self, execution: ExecutionId, fence: int, expires_epoch_ms: int, *, lease_ms: int, at_ms: float
    ) -> bool:
        """Notes the sighting; True when the same fence and expiry were seen for half a lease already."""
        first = self._seen.get(execution)
        if first is None or (first.fence, first.expires_epoch_ms) != (fence, expires_epoch_ms):
            self._seen.pop(execution, None)
            while len(self._seen) >= self._capacity:
                del self._seen[next(iter(self._seen))]
            self._seen[execution] = Sighting(fence, expires_epoch_ms, at_ms)
            return False
        return at_ms - first.seen_at_ms >= lease_ms / 2

    def forget(self, execution: ExecutionId) -> None:
        """The lease was taken or is gone."""
        self._seen.pop(execution, None)
