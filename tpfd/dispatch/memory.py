"""Rejects in a bounded ring in memory, for development: the oldest are forgotten."""

from __future__ import annotations

from collections import deque

from tpfd.dispatch.protocol import ItemReject


class MemoryRejects:
    """Keeps the last `capacity` rejects."""

    durable = False

    def __init__(self, capacity: int) -> None:
        self._ring: deque[ItemReject] = deque(maxlen=capacity)

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        """Never fails."""
        self._ring.extend(rejects)

    @property
    def rejects(self) -> tuple[ItemReject, ...]:
        """What is remembered, oldest first."""
        return tuple(self._ring)
