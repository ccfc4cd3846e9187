"""When the next row of a due index will be due: of what lies in the future at most one row is read."""

from __future__ import annotations

from typing import TypeVar

from tpfd.core.transact import Index
from tpfd.stores.protocol import Store

R = TypeVar("R")


async def next_due_in_s(store: Store, index: Index[R], partition: str, now_epoch_ms: int) -> float:
    """Seconds until the next record behind `now` is due; infinite when there is none. Raises StoreError."""
    page = await store.query(index, partition, limit=1, first=now_epoch_ms + 1)
    for record in page.records:
        entry = index.entry(record)
        if entry is not None and isinstance(entry.sort, int):
            return (entry.sort - now_epoch_ms) / 1000
    return float("inf")
