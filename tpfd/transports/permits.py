"""What one process believes of a shared budget: which slots may be free.

The belief costs nothing to keep: slots come back with the interactions that end here. Only when it is exhausted are
the rows read, once per hint or second, to see what ended elsewhere.
"""

from __future__ import annotations

from collections import deque
from random import Random

import trio
from attrs import define, field

from tpfd.core.kinds import PERMIT_BY_SCOPE
from tpfd.runtime import Runtime

LOOK_PAUSE_S = 0.1
"""Shortest pause between two looks at the rows of a full budget."""
PAGE_COUNT = 1_000


@define(eq=False)
class PermitPool:
    """Slots of one budget.

    Attributes:
        scope: names the budget.
        size: slots, numbered from 0.
    """

    runtime: Runtime
    scope: str
    size: int
    _free: deque[int] = field(factory=deque, init=False)
    _known: set[int] = field(factory=set, init=False)
    _looked_at: float = field(default=float("-inf"), init=False)

    def __attrs_post_init__(self) -> None:
        # In an order of its own, so that replicas do not all try the same slots first.
        self._fill(range(self.size), self.runtime.random)

    def _fill(self, slots: range | set[int], random: Random) -> None:
        order = sorted(slots)
        random.shuffle(order)
        self._free = deque(order)
        self._known = set(order)

    def offer(self, count: int) -> list[int]:
        """Up to `count` slots to try; they are not offered again until given back."""
        offered = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        self._known.difference_update(offered)
        return offered

    def give_back(self, slot: int) -> bool:
        """A slot is free (again), as far as we know; True when no other is: requests may wait for nothing but this."""
        if slot >= self.size or slot in self._known:
            return False
        self._known.add(slot)
        self._free.append(slot)
        return len(self._free) == 1

    @property
    def free_count(self) -> int:
        """Slots that can be tried."""
        return len(self._free)

    async def look(self) -> None:
        """Reads which slots are taken, if that was not done just now. Raises StoreError."""
        if trio.current_time() - self._looked_at < LOOK_PAUSE_S:
            return
        self._looked_at = trio.current_time()
        taken: set[int] = set()
        cursor: str | None = None
        while True:
            page = await self.runtime.store.query(PERMIT_BY_SCOPE, self.scope, limit=PAGE_COUNT, cursor=cursor)
            taken.update(permit.slot for permit in page.records)
            if (cursor := page.cursor) is None:
                break
        for slot in set(range(self.size)) - taken:
            if self.give_back(slot):
                self.runtime.bells.queue.ring()
