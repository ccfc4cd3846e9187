"""Reads that are wanted at the same time go out together: one request of up to a hundred keys.

Each read starts after it was asked for, so what it shows was true at some moment since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import trio
from attrs import define, field

from tpfd.core.transact import Key
from tpfd.errors import StoreError
from tpfd.stores.dynamodb_items import ABSENT, Items, Seen
from tpfd.stores.dynamodb_requests import BATCH_GET_MAX, Requests
from tpfd.stores.dynamodb_tables import Item

FETCH_MAX: Final = 4
"""Requests at a time. While so many are out, the keys of the next one gather."""


@define(eq=False)
class _Batch:
    keys: set[Key[Any]] = field(factory=set)
    found: dict[Key[Any], Seen | StoreError] = field(factory=dict)
    done: trio.Event = field(factory=trio.Event)
    failure: StoreError | None = field(factory=lambda: StoreError("the store is closing", code="store_closed"))


@define(eq=False)
class Loader:
    """Reads committed records, with strong consistency.

    Attributes:
        nursery: of the store; fetches run there, because several callers wait for one.
    """

    nursery: trio.Nursery
    requests: Requests
    items: Items
    _waiting: deque[_Batch] = field(factory=deque, init=False)
    _fetch_count: int = field(default=0, init=False)

    async def load(self, keys: Iterable[Key[Any]]) -> dict[Key[Any], Seen]:
        """The records under these keys, read after this call.

        Raises:
            StoreError: they cannot be read, or one of these is damaged.

        **Cancellation**: at any time.
        """
        batches = {key: self._open_batch(key) for key in keys}
        self._start()
        found: dict[Key[Any], Seen] = {}
        for key, batch in batches.items():
            await batch.done.wait()
            seen = batch.found[key] if batch.failure is None else batch.failure
            if isinstance(seen, StoreError):
                raise StoreError(seen.message, retryable=seen.retryable, code=seen.code) from seen
            found[key] = seen
        return found

    def _open_batch(self, key: Key[Any]) -> _Batch:
        if not self._waiting or (len(self._waiting[-1].keys) >= BATCH_GET_MAX and key not in self._waiting[-1].keys):
            self._waiting.append(_Batch())
        self._waiting[-1].keys.add(key)
        return self._waiting[-1]

    def _start(self) -> None:
        while self._waiting and self._fetch_count < FETCH_MAX:
            self._fetch_count += 1
            self.nursery.start_soon(self._fetch, self._waiting.popleft())

    async def _fetch(self, batch: _Batch) -> None:
        try:
            with trio.CancelScope(shield=True):  # a transaction may wait for it
                await self._read(batch)
            batch.failure = None
        except StoreError as error:
            batch.failure = error
        finally:
            batch.done.set()
            self._fetch_count -= 1
            self._start()

    async def _read(self, batch: _Batch) -> None:
        names: dict[tuple[str, tuple[str, ...]], Key[Any]] = {}
        asked: dict[str, list[Item]] = {}
        for key in batch.keys:
            table, key_item = self.items.table(key), self.items.key_item(key)
            names[table, _values(key_item)] = key
            asked.setdefault(table, []).append(key_item)
        if len(names) == 1:
            (((table, _), key),) = names.items()
            batch.found[key] = self._seen(key, await self.requests.get(table, asked[table][0]))
            return
        batch.found.update(dict.fromkeys(batch.keys, ABSENT))
        answer = await self.requests.get_many(asked)
        for table, items in answer.items():
            key_names = asked[table][0].keys()
            for item in items:
                key = names[table, _values({name: item[name] for name in key_names})]
                batch.found[key] = self._seen(key, item)

    def _seen(self, key: Key[Any], item: Item | None) -> Seen | StoreError:
        try:
            return self.items.seen(key.kind, item)
        except StoreError as error:  # for those who asked for this one, not for their neighbours
            return error


def _values(key_item: Item) -> tuple[str, ...]:
    return tuple(value["S"] for value in key_item.values())
