"""A store in front of another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

from attrs import define

from tpfd.core.records import ExecutionId, SequencedFact, TenantId
from tpfd.core.transact import Capabilities, Decide, Index, Key, Page, Read, Sort
from tpfd.stores.protocol import Store

R = TypeVar("R")
T = TypeVar("T")


@define(eq=False)
class PassingStore:
    """Hands every call on as it came. Whoever adds something to some calls derives from it and overrides those.

    Attributes:
        inner: the store that does it.
    """

    inner: Store

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        return await self.inner.transact(reads, decide)

    async def get(self, key: Key[R]) -> R | None:
        return await self.inner.get(key)

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        return await self.inner.get_many(keys)

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
        return await self.inner.query(
            index, partition, limit=limit, cursor=cursor, first=first, last=last, descending=descending
        )

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        return await self.inner.history(tenant_id, execution_id, after=after, limit=limit)

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        return await self.inner.feed(after=after, limit=limit)

    async def last_seq(self) -> int:
        return await self.inner.last_seq()

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        await self.inner.forget(tenant_id, execution_id)

    async def watch(self, ring: Callable[[], None]) -> NoReturn:
        await self.inner.watch(ring)
