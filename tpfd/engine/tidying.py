"""What is left to do about ended executions: the dead letter, the clean-up below, removal when their time is over.

It runs in a loop of its own, beside the sweep: a cancelled execution may have 20,000 items to release, and nobody
else's deadline waits for them. One pass at a time, of each execution one page at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol

from attrs import define, field

from tpfd import payloads
from tpfd.core import cleanup, ids
from tpfd.core.commit import execution_key_id, search_records
from tpfd.core.contracts import runs_here
from tpfd.core.deadletter import DeadLetter, dead_letter
from tpfd.core.events import CleanedUp, DeadLetterSent
from tpfd.core.itemised import block_count
from tpfd.core.kinds import (
    BLOCK,
    CHILD_BY_UNIT,
    EXECUTION,
    EXECUTION_DUE,
    EXECUTION_KEY,
    INTERACTION,
    INTERACTION_BY_UNIT,
    LATE,
    LATE_BY_EXECUTION,
    MANIFEST_BY_OWNER,
    SEARCH,
    TIDY_PARTITION,
    UNIT,
    block_id,
    late_partition,
    owner_partition,
)
from tpfd.core.records import ExecutionId, ExecutionRecord, InteractionRecord, TenantId, UnitId
from tpfd.core.transact import Key, Read
from tpfd.engine.passes import run_passes, work_through
from tpfd.errors import DispatchError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.pipeline.model import StepKind
from tpfd.runtime import Runtime

log = get_logger("tpfd.tidying")


class DeadLetters(Protocol):
    """Where dead letters go (see ``tpfd.dispatch.protocol``)."""

    async def publish(self, letter: DeadLetter) -> None:
        """Raises DispatchError; it is tried again."""


@define(eq=False, kw_only=True)
class Tidying:
    """Works on ended executions.

    Attributes:
        settled: told of interactions that were cancelled, so that their sockets get their places back.
        forget: removes the journal of an execution.
    """

    runtime: Runtime
    dead_letters: DeadLetters
    settled: Callable[[InteractionRecord], None]
    forget: Callable[[TenantId, ExecutionId], Awaitable[None]]
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)
    _letters: Repeating = field(factory=lambda: Repeating(log), init=False)
    _undelivered: DispatchError | None = field(default=None, init=False)

    async def run(self) -> NoReturn:
        """Tidies for ever: when an execution ended, when the time of one is over, at the latest after the interval."""
        await run_passes("tidying", self._repeating, self.runtime, self.runtime.bells.tidy, self.tidy)

    async def tidy(self) -> float:
        """One pass over all ended executions that have something due; seconds until the next thing is."""
        wait_s = await work_through(self.runtime, EXECUTION_DUE, TIDY_PARTITION, self._each)
        self._tell_of_letters()
        return wait_s

    async def _each(self, record: ExecutionRecord) -> None:
        """Works on an ended execution. A dead letter that cannot be sent keeps nothing else waiting."""
        try:
            await self.work_on(record)
        except DispatchError as error:
            self._undelivered = error

    def _tell_of_letters(self) -> None:
        error, self._undelivered = self._undelivered, None
        if error is None:
            self.runtime.trouble.pop("dead_letters", None)
            self._letters.worked("dead_letters_work_again")
            return
        self.runtime.trouble["dead_letters"] = error.message
        self._letters.failed("dead_letter_failed", code=error.code, message=error.message)

    async def work_on(self, record: ExecutionRecord) -> None:
        """Does all that is due for one execution.

        Raises:
            OutsideError: the store or the dead-letter provider failed; doing it again is harmless.
        """
        if record.cleanup_due:
            await self._clean_up(record)
            await self.runtime.commit(
                record.tenant_id, record.execution_id, CleanedUp(redrive_count=record.redrive_count)
            )
        if record.dead_letter_due:
            await self.dead_letters.publish(
                dead_letter(record, self._step_id(record), record.lease_owner, self.runtime.now())
            )
            await self.runtime.commit(
                record.tenant_id, record.execution_id, DeadLetterSent(redrive_count=record.redrive_count)
            )
        if cleanup.removable(record, self.runtime.now()):
            await self._remove(record)

    def _step_id(self, record: ExecutionRecord) -> str | None:
        if not runs_here(record, self.runtime.contracts):
            return None
        program = self.runtime.program(record.pipeline_id)
        return None if record.step_index >= program.end else program.step(record.step_index).step_id

    def _unit_ids(self, record: ExecutionRecord) -> list[UnitId]:
        """Units that the execution may have: one per await step, under derived ids."""
        if record.await_unit_id is None:
            return []
        if not runs_here(record, self.runtime.contracts):
            # Which steps ask is not known here: any up to the one where it waits or waited last.
            last = max(record.step_index, ids.step_index_of(record.await_unit_id))
            return [ids.unit_id(record.execution_id, index) for index in range(last + 1)]
        return [
            ids.unit_id(record.execution_id, step.index)
            for step in self.runtime.program(record.pipeline_id).pipeline.steps
            if step.kind is StepKind.AWAIT
        ]

    async def _clean_up(self, record: ExecutionRecord) -> None:
        runtime = self.runtime
        for unit_id in self._unit_ids(record):
            key = UNIT.key(record.tenant_id, unit_id)
            await runtime.store.transact(
                (Read(EXECUTION.key_of(record)), Read(key)),
                functools.partial(cleanup.release_unit, ended=record, unit_key=key, now=runtime.now()),
            )
            cursor: str | None = None
            while True:
                page = await runtime.store.query(
                    INTERACTION_BY_UNIT, unit_id, limit=cleanup.CLEANUP_PAGE, cursor=cursor
                )
                await self._release(record, page.records, ())
                if (cursor := page.cursor) is None:
                    break
            while True:
                children = await runtime.store.query(CHILD_BY_UNIT, unit_id, limit=cleanup.CLEANUP_PAGE, cursor=cursor)
                await self._release(record, (), children.records)
                if (cursor := children.cursor) is None:
                    break

    async def _release(
        self,
        record: ExecutionRecord,
        interactions: Sequence[InteractionRecord],
        children: Sequence[ExecutionRecord],
    ) -> None:
        still_open = [interaction for interaction in interactions if interaction.status.open]
        running = [child for child in children if not child.status.terminal]
        if not still_open and not running:
            return
        cancelled = await self.runtime.store.transact(
            cleanup.page_reads(record, still_open, running),
            functools.partial(
                cleanup.release_page,
                ended=record,
                interactions=still_open,
                children=running,
                now=self.runtime.now(),
                policy=self.runtime.policy,
            ),
        )
        for interaction in cancelled:
            self.settled(interaction)

    # ── removal ──

    async def _remove(self, record: ExecutionRecord) -> None:
        """Removes an execution and all that belongs to it; its own row last, so that it can be taken up again."""
        root = EXECUTION.key_of(record)
        if not await self._remove_below(root, record) or not await self._remove_payloads(root, record):
            return
        own: list[Key[Any]] = [SEARCH.key_of(row) for row in search_records(record)]
        if record.execution_key is not None:
            key_id = execution_key_id(record.pipeline_id, record.execution_key)
            own.append(EXECUTION_KEY.key(record.tenant_id, key_id))
        await self.forget(record.tenant_id, record.execution_id)
        await self._delete(root, [*own, root])
        log.debug("execution_removed", execution_id=record.execution_id, status=record.status)

    async def _remove_below(self, root: Key[ExecutionRecord], record: ExecutionRecord) -> bool:
        runtime = self.runtime
        for unit_id in self._unit_ids(record):
            unit = await runtime.store.get(UNIT.key(record.tenant_id, unit_id))
            if unit is None:
                continue
            while True:
                children = await runtime.store.query(CHILD_BY_UNIT, unit_id, limit=cleanup.CLEANUP_PAGE)
                if not children.records:
                    break
                for child in children.records:
                    await self._remove_below(root, child)
                if not await self._delete(root, [EXECUTION.key_of(child) for child in children.records]):
                    return False
            while True:
                page = await runtime.store.query(INTERACTION_BY_UNIT, unit_id, limit=cleanup.CLEANUP_PAGE)
                if not page.records:
                    break
                if not await self._delete(root, [INTERACTION.key_of(row) for row in page.records]):
                    return False
            blocks = [
                BLOCK.key(record.tenant_id, block_id(unit_id, number))
                for number in range(block_count(unit.expected_item_count or 0))
            ]
            if not await self._delete(root, [*blocks, UNIT.key_of(unit)]):
                return False
        while True:
            partition = late_partition(record.tenant_id, record.execution_id)
            late = await runtime.store.query(LATE_BY_EXECUTION, partition, limit=cleanup.CLEANUP_PAGE)
            if not late.records:
                return True
            keys: list[Key[Any]] = [LATE.key_of(row) for row in late.records]
            for row in late.records:  # of an orphan that was matched, the body has another owner
                if row.stored_id is not None:
                    keys = [*await payloads.keys_of(self.runtime, record.tenant_id, row.stored_id), *keys]
            if not await self._delete(root, keys):
                return False

    async def _remove_payloads(self, root: Key[ExecutionRecord], record: ExecutionRecord) -> bool:
        """Removes the large values of an execution and its children, also those that no row came to name."""
        partition = owner_partition(record.tenant_id, record.execution_id)
        while True:
            page = await self.runtime.store.query(MANIFEST_BY_OWNER, partition, limit=cleanup.CLEANUP_PAGE)
            if not page.records:
                return True
            for manifest in page.records:
                if not await self._delete(root, payloads.rows_of(manifest)):
                    return False

    async def _delete(self, root: Key[ExecutionRecord], keys: Sequence[Key[Any]]) -> bool:
        """Removes rows page by page; False when the execution was taken up again."""
        for first in range(0, len(keys), cleanup.CLEANUP_PAGE):
            removed = await self.runtime.store.transact(
                (Read(root),),
                functools.partial(
                    cleanup.remove_page,
                    root=root,
                    keys=keys[first : first + cleanup.CLEANUP_PAGE],
                    now=self.runtime.now(),
                ),
            )
            if not removed:
                return False
        return True
