"""One process moved by hand, over any store: it claims, runs and sweeps when told to, and its clock stands still.

So every test says exactly what happens before what, on the memory store and on SQLite alike, and nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from attrs import define

from tests.engine.world import TENANT, Process, World
from tpfd.core.kinds import INTERACTION, UNIT
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    InteractionRecord,
    LateRecord,
    TenantId,
    UnitId,
    UnitRecord,
)
from tpfd.core.tokens import SigningKey
from tpfd.errors import TpfdError
from tpfd.http.service import Completed, Completion
from tpfd.program import Program
from tpfd.stores.protocol import Store

START_EPOCH_MS = 1_800_000_000_000
MINUTE_MS = 60_000
TIMEOUT_MS = 10 * MINUTE_MS
"""The timeout of `tests.engine.pipelines.waiting`."""


@define(eq=False)
class HandClock:
    """A clock that is moved by hand."""

    now: int = START_EPOCH_MS

    def now_ms(self) -> int:
        return self.now


@define(eq=False, kw_only=True)
class Desk:
    """A process that does nothing by itself."""

    process: Process
    clock: HandClock

    @property
    def store(self) -> Store:
        return self.process.runtime.store

    async def work(self) -> None:
        """Claims and runs all that is due, and all that this makes due."""
        while True:
            async with trio.open_nursery() as work:
                if await self.process.claims._pass(work) > 0:
                    return

    async def sweep(self) -> None:
        """Sweeps, tidies and works as long as one rings for the other."""
        bells = self.process.runtime.bells
        while True:
            rung = (bells.sweep.ticket(), bells.tidy.ticket())
            await self.process.sweeper.sweep()
            await self.process.tidying.tidy()
            await self.work()
            if not any(ticket.is_set() for ticket in rung):
                return

    async def pass_time(self, ms: int) -> None:
        """Moves the clock on, and sweeps."""
        self.clock.now += ms
        await self.sweep()

    async def submit(self, data: object, pipeline: str | None = None) -> str:
        """Submits and works; the execution's id."""
        submitted = await self.process.submit(data, pipeline=pipeline)
        await self.work()
        return submitted.execution_id

    async def complete(
        self,
        interaction_id: str | None,
        payload: object,
        *,
        actor: str = "ann",
        token: str | None = None,
        correlation_id: str | None = None,
        tenant: str = TENANT,
        key: str | None = None,
    ) -> Completed:
        return await self.process.coordinator.complete(
            Completion(
                tenant_id=TenantId(tenant),
                interaction_id=interaction_id,
                correlation_id=correlation_id,
                resume_token=token,
                idempotency_key=key,
                payload=payload,
                actor=actor,
            )
        )

    async def refused(self, interaction_id: str | None, payload: object, **named: Any) -> TpfdError:
        """The error that a completion meets."""
        try:
            done = await self.complete(interaction_id, payload, **named)
        except TpfdError as error:
            return error
        raise AssertionError(f"it was taken: {done}")

    # ── looking ──

    async def execution(self, execution_id: str) -> ExecutionRecord:
        return await self.process.coordinator.execution(TENANT, execution_id)

    async def status(self, execution_id: str) -> ExecutionStatus:
        return (await self.execution(execution_id)).status

    async def interaction(self, execution_id: str, step: int, item: int = 0) -> InteractionRecord:
        record = await self.store.get(INTERACTION.key(TENANT, asked(execution_id, step, item)))
        assert record is not None
        return record

    async def unit(self, execution_id: str, step: int) -> UnitRecord:
        record = await self.store.get(UNIT.key(TENANT, UnitId(f"{execution_id}.s{step:03d}")))
        assert record is not None
        return record

    async def pending(self, **named: Any) -> Sequence[InteractionRecord]:
        wanted = {"step_id": None, "assignee": None, "group": None, "limit": 1000, "cursor": None, **named}
        return (await self.process.coordinator.pending(TENANT, **wanted)).records

    async def late(self, execution_id: str | None) -> Sequence[LateRecord]:
        return (await self.process.coordinator.late(TENANT, execution_id, limit=1000, cursor=None)).records

    async def facts(self, execution_id: str, *types: FactType) -> list[dict[str, Any]]:
        """The data of an execution's facts of some types, in order."""
        found = await self.process.coordinator.history(TENANT, execution_id, after=0, limit=100_000)
        return [dict(one.fact.data) for one in found if one.fact.type in types]

    async def result(self, execution_id: str) -> Any:
        return await self.process.result(execution_id)


def asked(execution_id: str, step: int, item: int = 0) -> str:
    """The id of an interaction."""
    return f"{execution_id}.s{step:03d}.{item:09d}"


def seat(
    nursery: trio.Nursery,
    store: Store,
    *programs: Program,
    keys: tuple[SigningKey, ...] = (),
    name: str = "a",
    clock: HandClock | None = None,
    **settings: Any,
) -> Desk:
    """A desk over a store.

    Args:
        keys: secrets of resume tokens.
        clock: shared with another desk; None: a new one.
        settings: of the engine.
    """
    clock = clock or HandClock()
    world = World(nursery=nursery, store=store)
    world.load(*programs)
    return Desk(process=world.build(name, clock=clock, keys=keys, **settings), clock=clock)
