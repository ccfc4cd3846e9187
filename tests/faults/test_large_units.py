"""A unit of very many items is worked on bit by bit: what else is due does not wait for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import trio

from tests.engine import virtual
from tests.engine.pipelines import FINISH, PARSE, batch, finish, parse, program, waiting
from tests.engine.world import S, World
from tpfd.core.itemised import CONTINUE_PAGE
from tpfd.core.kinds import INTERACTION_DUE, UNIT
from tpfd.engine.continuations import SCAN_PAGES

COUNT = 3 * SCAN_PAGES * CONTINUE_PAGE + 1
PARKING = program(
    PARSE + waiting(transport="interaction-api") + FINISH, {"parse": parse, "finish": finish}, publish=True
)


async def scan() -> list[tuple[int, float]]:
    """Parks a large unit; how far it was scanned at each look at what has timed out, and when that was."""
    scanned: list[tuple[int, float]] = []
    async with trio.open_nursery() as nursery:
        world = World(nursery=nursery)
        world.load(PARKING)
        a = await world.start()
        query = a.runtime.store.query

        async def noted(index: Any, *args: Any, **named: Any) -> Any:
            if index is INTERACTION_DUE:
                scanned.extend((unit.scanned_index, trio.current_time()) for unit in world.observed.rows(UNIT))
            return await query(index, *args, **named)

        a.runtime.store.query = noted  # type: ignore[method-assign]
        done = await a.submit(batch(COUNT))
        await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
        await trio.sleep(5)
        for process in world.processes:
            process.kill()
        nursery.cancel_scope.cancel("the test is over")
    return scanned


def test_a_large_unit_does_not_occupy_a_whole_sweep() -> None:
    scanned = virtual.run(scan)
    steps = [after - before for (before, _), (after, _) in pairwise(scanned)]
    assert max(steps) == SCAN_PAGES * CONTINUE_PAGE
    assert scanned[-1][0] == COUNT - 1
    assert len({at for index, at in scanned if 0 <= index < COUNT - 1}) == 1, "it goes on at once"
