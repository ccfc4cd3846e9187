"""User code that does not do what it is told: it swallows its cancel, or fails while it is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from tests.engine.expected import Expected
from tests.engine.pipelines import (
    BEGIN,
    Batch,
    Functions,
    Line,
    Row,
    batch,
    begin,
    program,
    service,
)
from tests.engine.world import POLICY, Process, S, World
from tpfd.core.lease import trust_ms

TRUST_S = trust_ms(POLICY.lease_ms) / 1000
TAKEOVER_S = (POLICY.lease_ms + POLICY.skew_ms) / 1000


async def claimed_by(world: World, process: Process, data: object) -> str:
    """Submits and waits until the process runs it."""
    done = await process.submit(data)

    async def runs() -> bool:
        return done.execution_id in process.running()

    await world.until(runs)
    return done.execution_id


@pytest.mark.parametrize("why", ["the lease is lost", "the store is away"])
async def test_a22_a_step_that_swallows_its_cancel_commits_nothing_and_does_not_keep_its_lease(
    world: World, expected: Expected, why: str
) -> None:
    stubborn = 1
    let_go = trio.Event()

    async def deaf(row: Row) -> Line:
        nonlocal stubborn
        if stubborn:
            stubborn -= 1
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except trio.Cancelled:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(1)
        return Line(row.number, "deaf" if not stubborn and let_go.is_set() else "fresh")

    world.load(program(BEGIN + service("deaf", "Row", "Line"), {"begin": begin, "deaf": deaf}))
    a = await world.start("a")
    execution = await claimed_by(world, a, batch(1))
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    a.gate.failing = "cut off"
    try:
        await trio.sleep(TRUST_S + 1)
        if why == "the lease is lost":
            await trio.sleep(TAKEOVER_S)
        a.gate.failing = None
        b = await world.start("b")
        record = await world.until_status(execution, S.SUCCEEDED, within_s=3 * TAKEOVER_S)
        assert (record.fence, record.worker_losses) == (2, 1)
    finally:
        let_go.set()
    await trio.sleep(100)
    assert await world.execution(execution) == record
    assert await b.result(execution) == {"number": 1, "text": "fresh"}
    assert a.running() == []


@pytest.mark.parametrize("where", ["step", "source", "transform", "reduction"])
async def test_user_code_that_raises_while_it_is_cancelled_does_not_end_the_daemon(
    world: World, expected: Expected, where: str
) -> None:
    async def at(here: str) -> None:
        if where == here and not cut.is_set():
            cut.set()
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("its clean-up failed")

    cut = trio.Event()

    async def source(batch: Batch) -> AsyncIterator[Row]:
        for number in range(batch.count):
            await at("source")
            yield Row(number, "")

    async def step(row: Row) -> Row:
        await at("step")
        return row

    async def transform(rows: AsyncIterator[Row]) -> AsyncIterator[Row]:
        async for row in rows:
            await at("transform")
            yield row

    async def reduction(rows: AsyncIterator[Row]) -> Line:
        count = len([row async for row in rows])
        await at("reduction")
        return Line(count, "")

    steps = (
        service("source", "Batch", "Row", "ONE_TO_MANY")
        + service("step", "Row", "Row")
        + service("transform", "Row", "Row", "MANY_TO_MANY")
        + service("reduction", "Row", "Line", "MANY_TO_ONE")
    )
    functions: Functions = {"source": source, "step": step, "transform": transform, "reduction": reduction}
    world.load(program(steps, functions))
    a = await world.start("a")
    done = await a.submit(batch(3))
    await cut.wait()
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    a.gate.failing = "cut off"
    await trio.sleep(TRUST_S + 1)
    a.gate.failing = None
    assert not a.ended.is_set()
    await world.until_status(done.execution_id, S.SUCCEEDED)


