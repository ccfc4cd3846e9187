"""SQLite connections that fail when told to, and a way to fill one group on purpose."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing
from attrs import define, field

from tpfd.core.transact import Decision, Snapshot
from tpfd.stores.sqlite import SqliteStore


@define
class Armed:
    """Statements that start with `start` fail with `code`, `times` times after `spared` went well."""

    start: str
    code: int
    times: int
    spared: int

    def check(self, statement: str) -> None:
        if not statement.startswith(self.start):
            return
        if self.spared > 0:
            self.spared -= 1
        elif self.times > 0:
            self.times -= 1
            raise sqlite_error(self.code)


@define
class Faults:
    """Makes the statements of the connections it stands behind fail, and notes them all."""

    armed: list[Armed] = field(factory=list)
    max_pages: int | None = None  # of the file; SQLite itself reports a full disk beyond. None: no limit
    statements: list[str] = field(factory=list)

    def arm(self, start: str, code: int, *, times: int = 1, spared: int = 0) -> None:
        self.armed.append(Armed(start, code, times, spared))

    def check(self, statement: str) -> None:
        self.statements.append(statement)
        for armed in self.armed:
            armed.check(statement)

    def count(self, start: str) -> int:
        return sum(statement.startswith(start) for statement in self.statements)

    def connection_class(self, *, length: int = 10**9) -> type[sqlite3.Connection]:
        """A connection that obeys these faults.

        Args:
            length: bytes that a value may have; SQLite itself refuses longer ones.
        """
        faults = self

        class Faulty(sqlite3.Connection):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, length)

            def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
                faults.check(statement)
                if statement.startswith("BEGIN") and faults.max_pages is not None:
                    super().execute(f"PRAGMA max_page_count = {faults.max_pages}")
                return super().execute(statement, parameters)

            def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
                faults.check(statement)
                return super().executemany(statement, rows)

        return Faulty


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("made to fail")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "MADE"
    return error


@asynccontextmanager
async def one_group(store: SqliteStore) -> AsyncIterator[trio.Nursery]:
    """What is started in the nursery is queued while the writer is kept busy, and so becomes one group.

    The writer is let go when all that was started has parked.
    """
    free = threading.Event()
    held = threading.Event()

    def hold(_snapshot: Snapshot) -> Decision[None]:
        held.set()
        free.wait()
        return Decision(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.transact, [], hold)
        await trio.to_thread.run_sync(held.wait)
        try:
            yield nursery
            await trio.testing.wait_all_tasks_blocked()
        finally:
            free.set()
