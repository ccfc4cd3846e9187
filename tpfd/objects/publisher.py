"""Publishes the terminal output of executions as objects: the tasks that obey ``tpfd.core.publication``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from attrs import define, frozen

from tpfd.core.publication import (
    Complete,
    NextVersion,
    Occupied,
    OnExisting,
    Place,
    Prepare,
    Staged,
    next_step,
)
from tpfd.core.records import ExecutionRecord, Publication, PublicationState
from tpfd.errors import InternalError, LostLease, NonRetryableError
from tpfd.objects.formats import Encoder, Row
from tpfd.objects.keys import next_version, render_key
from tpfd.objects.protocol import ObjectTarget, PlaceOutcome, WriteSession

Prepared = Callable[[Publication], Awaitable[None]]


@frozen(kw_only=True)
class ObjectPublisher:
    """Puts the outputs of one pipeline in place.

    Attributes:
        name: of the `publish` entry.
        key_template: see ``tpfd.objects.keys``.
        make_encoder: gives a fresh encoder for each object.
        now_epoch_ms: wall clock, for `{date}`.
    """

    target: ObjectTarget
    name: str
    key_template: str
    on_existing: OnExisting
    make_encoder: Callable[[], Encoder]
    now_epoch_ms: Callable[[], int]

    async def adopt(self, record: ExecutionRecord) -> bool:
        """Whether the prepared object of an earlier attempt stands at its key, whole."""
        if record.publication is None:
            return False
        await self._discard_others(record)
        found = await self.target.inspect(record.publication.object_key)
        step = next_step(
            key=record.publication.object_key,
            prepared=record.publication,
            found_digest=None if found is None else found.digest,
            staged=None,
            on_existing=self.on_existing,
        )
        return isinstance(step, Complete)

    @asynccontextmanager
    async def open(self, record: ExecutionRecord) -> AsyncIterator[_Output]:
        """Starts staging; what is not placed is removed at the end of the block."""
        await self._discard_others(record)
        key = self._key(record) if record.publication is None else record.publication.object_key
        if self.on_existing is OnExisting.VERSION:
            # Some storage cannot move to another key what was staged for this one.
            while await self.target.inspect(key) is not None:
                key = next_version(key)
        async with self.target.open_temporary(key, record.execution_id, record.fence, self.make_encoder()) as session:
            yield _Output(self, record, session, key)

    async def _discard_others(self, record: ExecutionRecord) -> None:
        """Takes the temporaries of older fences away; from then on their owners cannot place anything."""
        for temporary in await self.target.list_temporaries(record.execution_id):
            if temporary.fence < record.fence:
                await self.target.discard(temporary)

    def _key(self, record: ExecutionRecord) -> str:
        date = datetime.fromtimestamp(self.now_epoch_ms() / 1000, tz=UTC).date().isoformat()
        return render_key(
            self.key_template,
            {
                "executionId": record.execution_id,
                "pipelineId": record.pipeline_id,
                "date": date,
                "inputName": record.source_key or record.execution_id,
            },
        )


@define(eq=False)
class _Output:
    """The output of one attempt, being staged."""

    publisher: ObjectPublisher
    record: ExecutionRecord
    session: WriteSession
    key: str

    async def write(self, rows: Sequence[Row]) -> None:
        await self.session.write(rows)

    async def place(self, prepare: Prepared) -> None:
        """Ends the object and does what ``next_step`` says until it is in place."""
        target = self.publisher.target
        staged = await self.session.finish()
        prepared = self.record.publication
        while True:
            found = await target.inspect(self.key)
            step = next_step(
                key=self.key,
                prepared=prepared,
                found_digest=None if found is None else found.digest,
                staged=staged,
                on_existing=self.publisher.on_existing,
            )
            match step:
                case Complete():
                    return
                case Prepare():
                    prepared = self._publication(staged)
                    await prepare(prepared)
                case Place(replace):
                    placed = await target.place(staged, self.key, replace=replace)
                    if placed is PlaceOutcome.SUPERSEDED:
                        raise LostLease("a newer owner took the staged output away")
                case NextVersion():
                    self.key = next_version(self.key)
                case Occupied(message):
                    raise NonRetryableError(message, code="output_exists")
                case _:
                    raise InternalError(f"a staged output cannot need {type(step).__name__}")

    def _publication(self, staged: Staged) -> Publication:
        return Publication(
            state=PublicationState.PREPARED,
            target=self.publisher.name,
            object_key=self.key,
            temporary=staged.temporary,
            digest=staged.digest,
            size_bytes=staged.size_bytes,
            item_count=staged.item_count,
        )
