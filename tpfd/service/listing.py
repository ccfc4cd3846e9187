"""Pages of executions, interactions, late completions and facts.

Cursors are opaque. Where a list is put together from several index partitions (all statuses of a pipeline, all await
steps), they are read one after another and the cursor names the partition it stands in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from attrs import evolve, frozen

from tpfd import payloads
from tpfd.core.awaits import question_of
from tpfd.core.commit import execution_key_id
from tpfd.core.kinds import (
    EXECUTION,
    EXECUTION_BY_STATUS,
    EXECUTION_KEY,
    INTERACTION_BY_ASSIGNEE,
    INTERACTION_BY_GROUP,
    INTERACTION_BY_STEP,
    LATE_BY_EXECUTION,
    SEARCH_BY_VALUE,
    late_partition,
    pending_partition,
    search_partition,
    status_partition,
)
from tpfd.core.late import body_of
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    InteractionRecord,
    LateRecord,
    TenantId,
)
from tpfd.core.transact import Index, Page
from tpfd.errors import MalformedError, NotFound
from tpfd.http.service import FactPage
from tpfd.pipeline.model import StepKind
from tpfd.program import Program
from tpfd.runtime import Runtime

R = TypeVar("R")

@frozen
class Listing:
    """Answers what is asked for in pages."""

    runtime: Runtime

    async def executions(
        self,
        tenant: TenantId,
        status: str | None,
        pipeline: str | None,
        key: str | None,
        search: Mapping[str, str],
        limit: int,
        cursor: str | None,
    ) -> Page[ExecutionRecord]:
        """Root executions, newest first within each pipeline and status. Filters are joined by *and*."""
        pipelines = [self.runtime.program(pipeline).pipeline_id] if pipeline else sorted(self.runtime.programs)
        wanted = None if status is None else _status(status)
        if key is not None:
            found = [await self._by_key(tenant, name, key) for name in pipelines]
            return Page(tuple(record for record in found if record is not None and _fits(record, wanted, search)))
        if search:
            return await self._by_search(tenant, pipelines, wanted, search, limit, cursor)
        statuses = list(ExecutionStatus) if wanted is None else [wanted]
        partitions = [status_partition(tenant, name, one) for name in pipelines for one in statuses]
        return await self._joined(EXECUTION_BY_STATUS, partitions, limit, cursor, descending=True)

    async def _by_key(self, tenant: TenantId, pipeline: str, key: str) -> ExecutionRecord | None:
        row = await self.runtime.store.get(EXECUTION_KEY.key(tenant, execution_key_id(pipeline, key)))
        if row is None:
            return None
        return await self.runtime.store.get(EXECUTION.key(tenant, row.execution_id))

    async def _by_search(
        self,
        tenant: TenantId,
        pipelines: Sequence[str],
        status: ExecutionStatus | None,
        search: Mapping[str, str],
        limit: int,
        cursor: str | None,
    ) -> Page[ExecutionRecord]:
        """The first search key is read from its index, the others are compared."""
        name, value = next(iter(search.items()))
        declared = [one for one in pipelines if name in self.runtime.program(one).pipeline.search]
        if not declared:
            known = sorted({key for one in pipelines for key in self.runtime.program(one).pipeline.search})
            raise MalformedError(f"search key {name!r} is not declared; declared: {', '.join(known) or 'none'}")
        partitions = [search_partition(tenant, one, name, value) for one in declared]
        rows = await self._joined(SEARCH_BY_VALUE, partitions, limit, cursor, descending=True)
        found = await self.runtime.store.get_many([EXECUTION.key(tenant, row.execution_id) for row in rows.records])
        fitting = tuple(record for record in found if record is not None and _fits(record, status, search))
        return Page(fitting, rows.cursor)

    async def late(
        self, tenant: TenantId, execution_id: str | None, limit: int, cursor: str | None
    ) -> Page[LateRecord]:
        """Completions that changed nothing in an execution; None: the orphans."""
        partition = late_partition(tenant, execution_id)
        page = await self.runtime.store.query(LATE_BY_EXECUTION, partition, limit=limit, cursor=cursor)
        return Page(tuple([await self._with_body(record) for record in page.records]), page.cursor)

    async def _with_body(self, record: LateRecord) -> LateRecord:
        """The completion with its body, wherever that is stored."""
        if record.body is not None:
            return record
        return evolve(record, body=await payloads.text_of(self.runtime, record.tenant_id, body_of(record)))

    async def pending(
        self,
        tenant: TenantId,
        step: str | None,
        assignee: str | None,
        group: str | None,
        limit: int,
        cursor: str | None,
    ) -> Page[InteractionRecord]:
        """Open interactions, oldest first within a step. The narrowest filter is read from its index."""
        step_ids = self._await_step_ids(step)
        if assignee is not None:
            index, partitions = INTERACTION_BY_ASSIGNEE, [pending_partition(tenant, "assignee", assignee)]
        elif group is not None:
            index, partitions = INTERACTION_BY_GROUP, [pending_partition(tenant, "group", group)]
        else:
            index, partitions = INTERACTION_BY_STEP, [pending_partition(tenant, "step", one) for one in step_ids]
        page = await self._joined(index, partitions, limit, cursor, descending=False)
        fitting = tuple(
            record for record in page.records if record.step_id in step_ids and (group is None or record.group == group)
        )
        return Page(tuple([await self._with_request(record) for record in fitting]), page.cursor)

    async def _with_request(self, record: InteractionRecord) -> InteractionRecord:
        """The interaction with its request, wherever that is stored."""
        if record.request is not None:
            return record
        return evolve(record, request=await payloads.text_of(self.runtime, record.tenant_id, question_of(record)))

    def _await_step_ids(self, name: str | None) -> list[str]:
        """The await steps that a name means, in all pipelines; all of them without a name."""
        steps = [
            step
            for program in self.runtime.programs.values()
            for step in program.pipeline.steps
            if step.kind is StepKind.AWAIT and (name is None or step.answers_to(name))
        ]
        if name is not None and not steps:
            raise NotFound(f"no loaded pipeline has an await step {name!r}")
        return sorted({step.step_id for step in steps})

    def program_of_steps(self, pipeline: str | None, step_ids: Sequence[str]) -> Program:
        """The pipeline that has all these await steps.

        Raises:
            NotFound: none or no single one has.
        """
        if pipeline is not None:
            return self.runtime.program(pipeline)
        fitting = [
            program
            for program in self.runtime.programs.values()
            if all(
                any(step.answers_to(name) for step in program.pipeline.steps if step.kind is StepKind.AWAIT)
                for name in step_ids
            )
        ]
        if len(fitting) != 1:
            which = "no loaded pipeline has" if not fitting else "several pipelines have"
            raise NotFound(f"{which} the await steps {', '.join(step_ids)}; name the pipeline")
        return fitting[0]

    async def feed(
        self, tenant: TenantId, execution_id: str | None, pipeline: str | None, after: int, limit: int
    ) -> FactPage:
        """Facts above `after` that pass the filter, from as many pages as it takes to find one."""
        store = self.runtime.store
        if execution_id is not None:
            # Before the facts are read: one that comes in between is then read again, never passed over.
            end = await store.last_seq()
            facts = await store.history(tenant, ExecutionId(execution_id), after=after, limit=limit)
            last = facts[-1].seq if facts else after
            return FactPage(tuple(facts), last if len(facts) == limit else max(last, end))
        while True:
            page = await store.feed(after=after, limit=limit)
            fitting = [one for one in page if one.fact.tenant_id == tenant and pipeline in (None, one.fact.pipeline_id)]
            after = page[-1].seq if page else after
            if fitting or len(page) < limit:
                return FactPage(tuple(fitting), after)

    async def _joined(
        self, index: Index[R], partitions: Sequence[str], limit: int, cursor: str | None, *, descending: bool
    ) -> Page[R]:
        """One page over several partitions, read one after another. The cursor is `<partition number>:<cursor>`."""
        place, inner = _split(cursor, len(partitions))
        records: list[R] = []
        while place < len(partitions):
            page = await self.runtime.store.query(
                index, partitions[place], limit=limit - len(records), cursor=inner, descending=descending
            )
            records.extend(page.records)
            inner = page.cursor
            if inner is None:
                place += 1
            if len(records) >= limit:
                break
        more = place < len(partitions)
        return Page(tuple(records), f"{place}:{inner or ''}" if more else None)


def _split(cursor: str | None, count: int) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    number, colon, inner = cursor.partition(":")
    if not colon or not number.isascii() or not number.isdigit() or int(number) >= count:
        raise MalformedError("the cursor is not one of ours; start again without it", code="bad_cursor")
    return int(number), inner or None


def _status(name: str) -> ExecutionStatus:
    try:
        return ExecutionStatus(name)
    except ValueError:
        known = ", ".join(ExecutionStatus)
        raise MalformedError(f"there is no status {name!r}; there are: {known}", code="unknown_status") from None


def _fits(record: ExecutionRecord, status: ExecutionStatus | None, search: Mapping[str, str]) -> bool:
    return (status is None or record.status is status) and all(
        record.search.get(name) == value for name, value in search.items()
    )
