"""The edge of a process in a test: whatever it does to the outside goes through its gate.

A dead process does nothing any more: its calls never come back, also those of shielded clean-up. A crash can be put
before or after any one effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import NoReturn, TypeVar

import trio
from attrs import define, field

from tpfd.core.records import ExecutionId, SequencedFact, TenantId
from tpfd.core.transact import Capabilities, Decide, Index, Key, Page, Read, Sort
from tpfd.dispatch.memory import MemoryRejects
from tpfd.dispatch.protocol import ItemReject
from tpfd.errors import StoreError
from tpfd.stores.protocol import Store

R = TypeVar("R")
T = TypeVar("T")


class When(StrEnum):
    BEFORE = "before"  # nothing of the effect happened
    AFTER = "after"  # it happened and the process never heard of it


@define(eq=False)
class Gate:
    """What a process may still do.

    Attributes:
        name: of the process.
        crash_at: number of an effect (from 1) and the side of it on which the process dies.
        failing: store calls fail with this message; None: the store works.
        delay_s: seconds that each store call takes, asked before and after the store has it; they are not cut short by
            a cancel, as a call that is on its way is not.
        effects: names of what was done, in order.
        before_write: told the name of the process with each write.
    """

    name: str
    crash_at: tuple[int, When] | None = None
    failing: str | None = None
    delay_s: Callable[[], float] | None = None
    effects: list[str] = field(factory=list)
    on_death: Callable[[], None] = lambda: None
    dead: bool = False

    async def look(self, call: Callable[[], Awaitable[T]]) -> T:
        """A read of the store."""
        await self._open(store=True)
        await self._delay()
        done = await call()
        await self._open(store=True)
        return done

    async def effect(self, name: str, call: Callable[[], Awaitable[T]], *, store: bool = False) -> T:
        """Something that others can see."""
        await self._open(store=store)
        self.effects.append(name)
        number = len(self.effects)
        if self.crash_at == (number, When.BEFORE):
            await self.die()
        if store:
            await self._delay()
            await self._open(store=False)
        done = await call()
        if self.crash_at == (number, When.AFTER):
            await self.die()
        if store:
            await self._delay()
        await self._open(store=False)
        return done

    async def die(self) -> NoReturn:
        """The process is gone."""
        self.dead = True
        self.on_death()
        await trio.sleep_forever()
        raise AssertionError

    async def _open(self, *, store: bool) -> None:
        if self.dead:
            await trio.sleep_forever()
        if store and self.failing is not None:
            await trio.lowlevel.checkpoint()
            raise StoreError(self.failing)

    async def _delay(self) -> None:
        if self.delay_s is not None and (seconds := self.delay_s()) > 0:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)


class GatedRejects:
    """A process' way to its sink of rejected items."""

    def __init__(self, inner: MemoryRejects, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        await self._gate.effect("reject", partial(self._inner.publish, rejects))


class GatedStore:
    """A process' way to the store."""

    def __init__(self, inner: Store, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        wanted = tuple(reads)

        async def write() -> T:
            if (note := getattr(self._inner, "note_writer", None)) is not None:
                note(self._gate.name)
            return await self._inner.transact(wanted, decide)

        return await self._gate.effect("transact", write, store=True)

    async def get(self, key: Key[R]) -> R | None:
        return await self._gate.look(partial(self._inner.get, key))

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        return await self._gate.look(partial(self._inner.get_many, keys))

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
        call = partial(
            self._inner.query, index, partition,
            limit=limit, cursor=cursor, first=first, last=last, descending=descending,
        )  # fmt: skip
        return await self._gate.look(call)

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        return await self._gate.look(partial(self._inner.history, tenant_id, execution_id, after=after, limit=limit))

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        return await self._gate.look(partial(self._inner.feed, after=after, limit=limit))

    async def last_seq(self) -> int:
        return await self._gate.look(self._inner.last_seq)

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        await self._gate.effect("forget", partial(self._inner.forget, tenant_id, execution_id), store=True)

    async def watch(self, ring: Callable[[], None]) -> NoReturn:
        await self._inner.watch(ring)
