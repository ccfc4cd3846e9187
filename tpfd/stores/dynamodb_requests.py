"""Requests of the store: repeated where that is safe, counted by kind, and failing as ``StoreError``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import trio
from attrs import define, field, frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.failures import AwsFailure
from tpfd.errors import StoreError
from tpfd.stores.dynamodb_tables import Item

GIVE_UP_S: Final = 10.0
"""How long a request is repeated. Less than a lease, so that who holds one hears of it in time."""
BATCH_GET_MAX: Final = 100
BATCH_WRITE_MAX: Final = 25


@define
class RequestCounts:
    """What the store has asked of DynamoDB since it was opened, failed attempts not included.

    Attributes:
        requests: by operation.
        items: items asked for, shown, written, or checked, by operation and table.
        observe: told of each such item.
    """

    requests: Counter[str] = field(factory=Counter)
    items: Counter[tuple[str, str]] = field(factory=Counter)
    observe: Callable[[str, str], None] = lambda _operation, _table: None

    def count(self, operation: str, tables: Iterable[str]) -> None:
        """Adds one request that touched an item in each of `tables`."""
        self.requests[operation] += 1
        for table in tables:
            self.items[operation, table] += 1
            self.observe(operation, table)


def store_error(error: AwsFailure) -> StoreError:
    """The store's error for a request that failed for good."""
    return StoreError(error.message, retryable=error.retryable)


@frozen
class Requests:
    """Requests that may be sent twice: reads, and writes of what never changes.

    Attributes:
        counts: for the metrics and the benchmarks.
    """

    calls: AwsCalls
    counts: RequestCounts = field(factory=RequestCounts)

    async def get(self, table: str, key: Item) -> Item | None:
        """One item, as it is now; None: there is none. Raises StoreError."""
        answer = await self._repeated("get_item", TableName=table, Key=key, ConsistentRead=True)
        self.counts.count("get_item", (table,))
        item: Item | None = answer.get("Item")
        return item

    async def get_many(self, keys: Mapping[str, Sequence[Item]]) -> dict[str, list[Item]]:
        """The items under up to BATCH_GET_MAX keys, as they are now, in any order; what is not there is left out.

        Args:
            keys: by table.

        Raises:
            StoreError: the request failed, or some keys stayed unread.
        """
        asked: Mapping[str, Any] = {table: {"Keys": named, "ConsistentRead": True} for table, named in keys.items()}
        found: dict[str, list[Item]] = {table: [] for table in keys}
        give_up_s = trio.current_time() + GIVE_UP_S
        attempt = 0
        while asked:
            answer = await self._repeated("batch_get_item", RequestItems=asked)
            self.counts.count("batch_get_item", [table for table, some in asked.items() for _ in some["Keys"]])
            for table, items in answer["Responses"].items():
                found[table] += items
            asked = answer.get("UnprocessedKeys") or {}
            if asked:
                attempt += 1
                await self._wait(attempt, give_up_s, "keys unread", asked)
        return found

    async def write_all(self, writes: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Puts and deletes any number of items without conditions, in any order; each may happen twice.

        Args:
            writes: table, and `{"PutRequest": …}` or `{"DeleteRequest": …}`. No item twice.

        Raises:
            StoreError: some were perhaps not written. All may be written again.
        """
        for first in range(0, len(writes), BATCH_WRITE_MAX):
            left: Mapping[str, Any] = {}
            for table, request in writes[first : first + BATCH_WRITE_MAX]:
                left = {**left, table: [*left.get(table, ()), request]}
            give_up_s = trio.current_time() + GIVE_UP_S
            attempt = 0
            while left:
                answer = await self._repeated("batch_write_item", RequestItems=left)
                self.counts.count("batch_write_item", [table for table, some in left.items() for _ in some])
                left = answer.get("UnprocessedItems") or {}
                if left:
                    attempt += 1
                    await self._wait(attempt, give_up_s, "items unwritten", left)

    async def query(self, table: str, **params: Any) -> dict[str, Any]:
        """One page of a Query. Raises StoreError."""
        answer = await self._repeated("query", TableName=table, **params)
        self.counts.count("query", [table] * len(answer["Items"]))
        return answer

    async def query_all(self, table: str, limit: int | None = None, **params: Any) -> list[Item]:
        """Every item of a Query, or the first `limit`. Raises StoreError."""
        found: list[Item] = []
        if limit is not None:
            params["Limit"] = limit
        while True:
            answer = await self.query(table, **params)
            found += answer["Items"]
            behind = answer.get("LastEvaluatedKey")
            if behind is None or (limit is not None and len(found) >= limit):
                return found[:limit]
            params["ExclusiveStartKey"] = behind
            if limit is not None:
                params["Limit"] = limit - len(found)

    async def _repeated(self, operation: str, **params: Any) -> dict[str, Any]:
        try:
            return await self.calls.repeated(operation, within_s=GIVE_UP_S, **params)
        except AwsFailure as error:
            raise store_error(error) from error

    async def _wait(self, attempt: int, give_up_s: float, what: str, left: Mapping[str, Any]) -> None:
        """Waits before the rest of a batch is sent again. A part of a batch comes back when its table is throttled."""
        delay_s = self.calls.delay_s(attempt)
        if trio.current_time() + delay_s > give_up_s:
            raise StoreError(f"DynamoDB left {what} for {GIVE_UP_S:.0f} s (throttled): {', '.join(sorted(left))}")
        await self.calls.sleep(delay_s)
