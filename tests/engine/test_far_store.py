"""A store that is far away: what can be on its way at once is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

import pytest
import trio
from attrs import evolve

from tests.engine.asking import attach, lines, whole
from tests.engine.expected import Expected
from tests.engine.observed import ObservedStore
from tests.engine.pipelines import FINISH, PARSE, QUICK, finish, parse, program, waiting
from tests.engine.world import S, World
from tpfd.awaits.live import OPENING_MAX
from tpfd.core.dispatching import DISPATCH_PAGE
from tpfd.core.transact import Decide, Read

T = TypeVar("T")
AWAY_S = 1.0
PAGE_COUNT = 2 * OPENING_MAX


class FarStore(ObservedStore):
    """Every transaction takes its time."""

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        await trio.sleep(AWAY_S)
        return await super().transact(reads, decide)


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    made = World(nursery=nursery, store=FarStore())
    yield made
    for process in made.processes:
        process.kill()
    nursery.cancel_scope.cancel("the test is over")


async def test_pages_of_requests_are_opened_side_by_side(world: World) -> None:
    roomy = evolve(QUICK, max_concurrency=1_000, buffer_capacity=1_000)
    world.load(program(PARSE + waiting() + FINISH, {"parse": parse, "finish": finish}, publish=True, defaults=roomy))
    a = await world.start()
    provider = await attach(world, a, credit=1_000)
    count = PAGE_COUNT * DISPATCH_PAGE
    execution = (await a.submit({"name": "row", "count": count})).execution_id
    await world.until_status(execution, S.RUNNING)
    began = trio.current_time()

    async def all_asked() -> bool:
        return len(provider.asked) == count

    await world.until(all_asked)
    # One to open the unit, and the pages in two rounds.
    assert trio.current_time() - began <= 4 * AWAY_S
    await world.until_status(execution, S.SUCCEEDED)
    assert lines(world, execution) == whole(count)
