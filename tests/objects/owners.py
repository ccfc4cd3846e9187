"""Owners of one execution that publish its output, cut into single effects for a test to interleave and kill.

This is the loop that `tpfd.core.publication` describes, with the ledger in the place of the store.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from attrs import define, evolve, field

from tpfd.core.publication import (
    Complete,
    NextVersion,
    Occupied,
    OnExisting,
    Place,
    Prepare,
    PublicationStep,
    Staged,
    Write,
    next_step,
)
from tpfd.core.records import Publication, PublicationState
from tpfd.objects.formats import CsvEncoder
from tpfd.objects.keys import next_version
from tpfd.objects.protocol import ObjectTarget, PlaceOutcome

EXECUTION = "01JDEADBEEF0000000000000AA"


@define
class Ledger:
    """The execution record: one fence, one publication, both changed only under the newest fence."""

    fence: int = 0
    publication: Publication | None = None

    @property
    def completed(self) -> bool:
        return self.publication is not None and self.publication.state is PublicationState.COMPLETED

    def claim(self) -> int:
        self.fence += 1
        return self.fence

    def prepare(self, fence: int, publication: Publication) -> bool:
        if fence != self.fence or self.completed:
            return False
        self.publication = publication
        return True

    def complete(self, fence: int) -> bool:
        if fence != self.fence or self.completed or self.publication is None:
            return False
        self.publication = evolve(self.publication, state=PublicationState.COMPLETED)
        return True


@define
class Owner:
    """One attempt. Every `step` has at most one effect on the outside."""

    ledger: Ledger
    target: ObjectTarget
    key: str
    rows: list[dict[str, str]]
    on_existing: OnExisting
    discards: bool = True  # False: the guard under test is taken out
    fence: int = 0
    prepared: Publication | None = None
    staged: Staged | None = None
    decision: PublicationStep | None = None
    ended: str = ""  # why it stopped; "" while it goes on
    _next: str = "claim"
    _open: AsyncExitStack = field(factory=AsyncExitStack)

    async def step(self) -> None:
        match self._next:
            case "claim":
                if self.ledger.completed:
                    self.ended = "nothing to do"
                    return
                self.fence, self.prepared = self.ledger.claim(), self.ledger.publication
                self.key = self.prepared.object_key if self.prepared else self.key
                self._next = "discard"
            case "discard":
                for temporary in await self.target.list_temporaries(EXECUTION):
                    if self.discards and temporary.fence != self.fence:
                        await self.target.discard(temporary)
                self._next = "inspect"
            case "inspect":
                found = await self.target.inspect(self.key)
                self.decision = next_step(
                    key=self.key,
                    prepared=self.prepared,
                    found_digest=found.digest if found else None,
                    staged=self.staged,
                    on_existing=self.on_existing,
                )
                self._next = "act"
            case "act":
                self._next = "inspect"
                await self._act()

    async def _act(self) -> None:
        match self.decision:
            case Write():
                if self.on_existing is OnExisting.VERSION:
                    while await self.target.inspect(self.key) is not None:
                        self.key = next_version(self.key)
                session = await self._open.enter_async_context(
                    self.target.open_temporary(self.key, EXECUTION, self.fence, CsvEncoder(["a"]))
                )
                await session.write(self.rows)
                self.staged = await session.finish()
            case Prepare():
                assert self.staged is not None
                publication = Publication(
                    state=PublicationState.PREPARED,
                    target="out",
                    object_key=self.key,
                    temporary=self.staged.temporary,
                    digest=self.staged.digest,
                    size_bytes=self.staged.size_bytes,
                    item_count=self.staged.item_count,
                )
                if self.ledger.prepare(self.fence, publication):
                    self.prepared = publication
                else:
                    self.ended = "lost lease"
            case Place(replace=replace):
                assert self.staged is not None
                if await self.target.place(self.staged, self.key, replace=replace) is PlaceOutcome.SUPERSEDED:
                    self.ended = "superseded"
            case Complete():
                self.ended = "completed" if self.ledger.complete(self.fence) else "lost lease"
            case NextVersion():
                self.key = next_version(self.key)
            case Occupied():
                self.ended = "occupied"

    async def run(self) -> None:
        while not self.ended:
            await self.step()

    async def close(self) -> None:
        """The orderly end of an attempt; a killed owner never gets here."""
        await self._open.aclose()
