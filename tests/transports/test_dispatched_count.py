"""How many requests were handed to their transport: each counts once, whoever hands it over and however often."""

from __future__ import annotations

import pytest
import trio

from tests.engine.asking import attach, silent
from tests.engine.expected import Expected
from tests.engine.pipelines import BEGIN, FINISH, PARSE, Functions, batch, begin, finish, parse, program, waiting
from tests.engine.world import Process, S, World
from tests.transports import outside
from tests.transports.broker_double import MemoryWire, link
from tpfd.core.kinds import INTERACTION
from tpfd.transports.webhook_replies import NotNow

FUNCTIONS: Functions = {"parse": parse, "finish": finish, "begin": begin}
ROWS = 6


async def started(world: World, transport: str) -> Process:
    """A process that hands requests to a transport on which nobody answers."""
    if transport == "webhook":
        hook = outside.Outside()
        outside.refusing(hook, NotNow("503", 0), NotNow("503", 0))
        return (await outside.start(world, hook)).process
    if transport == "kafka":
        return (await link(world)).process
    process = await world.start()
    if transport == "websocket":
        await attach(world, process, answer=silent)
    return process


def counted(world: World) -> float:
    """Over all processes."""
    families = (one.runtime.metrics.interactions_dispatched.family() for one in world.processes)
    return sum(sample.value for family in families for sample in family.samples)


@pytest.mark.parametrize("transport", ["kafka", "webhook", "websocket", "interaction-api"])
@pytest.mark.parametrize("stream", [False, True], ids=["one question", "a stream"])
async def test_each_request_counts_when_it_is_first_handed_over(
    world: World, expected: Expected, transport: str, stream: bool
) -> None:
    expected.error("webhook_not_taken")
    world.load(program((PARSE if stream else BEGIN) + waiting(transport=transport) + FINISH, FUNCTIONS))
    process = await started(world, transport)
    await process.submit(batch(ROWS))
    await trio.sleep(120)
    assert len(world.observed.rows(INTERACTION)) == (ROWS if stream else 1)
    assert counted(world) == (ROWS if stream else 1)


async def test_what_waits_for_a_way_out_counts_when_it_has_one(world: World) -> None:
    world.load(program(PARSE + waiting() + FINISH, FUNCTIONS))
    process = await world.start()
    await process.submit(batch(ROWS))
    await trio.sleep(10)
    assert (len(world.observed.rows(INTERACTION)), counted(world)) == (ROWS, 0)
    await attach(world, process, answer=silent)
    await trio.sleep(10)
    assert counted(world) == ROWS


async def test_what_goes_out_again_from_another_process_is_not_counted_again(world: World) -> None:
    world.load(program(BEGIN + waiting(transport="kafka") + FINISH, FUNCTIONS))
    first = await link(world, MemoryWire(latency_s=1_000_000.0))
    await first.process.submit(batch(1))
    await trio.sleep(5)
    first.process.kill()
    second = await link(world, name="b")
    await second.wire.until_sent(1)
    await trio.sleep(5)
    assert counted(world) == 1


async def test_a_re_drive_asks_again_and_counts_nothing(world: World, expected: Expected) -> None:
    expected.error("dead_letter")
    world.load(program(BEGIN + waiting(transport="interaction-api", timeout="PT1M") + FINISH, FUNCTIONS))
    process = await world.start()
    done = await process.submit(batch(1))
    failed = await world.until_status(done.execution_id, S.FAILED)
    await process.redrive(failed)
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    assert counted(world) == 1
