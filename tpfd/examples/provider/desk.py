"""What the provider has in hand: asked and not answered, answered and not acknowledged. Bounded, with a pace."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count

import trio
from attrs import define, field, frozen

from tpfd.examples.provider.decision import LATE_BY_MS, Manners, Mishap, Request

REPEAT_FIRST_S = 1.0
REPEAT_CAP_S = 30.0


@frozen(order=True)
class Due:
    """A request in hand.

    Attributes:
        at_s: when to answer, on Trio's clock.
        order: keeps requests that are due together in the order of their arrival.
        request: the request.
        mishap: what goes wrong with its answer.
        repeats: how often the daemon could not take its answer; it stands in the log since the first time.
    """

    at_s: float
    order: int
    request: Request = field(order=False)
    mishap: Mishap = field(order=False)
    repeats: int = field(order=False, default=0)


@define
class Desk:
    """At most ``places`` requests, ordered by when their answers are due.

    The reading task fills it and the answering task empties it. An answer that was sent keeps its place until the
    daemon has acknowledged it; when all places are taken, reading stops.
    """

    places: int
    manners: Manners
    closed: bool = False
    _waiting: list[Due] = field(factory=list, init=False)
    _unsettled: dict[str, Due] = field(factory=dict, init=False)
    _order: count[int] = field(factory=count, init=False)
    _permit_at_s: float = field(default=0.0, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _room: trio.Event = field(factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unsettled)

    async def put(self, request: Request, mishap: Mishap, *, now_s: float, now_epoch_ms: int) -> None:
        """Takes a request in hand; waits while there is no place."""
        while len(self) >= self.places:
            self._room = trio.Event()
            await self._room.wait()
        at_s = now_s + self.manners.latency_s
        if self.manners.permits_per_second > 0:
            self._permit_at_s = max(self._permit_at_s, now_s) + 1 / self.manners.permits_per_second
            at_s = self._permit_at_s + self.manners.latency_s
        if mishap is Mishap.LATE:
            at_s = max(at_s, now_s + (request.deadline_epoch_ms + LATE_BY_MS - now_epoch_ms) / 1000)
        self._push(Due(at_s, next(self._order), request, mishap))

    def close(self) -> None:
        """Nothing more will be put; what is in hand stays."""
        self.closed = True
        self._changed.set()

    async def next_due(self) -> bool:
        """Waits until an answer is due.

        Returns:
            False when the desk is closed and everything on it is answered and acknowledged.
        """
        while True:
            if self._waiting and self._waiting[0].at_s <= trio.current_time():
                return True
            if self.closed and not len(self):
                return False
            self._changed = trio.Event()
            with trio.move_on_at(self._waiting[0].at_s if self._waiting else float("inf")):
                await self._changed.wait()

    def take_due(self, now_s: float, at_most: int) -> list[Due]:
        """Takes what is due, earliest first. Each then waits for `settle`, but for those that get no answer."""
        taken: list[Due] = []
        while self._waiting and self._waiting[0].at_s <= now_s and len(taken) < at_most:
            entry = heapq.heappop(self._waiting)
            taken.append(entry)
            if entry.mishap is not Mishap.DROP:
                self._unsettled[entry.request.interaction_id] = entry
        self._made_room()
        return taken

    def settle(self, interaction_ids: Iterable[str]) -> None:
        """The daemon has taken these answers, or never will."""
        for interaction_id in interaction_ids:
            self._unsettled.pop(interaction_id, None)
        self._made_room()

    def put_back(self, interaction_id: str, now_s: float) -> None:
        """The daemon could not take this answer now: it is due again, each time after a longer while."""
        entry = self._unsettled.pop(interaction_id, None)
        if entry is not None:
            at_s = now_s + min(REPEAT_CAP_S, REPEAT_FIRST_S * 2 ** min(entry.repeats, 10))
            self._push(Due(at_s, entry.order, entry.request, entry.mishap, entry.repeats + 1))

    def _push(self, entry: Due) -> None:
        heapq.heappush(self._waiting, entry)
        if self._waiting[0] is entry:
            self._changed.set()

    def _made_room(self) -> None:
        if len(self) < self.places:
            self._room.set()
        if self.closed and not len(self):
            self._changed.set()
