"""The budget of requests that may be out: what was out already never waits behind what needs a slot of its own."""

from __future__ import annotations

from typing import Any

import trio
from attrs import evolve

from tests.engine.pipelines import FINISH, PARSE, QUICK, Batch, Functions, batch, finish, parse, program, waiting
from tests.engine.world import Envelope, Provider, S, World

BUDGET = 2
DEFAULTS = evolve(QUICK, max_concurrency=BUDGET)


async def test_requests_that_keep_their_slots_are_not_held_up_by_older_ones_without(world: World) -> None:
    opened = trio.Event()

    async def parse_when_opened(value: Batch) -> Any:
        if value.name == "older":
            await opened.wait()
        async for row in parse(value):
            yield row

    def silent(envelope: Envelope) -> None:
        return None

    functions: Functions = {"parse": parse_when_opened, "finish": finish}
    world.load(program(PARSE + waiting() + FINISH, functions, defaults=DEFAULTS))
    a = await world.start()
    older = await a.submit(batch(BUDGET, "older"))
    await trio.sleep(1)
    gone = Provider(process=a, credit=BUDGET, answer=silent)
    await world.nursery.start(gone.run)
    newer = await a.submit(batch(BUDGET, "newer"))
    await trio.sleep(1)
    opened.set()
    await trio.sleep(1)
    assert {one["executionId"] for one in gone.envelopes} == {newer.execution_id}  # it has the whole budget
    gone.scope.cancel()
    await gone.detached.wait()
    await world.nursery.start(Provider(process=a, credit=BUDGET).run)
    for submitted in (newer, older):
        await world.until_status(submitted.execution_id, S.SUCCEEDED, within_s=60)
