"""Several real processes on one file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.conformance.samples import OTHER, counter_key
from tests.stores import contender
from tpfd.core.kinds import EXECUTION_BY_STATUS, status_partition
from tpfd.core.records import ExecutionStatus, TenantId
from tpfd.stores.sqlite import open_sqlite

ROOT = Path(contender.__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def start(mode: str, path: Path, name: str, count: int) -> trio.Process:
    command = [sys.executable, "-W", "error", "-m", "tests.stores.contender", mode, str(path), name, str(count)]
    return await trio.lowlevel.open_process(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def lines_until(process: trio.Process, enough: int) -> list[str]:
    """Reads standard output until that many lines are there or it ends."""
    assert process.stdout is not None
    text = b""
    while text.count(b"\n") < enough and (part := await process.stdout.receive_some()):
        text += part
    return text.decode().splitlines()


async def compete(mode: str, path: Path, count: int, processes: int) -> list[Any]:
    """Starts the processes at one moment and gives their answers."""
    running = [await start(mode, path, str(name), count) for name in range(processes)]
    answers: list[Any] = [None] * processes

    async def answer(number: int, process: trio.Process) -> None:
        (line,) = await lines_until(process, 1)
        answers[number] = json.loads(line)
        assert await process.wait() == 0

    with trio.fail_after(60):
        for process in running:
            assert await lines_until(process, 1) == ["ready"]
        for process in running:
            assert process.stdin is not None
            await process.stdin.send_all(b"go\n")
        async with trio.open_nursery() as nursery:
            for number, process in enumerate(running):
                nursery.start_soon(answer, number, process)
    return answers


async def test_a_new_file_may_be_opened_by_all_at_once(path: Path) -> None:
    assert sorted(await compete("once", path, 0, 4)) == [1, 2, 3, 4]


async def test_each_place_has_one_winner(path: Path) -> None:
    rounds = 200
    won = await compete("race", path, rounds, 4)
    assert sorted(number for rounds_won in won for number in rounds_won) == list(range(rounds))
    async with open_sqlite(path) as store:
        for name, rounds_won in enumerate(won):
            found = await store.get_many([counter_key(number, unit="race") for number in rounds_won])
            assert all(record is not None and record.continued_count == name for record in found)


async def test_processes_take_turns(path: Path) -> None:
    """SQLite's lock alone lets one process commit again and again while the others wait."""
    total = 4_000
    counted = await compete("share", path, total, 3)
    owner = {number: name for name, numbers in enumerate(counted) for number in numbers}
    assert sorted(owner) == list(range(1, total + 1))
    turns = sum(owner[number] != owner[number + 1] for number in range(1, total))
    assert turns > total / contender.GROUP * 0.6
    assert min(len(numbers) for numbers in counted) > total / 3 * 0.5


async def test_a_claim_waits_for_the_lock_and_is_won_once(path: Path) -> None:
    """A24: no lock error reaches a caller although both processes read, decide and write all the time."""
    count = 150
    claimed = await compete("claim", path, count, 2)
    assert len(claimed[0]) + len(claimed[1]) == len({*claimed[0], *claimed[1]}) == 2 * count
    async with open_sqlite(path) as store:
        partition = status_partition(TenantId("acme"), "orders", ExecutionStatus.RUNNING)
        page = await store.query(EXECUTION_BY_STATUS, partition, limit=999)
        assert len(page.records) == 2 * count
        assert {record.fence for record in page.records} == {1}
        assert await store.last_seq() == 2 * 2 * count


async def test_what_was_acknowledged_survives_a_kill(path: Path) -> None:
    for _ in range(3):
        process = await start("acknowledge", path, "", 0)
        with trio.fail_after(60):
            assert await lines_until(process, 1) == ["ready"]
            assert process.stdin is not None
            await process.stdin.send_all(b"go\n")
            acknowledged = int((await lines_until(process, 50))[-1])
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with open_sqlite(path) as store:
            found = await store.get(counter_key())
            assert found is not None
            assert found.continued_count >= acknowledged


async def test_another_processs_commit_rings(path: Path) -> None:
    rung = trio.Event()
    async with open_sqlite(path) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.watch, rung.set)
        process = await start("once", path, "other", 0)
        with trio.fail_after(60):
            assert await lines_until(process, 1) == ["ready"]
            assert process.stdin is not None
            await process.stdin.send_all(b"go\n")
            await rung.wait()
            found = await store.get(counter_key(tenant=OTHER))
            assert found is not None
            await process.wait()
        nursery.cancel_scope.cancel()
