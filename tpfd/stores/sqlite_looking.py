"""Reading an SQLite store: what the store itself does beside its writer, and what an operator's tool does alone.

A tool that only looks opens the file read-only: it makes nothing, migrates nothing, and a daemon that runs does not
notice it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio
from attrs import define, frozen

from tpfd.blocking import Threads
from tpfd.core.records import ExecutionId, SequencedFact, TenantId
from tpfd.core.transact import Index, Key, Page, Sort
from tpfd.stores.paging import check_limit, read_cursor
from tpfd.stores.sqlite_file import SCHEMA_VERSION, SqliteFile, schema_version
from tpfd.stores.sqlite_readers import Readers
from tpfd.stores.sqlite_reads import read_feed, read_history, read_last_seq, read_page, read_records

R = TypeVar("R")


@frozen(kw_only=True)
class FileState:
    """How a database file stands.

    Attributes:
        version: of its schema; `known_version` is this program's.
        file_bytes: of the database; `wal_bytes` of what is not written back yet.
        free_bytes: of the file system it is on, for us; `disk_bytes` its size.
    """

    version: int
    known_version: int
    file_bytes: int
    wal_bytes: int
    free_bytes: int
    disk_bytes: int


@define(eq=False)
class SqliteLook:
    """The reading half of the store. See ``tpfd.stores.protocol.Store`` for what a call promises."""

    _file: SqliteFile
    _readers: Readers

    async def get(self, key: Key[R]) -> R | None:
        return (await self._readers.run(read_records, [key]))[0]

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        return await self._readers.run(read_records, keys)

    async def query(
        self,
        index: Index[R],
        partition: str,
        *,
        limit: int,
        cursor: str | None = None,
        first: Sort | None = None,
        last: Sort | None = None,
        descending: bool = False,
    ) -> Page[R]:
        check_limit(limit)
        return await self._readers.run(
            read_page,
            index,
            partition,
            limit=limit,
            behind=None if cursor is None else read_cursor(index, cursor),
            first=first,
            last=last,
            descending=descending,
        )

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        check_limit(limit)
        return await self._readers.run(read_history, tenant_id, execution_id, after=after, limit=limit)

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        check_limit(limit)
        return await self._readers.run(read_feed, after=after, limit=limit)

    async def last_seq(self) -> int:
        return await self._readers.run(read_last_seq)

    async def file_state(self) -> FileState:
        """How the file stands on its disk. Raises StoreError."""
        return await self._readers.run(_file_state, self._file.path)


@asynccontextmanager
async def look_at_sqlite(path: str | os.PathLike[str], *, busy_timeout_ms: int = 5000) -> AsyncIterator[SqliteLook]:
    """Opens the store in the file at `path` for reading only.

    Raises:
        ConfigError: there is no such file, or it is not tpfd's, or of another version.
        StoreError: it cannot be opened or read.
    """
    file = SqliteFile(
        path=Path(path), synchronous="full", busy_timeout_ms=busy_timeout_ms, connection_class=sqlite3.Connection
    )
    thread = Threads(1)
    readers = Readers([await thread.run(file.open_looking)])
    try:
        yield SqliteLook(file, readers)
    finally:
        with trio.CancelScope(shield=True):
            readers.close()
            await thread.run(readers.join)


def _file_state(connection: sqlite3.Connection, path: Path) -> FileState:
    wal = path.with_name(f"{path.name}-wal")
    disk = shutil.disk_usage(path.parent)
    return FileState(
        version=schema_version(connection),
        known_version=SCHEMA_VERSION,
        file_bytes=path.stat().st_size,
        wal_bytes=wal.stat().st_size if wal.exists() else 0,
        free_bytes=disk.free,
        disk_bytes=disk.total,
    )
