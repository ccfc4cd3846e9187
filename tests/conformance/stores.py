"""The stores that the conformance suite runs over. A new store adds its line here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.aws.standin import shared
from tests.stores.tables import making_tables
from tpfd.core.records import Fact
from tpfd.stores.deciding import keep_all_facts
from tpfd.stores.dynamodb import open_dynamodb
from tpfd.stores.memory import MemoryStore
from tpfd.stores.protocol import Store
from tpfd.stores.sqlite import open_sqlite


class OpenStore(Protocol):
    def __call__(
        self, folder: Path, /, keep_fact: Callable[[Fact], bool] = keep_all_facts
    ) -> AbstractAsyncContextManager[Store]:
        """Opens an empty store that may keep files in the given folder, and keeps the facts that `keep_fact` passes."""


@asynccontextmanager
async def _memory(_folder: Path, keep_fact: Callable[[Fact], bool] = keep_all_facts) -> AsyncIterator[Store]:
    yield MemoryStore(keep_fact=keep_fact)


@asynccontextmanager
async def _sqlite(folder: Path, keep_fact: Callable[[Fact], bool] = keep_all_facts) -> AsyncIterator[Store]:
    async with open_sqlite(folder / "store.db", keep_fact=keep_fact) as store:
        yield store


@asynccontextmanager
async def _dynamodb(_folder: Path, keep_fact: Callable[[Fact], bool] = keep_all_facts) -> AsyncIterator[Store]:
    standin = shared()
    async with (
        making_tables(standin) as prefix,
        open_dynamodb(table_prefix=prefix, connections=4, keep_fact=keep_fact, connect=_client) as store,
    ):
        yield store


def _client(service: str, connections: int) -> Any:
    return shared().client(service, connections=connections)


STORES: dict[str, OpenStore] = {"dynamodb": _dynamodb, "memory": _memory, "sqlite": _sqlite}
