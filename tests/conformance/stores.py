"""The stores that the conformance suite runs over. A new store adds its line here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tpfd.stores.memory import MemoryStore
from tpfd.stores.protocol import Store
from tpfd.stores.sqlite import open_sqlite

OpenStore = Callable[[Path], AbstractAsyncContextManager[Store]]
"""Opens an empty store that may keep files in the given folder."""


@asynccontextmanager
async def _memory(_folder: Path) -> AsyncIterator[Store]:
    yield MemoryStore()


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[Store]:
    async with open_sqlite(folder / "store.db") as store:
        yield store


STORES: dict[str, OpenStore] = {"memory": _memory, "sqlite": _sqlite}
