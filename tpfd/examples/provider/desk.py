"""What the provider has in hand, and when each answer is due: bounded, with a pace and a latency."""

from __future__ import annotations

import heapq
from itertools import count

import trio
from attrs import define, field, frozen

from tpfd.examples.provider.decision import LATE_BY_MS, Manners, Mishap, Request


@frozen(order=True)
class Due:
    """A request in hand.

    Attributes:
        at_s: when to answer, on Trio's clock.
        order: keeps requests that are due together in the order of their arrival.
        request: the request.
        mishap: what goes wrong with its answer.
    """

    at_s: float
    order: int
    request: Request = field(order=False)
    mishap: Mishap = field(order=False)


@define
class Desk:
    """At most ``places`` requests, ordered by when their answers are due.

    The reading task fills it and the answering task empties it; when it is full, reading stops.
    """

    places: int
    manners: Manners
    closed: bool = False
    _heap: list[Due] = field(factory=list, init=False)
    _order: count[int] = field(factory=count, init=False)
    _permit_at_s: float = field(default=0.0, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _room: trio.Event = field(factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._heap)

    async def put(self, request: Request, mishap: Mishap, *, now_s: float, now_epoch_ms: int) -> None:
        """Takes a request in hand; waits while the desk is full."""
        while len(self._heap) >= self.places:
            self._room = trio.Event()
            await self._room.wait()
        at_s = now_s + self.manners.latency_s
        if self.manners.permits_per_second > 0:
            self._permit_at_s = max(self._permit_at_s, now_s) + 1 / self.manners.permits_per_second
            at_s = max(at_s, self._permit_at_s + self.manners.latency_s)
        if mishap is Mishap.LATE:
            at_s = max(at_s, now_s + (request.deadline_epoch_ms + LATE_BY_MS - now_epoch_ms) / 1000)
        entry = Due(at_s, next(self._order), request, mishap)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._changed.set()

    def close(self) -> None:
        """No more will be put; what is in hand stays."""
        self.closed = True
        self._changed.set()

    async def next_due(self) -> bool:
        """Waits until an answer is due.

        Returns:
            False when the desk is closed and empty.
        """
        while True:
            if self._heap:
                if self._heap[0].at_s <= trio.current_time():
                    return True
            elif self.closed:
                return False
            self._changed = trio.Event()
            with trio.move_on_at(self._heap[0].at_s if self._heap else float("inf")):
                await self._changed.wait()

    def take_due(self, now_s: float, at_most: int) -> list[Due]:
        """Takes what is due off the desk, earliest first."""
        taken: list[Due] = []
        while self._heap and self._heap[0].at_s <= now_s and len(taken) < at_most:
            taken.append(heapq.heappop(self._heap))
        if taken:
            self._room.set()
        return taken
