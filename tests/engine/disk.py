"""Objects in memory: a disk that several processes share, and an ``ObjectTarget`` over it for each of them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import define, field, frozen

from tests.engine.gate import Gate
from tpfd.core.publication import Staged
from tpfd.objects.formats import Encoder, Row
from tpfd.objects.keys import temporary_fence, temporary_name
from tpfd.objects.protocol import FoundObject, PlaceOutcome, Temporary


@frozen
class Placed:
    """One object that was put in place."""

    key: str
    digest: str
    writer: str


@define(eq=False)
class Disk:
    """What outlives every process."""

    objects: dict[str, bytes] = field(factory=dict)
    temporaries: dict[str, bytes] = field(factory=dict)
    placed: list[Placed] = field(factory=list)

    def lines(self, key: str) -> list[str]:
        """The rows of a CSV object, without its header."""
        return self.objects[key].decode().splitlines()[1:]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@define(eq=False)
class MemoryTarget:
    """The output location as one process sees it."""

    disk: Disk
    gate: Gate

    @asynccontextmanager
    async def open_temporary(
        self, key: str, execution_id: str, fence: int, encoder: Encoder
    ) -> AsyncIterator[_Session]:
        temporary = temporary_name(key, execution_id, fence)

        async def create() -> None:
            self.disk.temporaries[temporary] = b""

        await self.gate.effect("open", create)
        session = _Session(self, temporary, encoder)
        try:
            yield session
        finally:
            if not self.gate.dead:
                self.disk.temporaries.pop(temporary, None)

    async def place(self, staged: Staged, key: str, *, replace: bool) -> PlaceOutcome:
        async def put() -> PlaceOutcome:
            if staged.temporary not in self.disk.temporaries:
                return PlaceOutcome.SUPERSEDED
            if key in self.disk.objects and not replace:
                return PlaceOutcome.OCCUPIED
            self.disk.objects[key] = self.disk.temporaries.pop(staged.temporary)
            self.disk.placed.append(Placed(key, staged.digest, self.gate.name))
            return PlaceOutcome.PLACED

        return await self.gate.effect("place", put)

    async def inspect(self, key: str) -> FoundObject | None:
        async def read() -> FoundObject | None:
            data = self.disk.objects.get(key)
            return None if data is None else FoundObject(digest=digest(data), size_bytes=len(data))

        return await self.gate.effect("inspect", read)

    async def list_temporaries(self, execution_id: str) -> tuple[Temporary, ...]:
        await trio.lowlevel.checkpoint()
        fences = ((name, temporary_fence(name, execution_id)) for name in sorted(self.disk.temporaries))
        return tuple(Temporary(name=name, fence=fence) for name, fence in fences if fence is not None)

    async def discard(self, temporary: Temporary) -> None:
        async def remove() -> None:
            self.disk.temporaries.pop(temporary.name, None)

        await self.gate.effect("discard", remove)


@define(eq=False)
class _Session:
    target: MemoryTarget
    temporary: str
    encoder: Encoder
    data: bytes = b""
    item_count: int = 0

    async def write(self, rows: Sequence[Row]) -> None:
        await trio.lowlevel.checkpoint()
        self._put(rows)

    def _put(self, rows: Sequence[Row], end: str = "") -> None:
        text = self.encoder.header() if self.item_count == 0 else ""
        self.data += (text + self.encoder.rows(rows) + end).encode()
        self.item_count += len(rows)
        if self.temporary in self.target.disk.temporaries:
            # Else a newer owner took it away; what is written then goes nowhere.
            self.target.disk.temporaries[self.temporary] = self.data

    async def finish(self) -> Staged:
        async def seal() -> Staged:
            self._put((), self.encoder.footer())
            return Staged(
                temporary=self.temporary,
                digest=digest(self.data),
                size_bytes=len(self.data),
                item_count=self.item_count,
            )

        return await self.target.gate.effect("finish", seal)
