"""Pages of an index: every shard is asked, and their answers are merged in order."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import trio
from attrs import define, field, frozen

from tpfd.core.transact import Index, Page, Sort
from tpfd.errors import StoreError
from tpfd.stores.dynamodb_items import Items
from tpfd.stores.dynamodb_requests import Requests
from tpfd.stores.dynamodb_tables import Item, first_text, last_text, partition_text, shards_of, sort_text
from tpfd.stores.paging import Place, check_limit, kind_of_index, read_cursor, write_cursor

R = TypeVar("R")

_LOWEST = "\0"
_HIGHEST = "\U0010ffff"


@frozen
class Queries:
    """Reads indexes. What they show may lag behind the tables."""

    requests: Requests
    items: Items

    async def page(
        self,
        index: Index[R],
        partition: str,
        *,
        limit: int,
        cursor: str | None,
        first: Sort | None,
        last: Sort | None,
        descending: bool,
    ) -> Page[R]:
        """See ``Store.query``."""
        check_limit(limit)
        low = _LOWEST if first is None else first_text(first)
        high = _HIGHEST if last is None else last_text(last)
        behind = None
        if cursor is not None:
            place = read_cursor(index, cursor)
            behind = sort_text(place.sort, place.tenant, place.record_id)
            low, high = (low, min(high, behind)) if descending else (max(low, behind), high)
        if low > high:
            return Page(())
        shards = shards_of(index)
        # Ids are spread evenly, so each shard is asked for its share and half as much again, and for more if it runs
        # out; one more than the limit says whether more follow.
        share = limit + 1 if len(shards) == 1 else (limit + 1) * 3 // (2 * len(shards)) + 2
        readings = [
            _Shard(self, index, partition_text(partition, shard), low, high, behind, share, descending=descending)
            for shard in shards
        ]
        records = await _merged(readings, limit + 1, descending=descending)
        if len(records) <= limit:
            return Page(tuple(records))
        return Page(tuple(records[:limit]), write_cursor(index, _place(index, records[limit - 1])))


@define(eq=False)
class _Shard(Generic[R]):
    """What one shard of an index has to show, page by page.

    Attributes:
        behind: the place that was shown last; None: none was.
        share: items asked for at a time.
        found: `<index>_s` of each item that is not shown yet, and its record.
    """

    queries: Queries
    index: Index[R]
    partition: str
    low: str
    high: str
    behind: str | None
    share: int
    descending: bool = field(kw_only=True)
    found: deque[tuple[str, R]] = field(factory=deque, init=False)
    _next: Item | None = field(default=None, init=False)
    _is_over: bool = field(default=False, init=False)

    @property
    def has_run_out(self) -> bool:
        """Nothing is left of what was read, but there may be more."""
        return not self.found and not self._is_over

    async def read(self) -> None:
        """Reads on. Raises StoreError."""
        kind, name = kind_of_index(self.index), self.index.name
        answer = await self.queries.requests.query(
            self.queries.items.table_of(kind).spec.name,
            IndexName=name,
            ScanIndexForward=not self.descending,
            KeyConditionExpression=f"{name}_p = :p AND {name}_s BETWEEN :low AND :high",
            ExpressionAttributeValues={":p": {"S": self.partition}, ":low": {"S": self.low}, ":high": {"S": self.high}},
            Limit=self.share,
            **({} if self._next is None else {"ExclusiveStartKey": self._next}),
        )
        for item in answer["Items"]:
            if (text := item[f"{name}_s"]["S"]) != self.behind:
                self.found.append((text, self.queries.items.seen(kind, item).record))
        self._next = answer.get("LastEvaluatedKey")
        self._is_over = self._next is None


async def _merged(shards: list[_Shard[R]], limit: int, *, descending: bool) -> list[R]:
    """The first records of all shards, in order. Raises StoreError."""
    records: list[R] = []
    while len(records) < limit:
        while dry := [shard for shard in shards if shard.has_run_out]:
            await _read_on(dry)
        left = [shard for shard in shards if shard.found]
        if not left:
            break
        pick = max if descending else min
        records.append(pick(left, key=_next_text).found.popleft()[1])
    return records


async def _read_on(shards: list[_Shard[R]]) -> None:
    if len(shards) == 1:
        await shards[0].read()
        return
    failures: list[StoreError] = []

    async def read(shard: _Shard[R]) -> None:
        try:
            await shard.read()
        except StoreError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(read, shard)
    if failures:
        raise failures[0]


def _next_text(shard: _Shard[Any]) -> str:
    return shard.found[0][0]


def _place(index: Index[R], record: R) -> Place:
    entry = index.entry(record)
    assert entry is not None, "it was found in this index"
    tenant_id, record_id = kind_of_index(index).id_of(record)
    return Place(entry.sort, tenant_id, record_id)
