"""Clients: submit under a key until they are told that it was accepted."""

from __future__ import annotations

from collections.abc import Mapping

import trio
from attrs import define, field, frozen

from tests.engine.pipelines import batch
from tests.engine.world import Lost
from tests.sim.coverage import Fault
from tests.sim.faults import Dice
from tests.sim.providers import RETRY_S, Hosts
from tpfd.core.records import ExecutionId
from tpfd.errors import Conflict, StoreError


@frozen
class Accepted:
    """What a client was told is accepted."""

    pipeline: str
    name: str
    count: int


@define(eq=False, kw_only=True)
class Clients:
    """Submit all batches of a run.

    Attributes:
        batches: pipeline and number of items of each.
        within_s: time in which the submits begin.
        accepted: what was acknowledged.
        trouble: two executions under one key, and the like.
    """

    hosts: Hosts
    dice: Dice
    batches: tuple[tuple[str, int], ...]
    within_s: float
    accepted: dict[ExecutionId, Accepted] = field(factory=dict)
    trouble: list[str] = field(factory=list)

    async def run(self) -> None:
        """Returns when all were accepted."""
        async with trio.open_nursery() as nursery:
            for number, (pipeline, count) in enumerate(self.batches):
                nursery.start_soon(self._submit, Accepted(pipeline, f"batch{number}", count))

    async def _submit(self, wanted: Accepted) -> None:
        await trio.sleep(self.dice.between(0, self.within_s))
        execution = await self._accepted(wanted.name, wanted)
        assert execution is not None
        self.accepted[execution] = wanted
        self.dice.trace.note(f"accepted: {execution} {wanted.pipeline} of {wanted.count}")
        if self.dice.happens(Fault.SUBMITTED_TWICE, 0.5, execution):
            again = await self._accepted(wanted.name, wanted)
            if again != execution:
                self.trouble.append(f"one key gave two executions: {execution} and {again}")
        if self.dice.happens(Fault.KEY_REUSED, 0.5, execution):
            other = Accepted(wanted.pipeline, "another", wanted.count)
            if await self._accepted(wanted.name, other) is not None:
                self.trouble.append(f"another input was accepted under the key of {execution}")

    async def _accepted(self, key: str, wanted: Accepted) -> ExecutionId | None:
        """Submits until there is an answer; None: the key was used with another input."""
        data: Mapping[str, object] = batch(wanted.count, wanted.name)
        while True:
            process = await self.hosts.any()
            try:
                done = await process.submit(data, key=key, pipeline=wanted.pipeline)
            except (Lost, StoreError):
                await trio.sleep(RETRY_S)
            except Conflict:
                return None
            else:
                return done.execution_id
