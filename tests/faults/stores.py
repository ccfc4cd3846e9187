"""The stores of the crash matrix, without threads: virtual time would run on while one works.

Over a store that several hosts may use, every process opens one of its own on the same file or tables, as its daemon
would, so that whoever takes over meets what others wrote through caches of its own.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar
from unittest import mock

import trio
from attrs import define, frozen

from tests.aws.standin import shared
from tests.engine.observed import ObservedStore
from tpfd.blocking import Inline, Threads
from tpfd.core.records import ExecutionId, TenantId
from tpfd.core.transact import Decide, Decision, Key, Need, Read, Snapshot
from tpfd.stores import dynamodb as store_in_dynamodb
from tpfd.stores import dynamodb_tables
from tpfd.stores.deciding import keep_all_facts
from tpfd.stores.parking import Parked
from tpfd.stores.passing import PassingStore
from tpfd.stores.protocol import Store
from tpfd.stores.sqlite import SqliteStore
from tpfd.stores.sqlite_file import SqliteFile
from tpfd.stores.sqlite_overlay import Overlay
from tpfd.stores.sqlite_readers import Readers
from tpfd.stores.sqlite_writer import Writer

T = TypeVar("T")
P = ParamSpec("P")

Connect = Callable[[str], AbstractAsyncContextManager[Store]]
"""Opens the store of one process, by the name of the process; leaving it leaves behind what a dead process does."""
SHARD_COUNT = 2
"""Of an index in DynamoDB. Each look at one asks every shard, and processes that wait do little else."""
FACTS_MAX = 10_000


class Ledger(ObservedStore):
    """What the stores of all processes have committed, in order. It decides nothing and answers no process.

    Attributes:
        turn: held by the transaction that is under way.
        misled: decisions that were made over something else than stood in the store, as sentences.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn = trio.StrictFIFOLock()
        self.misled: list[str] = []

    async def enter(self, writer: str, decision: Decision[Any]) -> None:
        """A process has committed this."""
        self.note_writer(writer)
        await self.transact((), lambda _: decision)

    def judge(self, decider: str, seen: dict[Key[Any], Any]) -> None:
        """A decision that was committed, or is final without a write, was made over these."""
        for key, record in seen.items():
            if record != self._records.get(key):
                self.misled.append(
                    f"{decider} decided over the {key.kind.name} {key.record_id} as {record}, and it was "
                    f"{self._records.get(key)}"
                )

    async def differences(self, store: Store) -> list[str]:
        """What is not in the store as it was written last: records, and the facts of executions."""
        keys = sorted({write.key for write in self.writes}, key=lambda key: (key.kind.name, key.record_id))
        found = await store.get_many(keys)
        different = [
            f"the {key.kind.name} {key.record_id} is {stored}, and was written as {self._records.get(key)}"
            for key, stored in zip(keys, found, strict=True)
            if stored != self._records.get(key)
        ]
        for (tenant_id, execution_id), written in self._journal_by_execution.items():
            facts = await store.history(tenant_id, execution_id, after=0, limit=FACTS_MAX)
            told, wanted = ({one.fact.key: one.fact for one in some} for some in (facts, written))
            if told != wanted:
                names = sorted(key for key in {*told, *wanted} if told.get(key) != wanted.get(key))
                different.append(f"the facts of {execution_id} differ in {names}")
        return different


@define(eq=False)
class EnteredStore(PassingStore):
    """The store of one process, whose commits are entered in a ledger.

    One transaction of all processes after another, because the ledger must see them in the order in which they were
    committed. What a process believes is as old then as it may be; only a race of two requests is left to the tests of
    each store.
    """

    name: str
    ledger: Ledger

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        wanted = tuple(reads)
        guarded = {read.key for read in wanted if read.guarded}
        seen: dict[Key[Any], Any] = {}
        answer: Decision[T] | Need | None = None

        def noted(snapshot: Snapshot) -> Decision[T] | Need:
            # If it had to decide again, the last time is the one that counts.
            nonlocal seen, answer
            seen = {key: snapshot.get(key) for key in guarded if snapshot.has_read(key)}
            answer = decide(snapshot)
            if isinstance(answer, Need):
                guarded.update(read.key for read in answer.reads if read.guarded)
            return answer

        async with self.ledger.turn:
            try:
                done = await self.inner.transact(wanted, noted)
            finally:
                self.ledger.judge(self.name, seen)
            with trio.CancelScope(shield=True):
                assert isinstance(answer, Decision)
                await self.ledger.enter(self.name, answer)
        return done

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        await self.inner.forget(tenant_id, execution_id)
        with trio.CancelScope(shield=True):
            await self.ledger.forget(tenant_id, execution_id)


@frozen
class Shared:
    """What the processes of a run share.

    Attributes:
        observed: all that was committed.
        connect: None: they share the store itself.
    """

    observed: ObservedStore
    connect: Connect | None = None

    async def differences(self) -> list[str]:
        """What somebody who opens the store now does not find as it was committed, and who had been misled before."""
        if self.connect is None:
            return []
        ledger = self.observed
        assert isinstance(ledger, Ledger)
        async with self.connect("afterwards") as store, ledger.turn:
            return ledger.misled + await ledger.differences(store)


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
async def memory(_folder: Path | None = None) -> AsyncIterator[Shared]:
    """The store in memory."""
    yield Shared(ObservedStore())


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Shared]:
    """The store in an SQLite file. Nothing of it is left out but the threads."""
    path, ledger = folder / "store.db", Ledger()
    file = SqliteFile(path=path, synchronous="normal", busy_timeout_ms=0, connection_class=sqlite3.Connection)

    @asynccontextmanager
    async def connect(name: str) -> AsyncIterator[Store]:
        writing, (reading,) = file.open(1)
        with closing(writing), closing(reading):
            writer = _InlineWriter(writing, keep_all_facts, 1, 0, lambda: None)
            store = SqliteStore(file, _InlineReaders(reading), writer, Threads(1), trio.Semaphore(1024), set())
            yield EnteredStore(store, name, ledger)

    # The last connection to close tidies the file up, and no dead process does that.
    with closing(file.open_writer()):
        yield Shared(ledger, connect)
    for left in folder.glob("store.db*"):
        left.unlink()


@asynccontextmanager
async def dynamodb(_folder: Path) -> AsyncIterator[Shared]:
    """The store in DynamoDB, over a real socket to the session's stand-in; its calls block the event loop."""
    standin, ledger, numbers = shared(), Ledger(), itertools.count()
    client, prefix = standin.client("dynamodb", connections=1), standin.name("crash") + "_"

    @asynccontextmanager
    async def connect(name: str) -> AsyncIterator[Store]:
        random = Random(f"{prefix}{name}{next(numbers)}")
        async with store_in_dynamodb.open_dynamodb(
            table_prefix=prefix, connections=1, random=random, connect=lambda _service, _connections: client
        ) as store:
            yield EnteredStore(store, name, ledger)

    with (
        mock.patch.object(store_in_dynamodb, "Threads", return_value=Inline()),
        mock.patch.object(dynamodb_tables, "SHARD_COUNT", SHARD_COUNT),
    ):
        specs = dynamodb_tables.tables(prefix, {})
        for spec in specs:
            client.create_table(**spec.create_parameters())
        yield Shared(ledger, connect)
        for spec in specs:
            client.delete_table(TableName=spec.name)


@frozen(kw_only=True)
class MatrixStore:
    """A store of the matrix.

    Attributes:
        open: opens an empty store that may keep files in the given folder.
        stride: every so many cuts is made unless all are asked for.
        only: scenarios that are cut unless all are asked for; empty: all of them.
    """

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Shared]]
    stride: int = 1
    only: frozenset[str] = frozenset()

    def takes(self, scenario: str) -> bool:
        """Whether a scenario belongs to the usual sample."""
        return not self.only or scenario in self.only


STORES = (
    MatrixStore(name="memory", open=memory),
    MatrixStore(name="sqlite", open=sqlite, stride=7),
    # A run is 100 to 900 requests to a stand-in that takes a millisecond and more for each.
    MatrixStore(
        name="dynamodb",
        open=dynamodb,
        stride=90,
        only=frozenset({"live-stream", "ingest", "webhook", "demotion-beside"}),
    ),
)
