"""A process that shares a store file with others: ``python -m tests.stores.contender MODE PATH NAME COUNT``.

It says "ready" when the store is open, starts at the first line on its standard input, and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence

import trio
from attrs import evolve

from tests.conformance.samples import OTHER, TENANT, counter, counter_key, execution, fact, increment
from tpfd.core.kinds import DUE_PARTITION, EXECUTION, EXECUTION_DUE
from tpfd.core.records import ExecutionRecord, ExecutionStatus
from tpfd.core.transact import Decision, Key, Read, Snapshot
from tpfd.stores.sqlite import SqliteStore, open_sqlite

GROUP = 8
PATIENCE_MS = 30_000
"""The question is who wins, not whether a busy machine stands still for longer than a daemon would wait."""


async def race(store: SqliteStore, name: str, rounds: int) -> object:
    """In each round two tasks of each process want the same place. Answers with the rounds won."""
    won: list[int] = []

    async def contend() -> None:
        for number in range(rounds):
            await take(number)

    async def take(number: int) -> None:
        key = counter_key(number, unit="race")

        def decide(snapshot: Snapshot) -> Decision[bool]:
            if snapshot.get(key) is not None:
                return Decision(False)
            return Decision(True, (counter(number, int(name), unit="race"),))

        if await store.transact([Read(key)], decide):
            won.append(number)

    await together([contend, contend])
    return won


async def share(store: SqliteStore, name: str, total: int) -> object:
    """Counts a common counter up to `total`, always with more to do than one group takes. Answers with its counts."""
    counted: list[int] = []

    async def count() -> None:
        while (reached := await increment(store)) <= total:
            counted.append(reached)

    await together([count] * 6 * GROUP)
    return counted


async def claim(store: SqliteStore, name: str, count: int) -> object:
    """Submits `count` executions and claims what is due, its own and others', until nothing is. See A24."""
    claimed: list[str] = []

    async def submit(first: int) -> None:
        for number in range(first, count, 4):
            record = execution(f"{name}-{number:05d}", next_check_epoch_ms=number)

            def decide(_snapshot: Snapshot, record: ExecutionRecord = record) -> Decision[None]:
                return Decision(None, (record,), facts=(fact("submitted", record.execution_id),))

            await store.transact([Read(EXECUTION.key_of(record))], decide)

    async def claim_due() -> None:
        while page := (await store.query(EXECUTION_DUE, DUE_PARTITION, limit=8)).records:
            for seen in page:
                await claim_one(EXECUTION.key_of(seen))

    async def claim_one(key: Key[ExecutionRecord]) -> None:
        def decide(snapshot: Snapshot) -> Decision[bool]:
            found = snapshot.get(key)
            assert found is not None
            if found.status is not ExecutionStatus.QUEUED:
                return Decision(False)
            running = evolve(
                found, status=ExecutionStatus.RUNNING, next_check_epoch_ms=None, fence=found.fence + 1, lease_owner=name
            )
            return Decision(True, (running,), facts=(fact("claimed", found.execution_id),))

        if await store.transact([Read(key)], decide):
            claimed.append(key.record_id)

    async with trio.open_nursery() as nursery:
        for first in range(4):
            nursery.start_soon(submit, first)
        for _ in range(4):
            nursery.start_soon(claim_due)
    await together([claim_due] * 4)
    return claimed


async def acknowledge(store: SqliteStore, name: str, count: int) -> object:
    """Counts up for ever and says so after each commit, until it is killed."""
    while True:
        print(await increment(store), flush=True)


async def once(store: SqliteStore, name: str, count: int) -> object:
    """Commits once."""
    return await increment(store, tenant=OTHER if name == "other" else TENANT)


async def together(functions: Sequence[Callable[[], Awaitable[None]]]) -> None:
    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(function)


MODES = {function.__name__: function for function in (race, share, claim, acknowledge, once)}


async def main(*arguments: str) -> None:
    mode, path, name, count = arguments
    async with open_sqlite(path, group_commit_max=GROUP, busy_timeout_ms=PATIENCE_MS) as store:
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        answer = await MODES[mode](store, name, int(count))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
