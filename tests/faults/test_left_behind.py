"""What a process stored for a row that it did not live to write goes with its execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from attrs import define, evolve

from tests.engine import virtual
from tests.engine.asking import so
from tests.engine.gate import Gate
from tests.engine.pipelines import BEGIN, Line, Row, batch, begin, program, service
from tests.engine.world import POLICY, S, World
from tests.faults.stores import STORES, MatrixStore
from tpfd.core.kinds import CHUNK, EXECUTION, MANIFEST
from tpfd.core.transact import Kind
from tpfd.payloads import CHUNK_CHARS, CHUNKS_PER_DECISION

T = TypeVar("T")
KEPT_MS = 60_000
LARGE = "x" * CHUNK_CHARS * (CHUNKS_PER_DECISION + 1)
ROW_COUNTS = (1, 1 + CHUNKS_PER_DECISION, 1 + CHUNKS_PER_DECISION + 2)
"""Rows of such a value after each of the writes that it takes: its manifest, two pages of chunks."""


@define(eq=False)
class MortalGate(Gate):
    """Its process dies after the effect that has made something so."""

    dies: Callable[[], bool] = lambda: False

    async def effect(self, name: str, call: Callable[[], Awaitable[T]], *, store: bool = False) -> T:
        done = await super().effect(name, call, store=store)
        if self.dies():
            await self.die()
        return done


async def leave(store: MatrixStore, folder: Path, row_count: int) -> tuple[int, list[str]]:
    """Dies while a result is stored, succeeds with another one, and waits until all is removed.

    Args:
        row_count: rows of the first result that are stored when its process dies.

    Returns:
        Values stored when it succeeded, and the rows that are left in the end.
    """
    numbers = iter(range(100))

    async def differ(row: Row) -> Line:
        return Line(next(numbers), LARGE)

    async with store.open(folder) as opened, trio.open_nursery() as nursery:
        policy = evolve(POLICY, succeeded_ttl_ms=KEPT_MS)
        world = World(nursery=nursery, store=opened.observed, connect=opened.connect, policy=policy)
        world.load(program(BEGIN + service("differ", "Row", "Line"), {"begin": begin, "differ": differ}))
        gate = MortalGate("a", dies=lambda: len(_rows(world, MANIFEST, CHUNK)) == row_count)
        a = await world.start("a", gate=gate)
        done = await a.submit(batch(1))
        await world.until(lambda: so(gate.dead))
        await world.start("b")
        await world.until_status(done.execution_id, S.SUCCEEDED)
        stored_count = len(_rows(world, MANIFEST))
        await trio.sleep(2 * KEPT_MS / 1000)
        left = _rows(world, EXECUTION, MANIFEST, CHUNK)
        for process in world.processes:
            process.kill()
        nursery.cancel_scope.cancel("the test is over")
    return stored_count, left


def _rows(world: World, *kinds: Kind[Any]) -> list[str]:
    return [kind.name for kind in kinds for _ in world.observed.rows(kind)]


@pytest.mark.parametrize("row_count", ROW_COUNTS)
@pytest.mark.parametrize("store", [one for one in STORES if one.name != "dynamodb"], ids=lambda one: one.name)
def test_a_large_result_that_nobody_came_to_name_is_removed(store: MatrixStore, row_count: int, tmp_path: Path) -> None:
    stored_count, left = virtual.run(partial(leave, store, tmp_path, row_count))
    assert stored_count == 2, "what the first process left, and what the second one named"
    assert left == []
