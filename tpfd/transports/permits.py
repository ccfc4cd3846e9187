"""What one process believes of a shared budget: which slots may be free.

The belief costs nothing to keep: slots come back with the interactions that end here. Only when it is exhausted are
the rows read, at most every LOOK_PAUSE_S, to see what ended elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio
from attrs import define, field

from tpfd.core.budget import Slot, holder_of, is_held
from tpfd.core.kinds import INTERACTION, PERMIT_BY_SCOPE
from tpfd.core.records import InteractionRecord, PermitRecord
from tpfd.runtime import Runtime

LOOK_PAUSE_S = 0.1
"""Shortest pause between two looks at the rows of a full budget."""
PAGE_COUNT = 1_000


@define(eq=False)
class PermitPool:
    """Slots of one budget. Knows of none before the first look.

    Attributes:
        scope: names the budget.
        size: slots, numbered from 0.
    """

    runtime: Runtime
    scope: str
    size: int
    _free: deque[Slot] = field(factory=deque, init=False)
    _known: set[int] = field(factory=set, init=False)
    _looked_at: float = field(default=float("-inf"), init=False)

    def offer(self, count: int) -> list[Slot]:
        """Up to `count` slots to try; they are not offered again until given back."""
        offered = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        self._known.difference_update(slot.number for slot in offered)
        return offered

    def give_back(self, slot: Slot) -> bool:
        """A slot is free (again), as far as we know; True when no other is: requests may wait for nothing but this."""
        if slot.number >= self.size or slot.number in self._known:
            return False
        self._known.add(slot.number)
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
        given, held = await read_slots(self.runtime, self.scope)
        free = [Slot(number) for number in set(range(self.size)) - given.keys()]
        free.extend(Slot(number, holder_of(given[number])) for number in given.keys() - held if number < self.size)
        # Neighbours together, because a store writes them by the page; from a place of its own, so that replicas do not
        # all try the same slots first.
        start = self.runtime.random.randrange(self.size)
        free.sort(key=lambda slot: (slot.number - start) % self.size)
        first_again = [self.give_back(slot) for slot in free]
        if any(first_again):
            self.runtime.bells.queue.ring()


@define(eq=False)
class Budgets:
    """The budgets of all steps of this process."""

    runtime: Runtime
    _pools: dict[tuple[str, str], PermitPool | None] = field(factory=dict, init=False)

    def pool(self, pipeline_id: str, step_id: str) -> PermitPool | None:
        """The budget of a step; None: it has none."""
        if (pipeline_id, step_id) not in self._pools:
            program = self.runtime.programs.get(pipeline_id)
            if program is None:
                # Another process runs this pipeline and keeps its budget.
                return None
            step = program.pipeline.await_step(step_id)
            scope = program.terms[step.index].budget_scope
            size = program.budget_size(step)
            self._pools[pipeline_id, step_id] = None if scope is None else PermitPool(self.runtime, scope, size)
        return self._pools[pipeline_id, step_id]

    def give_back(
        self, pipeline_id: str, step_id: str, slots: Sequence[Slot | None], occupied: frozenset[int]
    ) -> bool:
        """Gives slots back, but for those that turned out to be taken; True when there was none before."""
        free = [slot for slot in slots if slot is not None and slot.number not in occupied]
        pool = self.pool(pipeline_id, step_id) if free else None
        if pool is None:
            return False
        first_again = [pool.give_back(slot) for slot in free]
        return any(first_again)


async def read_slots(runtime: Runtime, scope: str) -> tuple[dict[int, PermitRecord], set[int]]:
    """Every slot of a budget that was ever given to somebody, and those that are in use. Raises StoreError."""
    given: dict[int, PermitRecord] = {}
    held: set[int] = set()
    cursor: str | None = None
    while True:
        page = await runtime.store.query(PERMIT_BY_SCOPE, scope, limit=PAGE_COUNT, cursor=cursor)
        keys = [INTERACTION.key(permit.owner_tenant_id, permit.interaction_id) for permit in page.records]
        owners: list[InteractionRecord | None] = await runtime.store.get_many(keys)
        for permit, owner in zip(page.records, owners, strict=True):
            given[permit.slot] = permit
            if is_held(permit, owner):
                held.add(permit.slot)
        if (cursor := page.cursor) is None:
            return given, held
