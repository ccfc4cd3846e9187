"""Takes objects in: each settled object that is listed becomes one execution, once.

What makes an object "the same one" is its identity; the execution and the row that remembers the identity are written
in one transaction. The row lives as long as the object is listed and, whether that is so or not, as long as its
execution is kept: neither a restart nor a clean-up of old executions nor a disk that was away runs a file twice.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NoReturn, Protocol

import trio
from attrs import define, evolve, field, frozen

from tpfd.boundaries import one_pass
from tpfd.core.kinds import EXECUTION, INGESTED, INGESTED_BY_SOURCE
from tpfd.core.records import ExecutionId, ExecutionStatus, IngestedRecord, TenantId
from tpfd.core.transact import MAX_TOUCHED, Decision, Snapshot
from tpfd.errors import AdmissionError, Conflict, NonRetryableError, OutsideError, StoreError
from tpfd.objects.protocol import AfterAction, AfterKind, ListedObject, ObjectSource
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.stores.protocol import Store

log = get_logger("tpfd.ingest")

LIST_PAGE = 2_000
"""Objects listed at a time."""
KNOWN_COUNT = 50_000
"""Objects remembered in memory as taken in, so that a poll need not ask the store about them; about 10 MiB."""
ROW_PAGE = 500
"""Rows read at a time."""
FORGET_EVERY = 600
"""Polls between two looks for rows whose object is gone."""


class Submit(Protocol):
    """Submits an execution for an object."""

    async def __call__(
        self, tenant_id: TenantId, source: str, listed: ListedObject, data: object, identity: str
    ) -> tuple[ExecutionId, bool]:
        """Its execution, and whether it was there already. Raises PayloadError, StoreError."""


@frozen
class _Known:
    """An object that was taken in."""

    etag: str
    identity: str
    execution_id: ExecutionId
    after_due: bool


@define(eq=False, kw_only=True)
class Ingest:
    """Polls one source of one pipeline.

    Attributes:
        name: of the `sources` entry, with its pipeline.
        read: an object as the JSON data of the first step's input.
        batch_size: objects taken in per poll.
        trouble: what readiness shows.
    """

    name: str
    tenant_id: TenantId
    source: ObjectSource
    read: Callable[[ListedObject], Awaitable[object]]
    submit: Submit
    store: Store
    after: AfterAction
    poll_interval_ms: int
    batch_size: int
    trouble: dict[str, str]
    _known: dict[str, _Known] = field(factory=dict, init=False)
    _refused: dict[str, str] = field(factory=dict, init=False)
    _poll_count: int = field(default=0, init=False)

    async def run(self) -> NoReturn:
        """Polls for ever."""
        repeating = Repeating(log)
        while True:
            await one_pass(f"ingest {self.name}", repeating, self.trouble, self.poll)
            await trio.sleep(self.poll_interval_ms / 1000)

    async def poll(self) -> int:
        """One look at the source; the number of executions submitted.

        Raises:
            OutsideError: the listing or the store failed, or an object that its storage refuses is left over; all
                others were looked at.
        """
        taken = 0
        refused: OutsideError | None = None
        async with aclosing(self._listing()) as listing:
            async for listed in listing:
                try:
                    taken += await self._look_at(listed, is_full=taken >= self.batch_size)
                except StoreError:
                    raise
                except OutsideError as error:
                    refused = error
        if self._poll_count % FORGET_EVERY == 0:
            await self._forget_gone()
        self._poll_count += 1
        if refused is not None:
            raise refused
        return taken

    async def _look_at(self, listed: ListedObject, *, is_full: bool) -> bool:
        """Takes an object in, or does what is due about one that was taken in; True when it is new."""
        known = self._known.get(listed.key)
        if known is not None and known.etag == listed.etag:
            if known.after_due:
                await self._after(listed, known)
            return False
        if not listed.settled or self._refused.get(listed.key) == listed.etag or is_full:
            return False
        return await self._take(listed)

    async def _listing(self) -> AsyncGenerator[ListedObject, None]:
        after: str | None = None
        while True:
            page = await self.source.list_page(LIST_PAGE, after)
            for listed in page.objects:
                yield listed
            if (after := page.next_after) is None:
                return

    async def _take(self, listed: ListedObject) -> bool:
        """Submits an object unless it was taken in before; True when it is new."""
        try:
            identity = await self.source.identity(listed)
            row = await self.store.get(INGESTED.key(self.tenant_id, identity))
            if row is not None:
                self._remember(listed, _Known(listed.etag, identity, row.execution_id, not row.after_done))
                return False
            data = await self.read(listed)
            execution_id, duplicate = await self.submit(self.tenant_id, self.name, listed, data, identity)
        except Conflict as error:
            # It changed between listing and reading: the next poll sees what it is now.
            log.info("object_changed", source=self.name, key=listed.key, message=error.message)
            return False
        except (AdmissionError, NonRetryableError) as error:
            self._refused[listed.key] = listed.etag
            log.error("object_refused", source=self.name, key=listed.key, message=error.message)
            return False
        self._remember(listed, _Known(listed.etag, identity, execution_id, self.after.kind is not AfterKind.KEEP))
        log.info("object_taken", source=self.name, key=listed.key, execution_id=execution_id, duplicate=duplicate)
        return not duplicate

    def _remember(self, listed: ListedObject, known: _Known) -> None:
        self._known.pop(listed.key, None)
        while len(self._known) >= KNOWN_COUNT:
            del self._known[next(iter(self._known))]
        self._known[listed.key] = known

    async def _after(self, listed: ListedObject, known: _Known) -> None:
        """Deletes or moves an object whose execution has succeeded."""
        record = await self.store.get(EXECUTION.key(self.tenant_id, known.execution_id))
        if record is not None and record.status is not ExecutionStatus.SUCCEEDED:
            return
        # Without a record its execution is long over and removed.
        try:
            if await self.source.after(listed, self.after):
                log.info("object_done", source=self.name, key=listed.key, action=self.after.kind)
        except NonRetryableError as error:
            # It was taken in and has succeeded; it stays where it is, and what is known of it keeps it from more.
            log.error("object_left", source=self.name, key=listed.key, action=self.after.kind, message=error.message)
            self._remember(listed, evolve(known, after_due=False))
            return
        del self._known[listed.key]

    async def _forget_gone(self) -> None:
        """Removes the rows of objects that are not listed any more. Both lists are read in key order, side by side."""
        gone: list[IngestedRecord] = []
        async with aclosing(self._rows()) as rows, aclosing(self._listing()) as listing:
            row = await anext(rows, None)
            async for listed in listing:
                while row is not None and row.object_key < listed.key:
                    gone = await self._one_more(gone, row)
                    row = await anext(rows, None)
                while row is not None and row.object_key == listed.key:
                    row = await anext(rows, None)
            while row is not None:
                gone = await self._one_more(gone, row)
                row = await anext(rows, None)
        await self._forget(gone)

    async def _rows(self) -> AsyncGenerator[IngestedRecord, None]:
        cursor: str | None = None
        while True:
            page = await self.store.query(
                INGESTED_BY_SOURCE, f"{self.tenant_id}/{self.name}", limit=ROW_PAGE, cursor=cursor
            )
            for row in page.records:
                yield row
            if (cursor := page.cursor) is None:
                return

    async def _one_more(self, gone: list[IngestedRecord], row: IngestedRecord) -> list[IngestedRecord]:
        """Collects rows until they are worth a look at the store; what is still to be looked at."""
        gone.append(row)
        if len(gone) < ROW_PAGE:
            return gone
        await self._forget(gone)
        return []

    async def _forget(self, gone: Sequence[IngestedRecord]) -> None:
        """Removes those rows whose execution was removed, too.

        An object may be away for a while (a disk that was not mounted, a listing that began before it came): as long as
        its execution is known, so is it.
        """
        found = await self.store.get_many([EXECUTION.key(self.tenant_id, row.execution_id) for row in gone])
        over = [row for row, record in zip(gone, found, strict=True) if record is None]
        for first in range(0, len(over), MAX_TOUCHED):
            page = over[first : first + MAX_TOUCHED]
            decision = Decision(None, deletes=tuple(INGESTED.key_of(row) for row in page))
            await self.store.transact((), functools.partial(_decided, decision))
            for row in page:
                self._known.pop(row.object_key, None)
                self._refused.pop(row.object_key, None)


def _decided(decision: Decision[None], _: Snapshot) -> Decision[None]:
    return decision
