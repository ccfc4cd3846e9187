"""A process that was taken for dead and is not: what it would give to its sockets now, nobody would ever take back."""

from __future__ import annotations

import pytest
import trio

from tests.engine.asking import LIVE, asked, attach, lines, silent, so, whole
from tests.engine.pipelines import batch
from tests.engine.world import Process, S, World
from tpfd.core.kinds import INTERACTION, SOCKET
from tpfd.core.records import ExecutionRecord
from tpfd.transports.held import take_back

RENEWED_S = 10.5
"""After so long every process has renewed its sockets."""


async def no_attempts(record: ExecutionRecord, sent_at: float) -> None:
    await trio.sleep_forever()


async def taken_for_dead(world: World, process: Process) -> None:
    """Somebody else finds the lease of the process's socket expired, and cleans up behind it."""
    (row,) = world.observed.rows(SOCKET)
    await take_back(process.runtime, row, closing=True)
    assert world.observed.rows(SOCKET) == []


def delivered(world: World) -> int:
    return sum(one.delivery is not None for one in world.observed.rows(INTERACTION))


@pytest.mark.parametrize("runs_there", [True, False], ids=["by its live session", "by its pump"])
async def test_a_socket_without_a_row_is_given_nothing(world: World, *, runs_there: bool) -> None:
    world.load(LIVE)
    a, b = await world.start("a"), await world.start("b")
    (b if runs_there else a).claims.run_attempt = no_attempts
    await attach(world, a, answer=silent)
    await taken_for_dead(world, b)
    done = await (a if runs_there else b).submit(batch(5))
    await world.until(lambda: so(asked(world) == 5), within_s=RENEWED_S)
    await trio.sleep(2)
    assert delivered(world) == 0
    a.kill()
    b.claims.run_attempt = b.attempts.run
    await attach(world, b)
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=120)
    assert lines(world, done.execution_id) == whole(5)


async def test_a_socket_gets_requests_again_once_its_process_has_renewed_it(world: World) -> None:
    world.load(LIVE)
    a = await world.start("a")
    provider = await attach(world, a)
    await taken_for_dead(world, a)
    done = await a.submit(batch(5))
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=2 * RENEWED_S)
    assert len(provider.asked) == 5
