"""Fills a database with parked executions: one is parked by a daemon, the others are copies of its records."""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tests.bench.load import ticket
from tests.bench.processes import BenchFailed, Daemon, serving, wait_until, write_config
from tpfd.core.kinds import EXECUTION, INTERACTION, UNIT
from tpfd.core.transact import Decision
from tpfd.stores.sqlite import open_sqlite
from tpfd.stores.sqlite_tables import TABLES

KINDS = (EXECUTION, UNIT, INTERACTION)
COPIES_PER_DECISION = 8
DECISIONS_AT_ONCE = 32
_made: dict[int, Path] = {}


def waiting_count(daemon: Daemon) -> int:
    """Executions that this process has parked."""
    return int(daemon.metric('tpf_execution_transitions_total{pipeline="parked",status="WAITING_EXTERNAL"}'))


def parked_database(count: int, folder: Path, cache: Path, **sections: Any) -> Path:
    """A configuration in `folder` whose database holds `count` parked executions.

    Args:
        cache: folder that outlives the run; the database is made there once and copied.
        sections: of the configuration.
    """
    if count not in _made:
        home = cache / f"parked-{count}"
        home.mkdir()
        config = write_config(home, "parked")
        with serving(config) as daemon:
            daemon.call("POST", "/pipeline/run-async", ticket(0))
            wait_until("the first one to be parked", lambda: waiting_count(daemon) == 1, 10.0)
        trio.run(_multiply, home / "tpfd.db", count)
        _made[count] = home / "tpfd.db"
    config = write_config(folder, "parked", **sections)
    shutil.copyfile(_made[count], folder / "tpfd.db")
    return config


async def _multiply(file: Path, count: int) -> None:
    first = _first_bodies(file)
    first_id = json.loads(first[0][1])["execution_id"]
    limiter = trio.CapacityLimiter(DECISIONS_AT_ONCE)
    async with open_sqlite(file, synchronous="normal") as store:

        async def put(numbers: Sequence[int]) -> None:
            async with limiter:
                records = [record for number in numbers for record in _copy(first, first_id, number)]
                await store.transact((), functools.partial(_decided, records))

        async with trio.open_nursery() as nursery:
            for begin in range(1, count, COPIES_PER_DECISION):
                nursery.start_soon(put, range(begin, min(begin + COPIES_PER_DECISION, count)))


def _decided(records: list[Any], _snapshot: object) -> Decision[None]:
    return Decision(None, puts=tuple(records))


def _first_bodies(file: Path) -> list[tuple[Any, str]]:
    with sqlite3.connect(file) as connection:
        rows = [(kind, connection.execute(f"SELECT body FROM {kind.name}").fetchall()) for kind in KINDS]
    connection.close()
    if any(len(found) != 1 for _, found in rows):
        raise BenchFailed("the execution to copy is not one execution with one unit and one interaction")
    return [(kind, found[0][0]) for kind, found in rows]


def _copy(bodies: Sequence[tuple[Any, str]], first_id: str, number: int) -> list[Any]:
    """The records of another execution with an id of its own that sorts behind the first."""
    other_id = f"{first_id[:-7]}{number:07d}"
    return [TABLES[kind].record(body.replace(first_id, other_id), "default", other_id) for kind, body in bodies]
