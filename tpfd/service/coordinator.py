"""The daemon as its edge sees it (``tpfd.http.service.Service``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import trio
from attrs import define

from tpfd import payloads
from tpfd.awaits.admission import Admission, Answer
from tpfd.bell import wait_for
from tpfd.core.contracts import held_reason
from tpfd.core.events import Cancel, Event, Redrive
from tpfd.core.execution import Refused
from tpfd.core.kinds import EXECUTION, SENT_TRANSPORTS
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    InteractionRecord,
    LateRecord,
    SequencedFact,
    TenantId,
)
from tpfd.core.transact import Page
from tpfd.errors import Conflict, MalformedError, NotFound, TpfdError
from tpfd.http.service import (
    Completed,
    Completion,
    FactPage,
    ProviderSocket,
    Readiness,
    RedriveReport,
    SubmitItem,
    Submitted,
)
from tpfd.pipeline.model import StepKind
from tpfd.runtime import Runtime
from tpfd.service.listing import Listing
from tpfd.service.submitting import Submitting
from tpfd.transports.websocket import ProviderSockets

REDRIVE_PAUSE_S = 0.01
"""Between two re-drives of a bulk: it must not push aside what else the store has to do."""

BULK_PAGE_COUNT = 100
BULK_PAGES = 20
"""Pages that one slice of a bulk looks through, whether it finds something or not: a request must end in time."""

BULK_STATUSES = (ExecutionStatus.FAILED, ExecutionStatus.DLQ)


@define(eq=False, kw_only=True)
class Coordinator:
    """Answers the edge.

    Attributes:
        draining: set when the drain begins, so that long polls end.
    """

    runtime: Runtime
    submitting: Submitting
    listing: Listing
    admission: Admission
    sockets: ProviderSockets
    draining: trio.Event

    async def submit(self, tenant: TenantId, item: SubmitItem, *, trace_parent: str | None) -> Submitted:
        return await self.submitting.submit(tenant, item, trace_parent=trace_parent)

    async def submit_many(
        self, tenant: TenantId, items: Sequence[SubmitItem], *, trace_parent: str | None
    ) -> list[Submitted | TpfdError]:
        return await self.submitting.submit_many(tenant, items, trace_parent=trace_parent)

    async def execution(self, tenant: TenantId, execution_id: str) -> ExecutionRecord:
        record = await self.runtime.store.get(EXECUTION.key(tenant, execution_id))
        if record is None:
            raise NotFound(f"there is no execution {execution_id!r}")
        return record

    async def wait_terminal(self, tenant: TenantId, execution_id: str, *, wait_ms: int) -> ExecutionRecord:
        with trio.move_on_after(wait_ms / 1000):
            while True:
                ticket = self.runtime.bells.ended.ticket()
                record = await self.execution(tenant, execution_id)
                if record.status.terminal or self.draining.is_set():
                    return record
                # The poll is for ends that came through another process of a store that does not ring.
                await wait_for(ticket, 1.0)
        return await self.execution(tenant, execution_id)

    def held_reason(self, record: ExecutionRecord) -> str | None:
        return None if record.status.terminal else held_reason(record, self.runtime.contracts)

    async def result_json(self, record: ExecutionRecord) -> str | None:
        if record.result is None:
            return None
        if record.result.outputs_of is None:
            return await payloads.text_of(self.runtime, record.tenant_id, record.result)
        texts = [text async for text in payloads.texts_of(self.runtime, record.tenant_id, record.result)]
        return "[" + ",".join(texts) + "]"

    async def executions(
        self,
        tenant: TenantId,
        *,
        status: str | None,
        pipeline: str | None,
        key: str | None,
        search: Mapping[str, str],
        limit: int,
        cursor: str | None,
    ) -> Page[ExecutionRecord]:
        return await self.listing.executions(tenant, status, pipeline, key, search, limit, cursor)

    async def history(self, tenant: TenantId, execution_id: str, *, after: int, limit: int) -> list[SequencedFact]:
        facts = await self.runtime.store.history(tenant, ExecutionId(execution_id), after=after, limit=limit)
        if not facts:
            await self.execution(tenant, execution_id)
        return facts

    async def late(
        self, tenant: TenantId, execution_id: str | None, *, limit: int, cursor: str | None
    ) -> Page[LateRecord]:
        if execution_id is not None:
            await self.execution(tenant, execution_id)
        return await self.listing.late(tenant, execution_id, limit, cursor)

    async def cancel(self, tenant: TenantId, execution_id: str, *, reason: str, actor: str) -> ExecutionRecord:
        return await self._apply(tenant, execution_id, Cancel(reason=reason, actor=actor))

    async def pending(
        self,
        tenant: TenantId,
        *,
        step_id: str | None,
        assignee: str | None,
        group: str | None,
        limit: int,
        cursor: str | None,
    ) -> Page[InteractionRecord]:
        return await self.listing.pending(tenant, step_id, assignee, group, limit, cursor)

    async def complete(self, completion: Completion) -> Completed:
        admitted = await self.admission.complete(
            Answer(
                tenant_id=completion.tenant_id,
                interaction_id=completion.interaction_id,
                correlation_id=completion.correlation_id,
                resume_token=completion.resume_token,
                key=completion.idempotency_key,
                payload=completion.payload,
                actor=completion.actor,
            )
        )
        return _completed(*admitted)

    async def match_orphan(
        self, tenant: TenantId, orphan_id: str, *, interaction_id: str, actor: str
    ) -> Completed:
        return _completed(*await self.admission.match(tenant, orphan_id, interaction_id, actor))

    async def redrive(
        self,
        tenant: TenantId,
        execution_id: str,
        *,
        expected_version: int,
        reason: str,
        allow_failed: bool,
        confirmed_stopped: bool,
        actor: str,
    ) -> ExecutionRecord:
        event = Redrive(
            expected_version=expected_version,
            reason=reason,
            actor=actor,
            allow_failed=allow_failed,
            confirmed_stopped=confirmed_stopped,
        )
        return await self._apply(tenant, execution_id, event)

    async def redrive_many(
        self,
        tenant: TenantId,
        *,
        status: str,
        pipeline: str | None,
        error_code: str | None,
        reason: str,
        limit: int,
        cursor: str | None,
        dry_run: bool,
        actor: str,
    ) -> RedriveReport:
        if status not in BULK_STATUSES:
            raise MalformedError("only FAILED and DLQ can be re-driven in bulk", code="status_not_bulk")
        done: list[str] = []
        for _ in range(BULK_PAGES):
            # Never more than there is room for, so that the cursor stands behind the last one that was looked at.
            size = min(BULK_PAGE_COUNT, limit - len(done))
            page = await self.listing.executions(tenant, status, pipeline, None, {}, size, cursor)
            for record in page.records:
                fits = error_code is None or record.error_code == error_code
                if fits and (dry_run or await self._redriven(record, reason, actor)):
                    done.append(record.execution_id)
            cursor = page.cursor
            if cursor is None or len(done) == limit:
                break
        return RedriveReport(tuple(done), cursor)

    async def _redriven(self, record: ExecutionRecord, reason: str, actor: str) -> bool:
        """Re-drives one of a bulk; False when it moved meanwhile."""
        event = Redrive(expected_version=record.version, reason=reason, actor=actor, allow_failed=True)
        done = await self.runtime.commit(record.tenant_id, record.execution_id, event)
        await trio.sleep(REDRIVE_PAUSE_S)
        return not isinstance(done.outcome, Refused)

    async def feed(
        self, tenant: TenantId, *, execution_id: str | None, pipeline: str | None, after: int, limit: int
    ) -> FactPage:
        return await self.listing.feed(tenant, execution_id, pipeline, after, limit)

    async def journal_end(self) -> int:
        return await self.runtime.store.last_seq()

    async def wait_facts(self, after: int) -> None:
        while True:
            ticket = self.runtime.bells.facts.ticket()
            if await self.runtime.store.last_seq() > after or self.draining.is_set():
                return
            await wait_for(ticket, 1.0)

    def attach(
        self, tenant: TenantId, *, pipeline: str | None, step_ids: Sequence[str], credit: int
    ) -> AbstractAsyncContextManager[ProviderSocket]:
        program = self.listing.program_of_steps(pipeline, step_ids)
        steps = [program.pipeline.await_step(step_id) for step_id in step_ids]
        for step in steps:
            transport = program.terms[step.index].transport_type
            if transport in SENT_TRANSPORTS:
                # Its requests go another way; taken here, too, they would be out in two places.
                raise Conflict(f"step {step.step_id} asks over {transport}, not over sockets", code="asks_elsewhere")
        return self.sockets.attach(tenant, program.pipeline_id, [step.step_id for step in steps], credit)

    def readiness(self) -> Readiness:
        reasons = tuple(f"{name}: {message}" for name, message in sorted(self.runtime.trouble.items()))
        if self.draining.is_set():
            reasons = ("draining", *reasons)
        return Readiness(not reasons, reasons)

    def overview(self) -> Mapping[str, object]:
        return {
            "node": self.runtime.node,
            "pipelines": [
                {
                    "id": program.pipeline_id,
                    "contractVersion": program.pipeline.contract_version,
                    "steps": [
                        {"id": step.step_id, "name": step.name, "kind": step.kind, "await": step.kind is StepKind.AWAIT}
                        for step in program.pipeline.steps
                    ],
                }
                for program in self.runtime.programs.values()
            ],
        }

    async def _apply(self, tenant: TenantId, execution_id: str, event: Event) -> ExecutionRecord:
        """Applies an operator's event; a refusal is a Conflict here, at the edge."""
        done = await self.runtime.commit(tenant, ExecutionId(execution_id), event)
        if isinstance(done.outcome, Refused):
            if done.outcome.code == "not_found":
                raise NotFound(f"there is no execution {execution_id!r}")
            raise Conflict(done.outcome.message, code=done.outcome.code)
        return done.outcome.record


def _completed(record: InteractionRecord, duplicate: bool) -> Completed:
    return Completed(record.interaction_id, record.execution_id, record.step_id, record.status, duplicate)
