"""The store in one SQLite file: durable, with no other service running. The default.

* ``sqlite_file``: the file, its version, its connections
* ``sqlite_tables``: how records and facts stand in tables
* ``sqlite_overlay``: one transaction as its members see it
* ``sqlite_recent``: rows that it need not read again
* ``sqlite_writer``: the thread that commits many decisions at once
* ``sqlite_reads``, ``sqlite_readers``: reading beside the writer, and the threads that do it
* ``sqlite_looking``: the reading half of the store, which an operator's tool uses alone
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

import trio
from attrs import define

from tpfd.blocking import Threads
from tpfd.core.records import ExecutionId, Fact, TenantId
from tpfd.core.transact import Capabilities, Decide, Read
from tpfd.errors import InternalError
from tpfd.stores.deciding import keep_all_facts
from tpfd.stores.sqlite_backup import back_up
from tpfd.stores.sqlite_file import SqliteFile
from tpfd.stores.sqlite_looking import SqliteLook
from tpfd.stores.sqlite_overlay import Overlay
from tpfd.stores.sqlite_readers import Readers
from tpfd.stores.sqlite_writer import Writer, WriterStatistics

T = TypeVar("T")

_FORGET_PAGE = 1000
_CAPABILITIES = Capabilities(notices_others=True)


@define(eq=False)
class SqliteStore(SqliteLook):
    """Records in an SQLite file; made by `open_sqlite`. See ``tpfd.stores.protocol.Store`` for what a call promises.

    Any number of processes on one host may have the file open.
    """

    _writer: Writer
    _backup_thread: Threads
    _places: trio.Semaphore  # in the writer's queue; who waits for one waits in order
    _rings: set[Callable[[], None]]

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def statistics(self) -> WriterStatistics:
        """Counts of transactions, for the metrics."""
        return self._writer.statistics()

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        reads = tuple(reads)
        return await self._run(lambda overlay: overlay.decide(reads, decide))

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        removed = _FORGET_PAGE
        while removed == _FORGET_PAGE:  # in pages, so that nobody waits behind the removal of a million facts
            removed = await self._run(lambda overlay: overlay.forget(tenant_id, execution_id, _FORGET_PAGE))

    async def watch(self, ring: Callable[[], None]) -> NoReturn:
        """See ``Store.watch``. At most 0.1 s after the commit, 0.025 s while anything is going on.

        Raises:
            InternalError: the writing thread has died; nothing can be committed any more.
        """
        self._rings.add(ring)
        try:
            await self._writer.wait_failed()
        finally:
            self._rings.discard(ring)
        self._writer.raise_if_failed()
        raise InternalError("the store's writer has ended")

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Writes a copy of the file as of now, while it is in use. The copy appears whole or not at all.

        Args:
            path: of the copy; must not exist.

        Raises:
            Conflict: something has that name.
            StoreError: reading or writing failed.

        **Cancellation**: ends it soon, without a copy.
        """
        await self._backup_thread.run(back_up, self._file, Path(path))

    async def _run(self, act: Callable[[Overlay], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()
        try:
            return await self._writer.run(act)
        finally:
            self._places.release()


@asynccontextmanager
async def open_sqlite(
    path: str | os.PathLike[str],
    *,
    synchronous: Literal["full", "normal"] = "full",
    group_commit_max: int = 256,
    busy_timeout_ms: int = 5000,
    queue_max: int = 1024,
    reader_count: int = 2,
    keep_fact: Callable[[Fact], bool] = keep_all_facts,
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
) -> AsyncIterator[SqliteStore]:
    """Opens the store in the file at `path`, which is made if it does not exist.

    Args:
        synchronous: `full` makes each commit survive a power cut; `normal` only the crash of the process.
        group_commit_max: decisions that share a commit, at most.
        busy_timeout_ms: how long to wait for another process that writes.
        queue_max: decisions waiting for the writer; further callers wait in order.
        reader_count: read-only connections, each with a thread.
        keep_fact: says which facts the journal keeps.
        connection_class: a stand-in for tests of faults.

    Raises:
        ConfigError: the file cannot be used, is not tpfd's, or is newer than this tpfd.
        StoreError: the file is damaged, or locked for longer than the busy timeout.
        InternalError: on leaving, when the writing thread has died.

    **Cancellation**: leaving commits what is queued first.
    """
    thread = Threads(1)
    file = SqliteFile(
        path=Path(path),
        synchronous=synchronous,
        busy_timeout_ms=busy_timeout_ms,
        connection_class=connection_class,
    )
    rings: set[Callable[[], None]] = set()

    def ring_all() -> None:
        for ring in rings:
            ring()

    writing, reading = await thread.run(file.open, reader_count)
    writer = Writer(writing, keep_fact, group_commit_max, busy_timeout_ms, ring_all)
    readers = Readers(reading)
    writer.start()
    try:
        yield SqliteStore(file, readers, writer, Threads(1), trio.Semaphore(queue_max), rings)
    finally:
        with trio.CancelScope(shield=True):
            readers.close()
            await thread.run(readers.join)  # first, because the last one to close the file writes the WAL back
            writer.close()
            await thread.run(writer.join)
    writer.raise_if_failed()
