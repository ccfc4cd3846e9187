"""Work that is claimed in the write that makes it due: sooner, never out of turn, and never more than there is room."""

from __future__ import annotations

import trio

from tests.engine.pipelines import BEGIN, FINISH, Batch, Functions, Row, batch, begin, finish, program, service, waiting
from tests.engine.world import TENANT, S, World
from tpfd.core.kinds import EXECUTION
from tpfd.core.records import ExecutionId, ExecutionRecord, FactType

FUNCTIONS: Functions = {"begin": begin, "finish": finish}
ONE_STEP = service("begin", "Batch", "Row", more="inline: true")


def writes_of(world: World, execution_id: str) -> list[ExecutionRecord]:
    """The execution as each write left it."""
    key_of = EXECUTION.key_of
    return [
        write.after
        for write in world.observed.writes
        if write.key.kind is EXECUTION and write.after is not None and write.key == key_of(write.after)
        if write.after.execution_id == execution_id
    ]


async def quiet(world: World) -> None:
    """Until the claim loops have looked and found nothing."""
    await trio.sleep(1)


async def test_what_is_submitted_begins_in_the_write_that_stores_it(world: World) -> None:
    world.load(program(ONE_STEP, FUNCTIONS))
    a = await world.start()
    await quiet(world)
    execution = (await a.submit(batch(1))).execution_id
    await world.until_status(execution, S.SUCCEEDED)
    steps = [(one.status, one.version, one.fence) for one in writes_of(world, execution)]
    assert steps == [(S.RUNNING, 1, 1), (S.SUCCEEDED, 2, 1)]
    facts = [one.fact.type for one in await world.observed.history(TENANT, ExecutionId(execution), after=0, limit=9)]
    assert facts[:2] == [FactType.RUN_SUBMITTED, FactType.SEGMENT_ATTEMPT_STARTED]


async def test_an_answer_is_gone_on_with_in_the_write_that_admits_it(world: World) -> None:
    world.load(program(BEGIN + waiting(transport="interaction-api") + FINISH, FUNCTIONS))
    a = await world.start()
    await quiet(world)
    execution = (await a.submit(batch(1))).execution_id
    await world.until_status(execution, S.WAITING_EXTERNAL)
    before = len(writes_of(world, execution))
    await a.complete(f"{execution}.s001.000000000", {"number": 0, "text": "yes"})
    await world.until_status(execution, S.SUCCEEDED)
    assert [one.status for one in writes_of(world, execution)[before:]] == [S.RUNNING, S.SUCCEEDED]


async def test_there_are_never_more_attempts_than_places(world: World) -> None:
    most = 0
    running = 0

    async def slow(given: Batch) -> Row:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return begin(given)

    world.load(program(service("begin", "Batch", "Row"), {"begin": slow}))
    a = await world.start(max_in_flight=3)
    await quiet(world)
    executions: list[str] = []

    async def submit(number: int) -> None:
        executions.append((await a.submit(batch(number))).execution_id)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(submit, number)
    for execution in executions:
        await world.until_status(execution, S.SUCCEEDED)
    assert most == 3


async def test_what_was_due_before_goes_first(world: World) -> None:
    """What is submitted in the very moment in which a place becomes free queues behind what waits for one."""
    began: list[str] = []
    ended = trio.Event()

    async def noted(given: Batch) -> Row:
        began.append(given.name)
        await trio.sleep(1)
        ended.set()
        return begin(given)

    world.load(program(service("begin", "Batch", "Row"), {"begin": noted}))
    a = await world.start("a", max_in_flight=1)
    await quiet(world)
    executions: list[str] = []
    for name in ("first", "second", "third"):
        executions.append((await a.submit(batch(1, name))).execution_id)
        await trio.sleep(0.001)
    await ended.wait()
    while a.claims.free_count == 0:
        await trio.lowlevel.checkpoint()
    executions.append((await a.submit(batch(1, "last"))).execution_id)
    for execution in executions:
        await world.until_status(execution, S.SUCCEEDED)
    assert began == ["first", "second", "third", "last"]


async def test_nothing_is_begun_once_the_drain_has(world: World) -> None:
    world.load(program(ONE_STEP, FUNCTIONS))
    a = await world.start("a")
    await quiet(world)
    await a.drain()
    execution = (await a.submit(batch(1))).execution_id
    assert [one.status for one in writes_of(world, execution)] == [S.QUEUED]
