"""The stores of the crash matrix, without threads: virtual time would run on while one works."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar
from unittest import mock

import trio
from attrs import frozen

from tests.aws.standin import StandIn, shared
from tests.engine.observed import ObservedStore
from tpfd.blocking import Inline, Threads
from tpfd.core.records import ExecutionId, SequencedFact, TenantId
from tpfd.core.transact import Capabilities, Decide, Decision, Index, Key, Need, Page, Read, Snapshot, Sort
from tpfd.stores import dynamodb as store_in_dynamodb
from tpfd.stores.deciding import keep_all_facts
from tpfd.stores.dynamodb_tables import tables
from tpfd.stores.parking import Parked
from tpfd.stores.protocol import Store
from tpfd.stores.sqlite import SqliteStore
from tpfd.stores.sqlite_file import SqliteFile
from tpfd.stores.sqlite_overlay import Overlay
from tpfd.stores.sqlite_readers import Readers
from tpfd.stores.sqlite_writer import Writer

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class MirroredStore(ObservedStore):
    """A store whose writes are remembered; it decides, keeps and answers, and here is only what it was told.

    One transaction after another, because the mirror must see them in the order in which they were committed.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__()
        self._inner = inner
        self._turn = trio.StrictFIFOLock()

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        writer, self._writer = self._writer, ""
        decided: list[Decision[T]] = []

        def noted(snapshot: Snapshot) -> Decision[T] | Need:
            answer = decide(snapshot)
            if isinstance(answer, Decision):
                decided.append(answer)
            return answer

        async with self._turn:
            done = await self._inner.transact(reads, noted)
            with trio.CancelScope(shield=True):
                self.note_writer(writer)
                # If it had to decide again, the last decision is the one that it wrote.
                await super().transact((), lambda _: decided[-1])
        return done

    async def differences(self) -> list[str]:
        """Records that are not in the store as they were written last."""
        keys = sorted({write.key for write in self.writes}, key=lambda key: (key.kind.name, key.record_id))
        found = await self._inner.get_many(keys)
        return [
            f"the {key.kind.name} {key.record_id} is {stored}, and was written as {self._records.get(key)}"
            for key, stored in zip(keys, found, strict=True)
            if stored != self._records.get(key)
        ]

    async def get(self, key: Key[R]) -> R | None:
        return await self._inner.get(key)

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        return await self._inner.get_many(keys)

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
        return await self._inner.query(
            index, partition, limit=limit, cursor=cursor, first=first, last=last, descending=descending
        )

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        return await self._inner.history(tenant_id, execution_id, after=after, limit=limit)

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        return await self._inner.feed(after=after, limit=limit)

    async def last_seq(self) -> int:
        return await self._inner.last_seq()

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        await self._inner.forget(tenant_id, execution_id)

    async def watch(self, ring: Callable[[], None]) -> NoReturn:
        await self._inner.watch(ring)


class _InlineWriter(Writer):
    """Commits in place what its thread would have committed."""

    async def run(self, act: Callable[[Overlay], T]) -> T:
        ((_, done),) = self._commit([Parked(act, trio.lowlevel.current_task())])
        await trio.lowlevel.cancel_shielded_checkpoint()
        result: T = done.unwrap()
        return result


class _InlineReaders(Readers):
    """Reads in place."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def run(
        self, read: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await trio.lowlevel.checkpoint()
        return read(self._connection, *args, **kwargs)


@asynccontextmanager
async def memory(_folder: Path | None = None) -> AsyncIterator[ObservedStore]:
    """The store in memory."""
    yield ObservedStore()


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[ObservedStore]:
    """The store in an SQLite file. Nothing of it is left out but the threads."""
    path = folder / "store.db"
    file = SqliteFile(path=path, synchronous="normal", busy_timeout_ms=0, connection_class=sqlite3.Connection)
    writing, (reading,) = file.open(1)
    writer = _InlineWriter(writing, keep_all_facts, 1, 0, lambda: None)
    store = SqliteStore(file, _InlineReaders(reading), writer, Threads(1), trio.Semaphore(1024), set())
    try:
        yield MirroredStore(store)
    finally:
        reading.close()
        writing.close()
        for left in folder.glob("store.db*"):
            left.unlink()


@asynccontextmanager
async def dynamodb(_folder: Path) -> AsyncIterator[ObservedStore]:
    """The store in DynamoDB, over a real socket to the session's stand-in; its calls block the event loop."""
    standin = shared()
    client, prefix = _client(standin), standin.name("crash") + "_"
    specs = tables(prefix, {})
    for spec in specs:
        client.create_table(**spec.create_parameters())
    with mock.patch.object(store_in_dynamodb, "Threads", return_value=Inline()):
        opened = store_in_dynamodb.open_dynamodb(
            region=standin.region, endpoint=standin.endpoint, table_prefix=prefix, connections=1, random=Random(prefix)
        )
        async with opened as store:
            yield MirroredStore(store)
    for spec in specs:
        client.delete_table(TableName=spec.name)


@functools.cache
def _client(standin: StandIn) -> Any:
    return standin.client("dynamodb")


@frozen(kw_only=True)
class MatrixStore:
    """A store of the matrix.

    Attributes:
        open: opens an empty store that may keep files in the given folder.
        stride: every so many cuts is made unless all are asked for.
        only: scenarios that are cut unless all are asked for; empty: all of them.
    """

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[ObservedStore]]
    stride: int = 1
    only: frozenset[str] = frozenset()

    def takes(self, scenario: str) -> bool:
        """Whether a scenario belongs to the usual sample."""
        return not self.only or scenario in self.only


STORES = (
    MatrixStore(name="memory", open=memory),
    MatrixStore(name="sqlite", open=sqlite, stride=7),
    # A run is 200 to 900 requests to a stand-in that takes milliseconds for each.
    MatrixStore(
        name="dynamodb",
        open=dynamodb,
        stride=90,
        only=frozenset({"live-stream", "demotion", "ingest", "webhook"}),
    ),
)
