"""The store in DynamoDB: durable, shared by replicas on several hosts.

* ``dynamodb_tables``: names, keys, and the tables as they must be
* ``dynamodb_items``: records as items
* ``dynamodb_groups``, ``dynamodb_overlay``, ``dynamodb_commit``: transactions
* ``dynamodb_beliefs``: what needs no read
* ``dynamodb_loader``, ``dynamodb_query``, ``dynamodb_requests``: reading
* ``dynamodb_journal``, ``dynamodb_facts``, ``dynamodb_history``: facts
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, NoReturn, TypeVar

import trio
from attrs import define

from tpfd.aws.calls import AwsCalls, Observe, unobserved
from tpfd.aws.clients import make_client
from tpfd.blocking import Threads
from tpfd.core.records import ExecutionId, Fact, SequencedFact, TenantId
from tpfd.core.transact import Capabilities, Decide, Index, Key, Page, Read, Sort
from tpfd.errors import InternalError, StoreError
from tpfd.stores.deciding import keep_all_facts
from tpfd.stores.dynamodb_beliefs import Beliefs
from tpfd.stores.dynamodb_commit import Committer
from tpfd.stores.dynamodb_groups import Groups, Lane
from tpfd.stores.dynamodb_history import History
from tpfd.stores.dynamodb_items import Items
from tpfd.stores.dynamodb_journal import Journal
from tpfd.stores.dynamodb_loader import Loader
from tpfd.stores.dynamodb_overlay import Member
from tpfd.stores.dynamodb_query import Queries
from tpfd.stores.dynamodb_requests import RequestCounts, Requests
from tpfd.stores.dynamodb_statistics import GroupStatistics
from tpfd.stores.dynamodb_tables import JOURNAL, kind_tables, tables

R = TypeVar("R")
T = TypeVar("T")

SERVICE: Final = "dynamodb"
EXECUTION_PLACES: Final = 4
"""Groups of claims, renewals and commits at a time."""
CACHE_COUNT: Final = 4_000
"""Records that this process wrote last. A live stream needs those of its window, and its slots of the budget."""
CACHE_BYTES: Final = 8 * 2**20
"""As JSON; in memory they take some times as much."""

_CAPABILITIES = Capabilities(
    shared_by_hosts=True, consistent_indexes=False, atomic_facts=False, notices_others=False
)


@define(eq=False)
class DynamodbStore:
    """Records in DynamoDB; made by `open_dynamodb`. See ``tpfd.stores.protocol.Store`` for what a call promises.

    Attributes:
        requests: what was asked of DynamoDB, by operation and table.
    """

    requests: RequestCounts
    _groups: Groups
    _loader: Loader
    _queries: Queries
    _history: History

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def statistics(self) -> GroupStatistics:
        """Counts of transactions, for the metrics."""
        return self._groups.statistics()

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        member = Member(tuple(reads), decide)
        await self._groups.run(member)
        assert member.result is not None
        result: T = member.result.unwrap()
        return result

    async def get(self, key: Key[R]) -> R | None:
        found: R | None = (await self._loader.load((key,)))[key].record
        return found

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        await trio.lowlevel.checkpoint()
        found = await self._loader.load(keys)
        return [found[key].record for key in keys]

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
        return await self._queries.page(
            index, partition, limit=limit, cursor=cursor, first=first, last=last, descending=descending
        )

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        return await self._history.of_execution(tenant_id, execution_id, after=after, limit=limit)

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        return await self._history.feed(after=after, limit=limit)

    async def last_seq(self) -> int:
        return await self._history.last_seq()

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        await self._history.forget(tenant_id, execution_id)

    async def watch(self, ring: Callable[[], None]) -> NoReturn:  # noqa: ARG002  others' commits make no sound here
        await trio.sleep_forever()
        raise InternalError("an endless sleep has ended")


@asynccontextmanager
async def open_dynamodb(
    *,
    region: str = "",
    endpoint: str = "",
    table_prefix: str = "tpf_",
    table_names: Mapping[str, str] | None = None,
    connections: int = 16,
    keep_fact: Callable[[Fact], bool] = keep_all_facts,
    observe: Observe = unobserved,
    observe_item: Callable[[str, str], None] = lambda _operation, _table: None,
    failed: Callable[[StoreError], None] = lambda _: None,
    random: Random | None = None,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    connect: Callable[[str, int], Any] | None = None,
) -> AsyncIterator[DynamodbStore]:
    """Opens the store in tables that exist (``tpfd provision`` makes them).

    Args:
        region: empty takes the SDK's own.
        endpoint: another URL than the region's; empty: the region's.
        table_prefix: begins the names of the tables.
        table_names: whole names of single tables, by what follows the prefix otherwise.
        connections: requests at a time, beside those of executions' own transactions.
        keep_fact: says which facts the journal keeps.
        observe: told of each request.
        observe_item: told of each item asked for, shown, written or checked: the operation and the table.
        failed: told when facts could not be moved to their places; it is tried again.
        random: makes ids and spreads waits.
        sleep: waits between attempts.
        connect: makes a client of a service with so many connections; a stand-in for tests of faults.

    Raises:
        ConfigError: the SDK is not installed, or no region is known.

    **Cancellation**: leaving waits for what is on its way.
    """
    connect = connect or functools.partial(_connect, region, endpoint)
    random = random or Random()
    counts = RequestCounts(observe=observe_item)

    async def make_calls(limit: int) -> AwsCalls:
        client, threads = functools.partial(connect, SERVICE, limit), Threads(limit)
        make = functools.partial(AwsCalls, SERVICE, client, threads, observe=observe, random=random, sleep=sleep)
        return await threads.run(make)  # it reads files

    specs = tables(table_prefix, table_names or {})
    items = Items(kind_tables(specs))
    calls, own_calls = await make_calls(connections), await make_calls(EXECUTION_PLACES)
    requests = Requests(calls, counts)
    committer = Committer(calls, counts, random)
    journal = Journal(requests, committer, next(spec for spec in specs if spec.suffix == JOURNAL), time.time)
    async with trio.open_nursery() as background, trio.open_nursery() as nursery:
        loader = Loader(nursery, requests, items)
        groups = Groups(
            nursery,
            items,
            loader,
            Beliefs(CACHE_COUNT, CACHE_BYTES),
            journal,
            keep_fact,
            executions=Lane(Committer(own_calls, counts, random), EXECUTION_PLACES),
            rest=Lane(committer, max(1, connections // 2)),
        )
        background.start_soon(journal.run, failed)
        yield DynamodbStore(counts, groups, loader, Queries(requests, items), History(journal, requests))
        background.cancel_scope.cancel("the store is closed")


def _connect(region: str, endpoint: str, service: str, connections: int) -> Any:
    return make_client(service, region=region, endpoint=endpoint, connections=connections, as_it_stands=True)
