"""A daemon in memory, for the edge to talk to: it keeps what it is told and answers what the test has set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import orjson
import trio

from tpfd.codec.strict_json import parse_json
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    InteractionId,
    InteractionRecord,
    InteractionStatus,
    JsonText,
    LateRecord,
    Payload,
    ResultShape,
    SequencedFact,
    TenantId,
    UnitId,
)
from tpfd.core.transact import Page
from tpfd.errors import Conflict, NotFound, PayloadError, Problem, StoreError, TimedOut, TpfdError
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

NOW = 1_700_000_000_000


def execution(number: int, tenant: str = "default", **changes: Any) -> ExecutionRecord:
    fields: dict[str, Any] = {
        "tenant_id": TenantId(tenant),
        "execution_id": ExecutionId(f"E{number:04d}"),
        "pipeline_id": "orders",
        "contract_version": "c1",
        "result_shape": ResultShape.ONE,
        "status": ExecutionStatus.QUEUED,
        "version": 1,
        "input": Payload(type_name="Order", json=JsonText("{}")),
        "created_epoch_ms": NOW,
        "updated_epoch_ms": NOW,
    }
    return ExecutionRecord(**{**fields, **changes})


def interaction(number: int, tenant: str = "default", **changes: Any) -> InteractionRecord:
    fields: dict[str, Any] = {
        "tenant_id": TenantId(tenant),
        "interaction_id": InteractionId(f"I{number:04d}"),
        "execution_id": ExecutionId("E0001"),
        "unit_id": UnitId("U1"),
        "pipeline_id": "orders",
        "step_id": "await-decision",
        "step_index": 1,
        "status": InteractionStatus.WAITING,
        "version": 1,
        "input_type": "Question",
        "output_type": "Decision",
        "correlation_id": f"corr-{number}",
        "idempotency_key": f"key-{number}",
        "request": JsonText('{"amount":9.70}'),
        "request_digest": "d",
        "transport_type": "interaction-api",
        "deadline_epoch_ms": NOW + 60_000,
        "created_epoch_ms": NOW,
        "updated_epoch_ms": NOW,
    }
    return InteractionRecord(**{**fields, **changes})


def fact(seq: int, tenant: str = "default", execution_id: str = "E0001") -> SequencedFact:
    return SequencedFact(
        seq,
        Fact(
            tenant_id=TenantId(tenant),
            execution_id=ExecutionId(execution_id),
            pipeline_id="orders",
            key=f"fact-{seq}",
            type=FactType.RUN_SUBMITTED,
            at_epoch_ms=NOW + seq,
            data={"n": seq},
        ),
    )


class DoubleSocket:
    """What an attached provider holds: the test pushes requests, the double keeps to the credit."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.waiting: list[bytes] = []
        self.freed: list[str] = []
        self.detached = trio.Event()
        self._changed = trio.Event()

    def push(self, *requests: Mapping[str, object]) -> None:
        self.waiting += [orjson.dumps({"type": "request", **request}) for request in requests]
        self._ring()

    def add_credit(self, count: int) -> None:
        self.credit += count
        self._ring()

    def answered(self, interaction_id: str) -> None:
        self.freed.append(interaction_id)
        self.credit += 1
        self._ring()

    async def next_requests(self) -> list[bytes]:
        while not (self.waiting and self.credit):
            await self._changed.wait()
        taken, self.waiting = self.waiting[: self.credit], self.waiting[self.credit :]
        self.credit -= len(taken)
        return taken

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Double:
    """The daemon. Tests set its attributes; `fail` makes every call raise."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], ExecutionRecord] = {}
        self.keys: dict[tuple[str, str], tuple[str, object]] = {}
        self.interactions: dict[tuple[str, str], InteractionRecord] = {}
        self.lates: list[LateRecord] = []
        self.held: dict[str, str] = {}
        self.facts: list[SequencedFact] = []
        self.calls: list[tuple[str, Any]] = []
        self.fail: BaseException | None = None
        self.sockets: list[DoubleSocket] = []
        self.hold: trio.Event | None = None  # submit and complete wait for it
        self.completing_at_once = 0
        self.most_at_once = 0
        self.ready = Readiness(True, ())
        self.on_wait: Callable[[], None] = lambda: None
        self._changed = trio.Event()

    def put(self, record: ExecutionRecord) -> None:
        self.records[record.tenant_id, record.execution_id] = record
        self._ring()

    def add_facts(self, *facts: SequencedFact) -> None:
        self.facts += facts
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _check(self, name: str, detail: Any = None) -> None:
        self.calls.append((name, detail))
        if self.fail is not None:
            raise self.fail

    async def submit(self, tenant: TenantId, item: SubmitItem, *, trace_parent: str | None) -> Submitted:
        self._check("submit", (tenant, item, trace_parent))
        if self.hold is not None:
            await self.hold.wait()
        return self._store(tenant, item)

    def _store(self, tenant: TenantId, item: SubmitItem) -> Submitted:
        if not isinstance(item.input, dict) or "amount" not in item.input:
            raise PayloadError([Problem("$.amount", "is required")])
        if item.pipeline not in {None, "orders"}:
            raise NotFound(f"there is no pipeline {item.pipeline}")
        if item.key is not None and (tenant, item.key) in self.keys:
            execution_id, data = self.keys[tenant, item.key]
            if data != item.input:
                raise Conflict(f"the key was used for {execution_id}", code="idempotency_key_reused")
            return Submitted(ExecutionId(execution_id), True, NOW)
        record = execution(len(self.records) + 1, tenant, execution_key=item.key)
        self.put(record)
        if item.key is not None:
            self.keys[tenant, item.key] = (record.execution_id, item.input)
        return Submitted(record.execution_id, False, NOW)

    async def submit_many(
        self, tenant: TenantId, items: Sequence[SubmitItem], *, trace_parent: str | None
    ) -> list[Submitted | TpfdError]:
        self._check("submit_many", (tenant, items, trace_parent))
        outcomes: list[Submitted | TpfdError] = []
        for item in items:
            try:
                outcomes.append(self._store(tenant, item))
            except TpfdError as error:
                outcomes.append(error)
        return outcomes

    async def execution(self, tenant: TenantId, execution_id: str) -> ExecutionRecord:
        self._check("execution", (tenant, execution_id))
        record = self.records.get((tenant, execution_id))
        if record is None:
            raise NotFound("there is no such execution")
        return record

    async def wait_terminal(self, tenant: TenantId, execution_id: str, *, wait_ms: int) -> ExecutionRecord:
        self.calls.append(("wait_terminal", wait_ms))
        self.on_wait()
        record = await self.execution(tenant, execution_id)
        with trio.move_on_after(wait_ms / 1000):
            while not record.status.terminal:
                await self._changed.wait()
                record = await self.execution(tenant, execution_id)
        return record

    def held_reason(self, record: ExecutionRecord) -> str | None:
        return self.held.get(record.execution_id)

    async def result_json(self, record: ExecutionRecord) -> str | None:
        self._check("result_json")
        return None if record.result is None else record.result.json

    async def executions(self, tenant: TenantId, **criteria: Any) -> Page[ExecutionRecord]:
        self._check("executions", (tenant, criteria))
        mine = [record for (owner, _), record in sorted(self.records.items()) if owner == tenant]
        start = int(criteria["cursor"] or 0)
        end = start + criteria["limit"]
        return Page(tuple(mine[start:end]), str(end) if end < len(mine) else None)

    async def history(
        self, tenant: TenantId, execution_id: str, *, after: int, limit: int
    ) -> list[SequencedFact]:
        await self.execution(tenant, execution_id)
        return [fact for fact in self.facts if fact.seq > after and fact.fact.execution_id == execution_id][:limit]

    async def late(
        self, tenant: TenantId, execution_id: str | None, *, limit: int, cursor: str | None
    ) -> Page[LateRecord]:
        self._check("late", (tenant, execution_id, limit, cursor))
        return Page(tuple(late for late in self.lates if late.execution_id == execution_id))

    async def cancel(self, tenant: TenantId, execution_id: str, *, reason: str, actor: str) -> ExecutionRecord:
        record = await self.execution(tenant, execution_id)
        self.calls.append(("cancel", (reason, actor)))
        if record.status.terminal:
            raise Conflict("the execution has ended", code="already_terminal")
        self.put(attrs.evolve(record, status=ExecutionStatus.CANCELLED))
        return await self.execution(tenant, execution_id)

    async def pending(self, tenant: TenantId, **criteria: Any) -> Page[InteractionRecord]:
        self._check("pending", (tenant, criteria))
        mine = [record for (owner, _), record in sorted(self.interactions.items()) if owner == tenant]
        start = int(criteria["cursor"] or 0)
        end = start + criteria["limit"]
        return Page(tuple(mine[start:end]), str(end) if end < len(mine) else None)

    async def complete(self, completion: Completion) -> Completed:
        self._check("complete", completion)
        self.completing_at_once += 1
        self.most_at_once = max(self.most_at_once, self.completing_at_once)
        try:
            if self.hold is not None:
                await self.hold.wait()
            await trio.lowlevel.checkpoint()
            return self._complete(completion)
        finally:
            self.completing_at_once -= 1

    def _complete(self, completion: Completion) -> Completed:
        record = self.interactions.get((completion.tenant_id, completion.interaction_id or ""))
        if record is None:
            raise NotFound("there is no such interaction")
        if record.step_id == "no-await":
            raise Conflict("the step is no await", code="not_an_await")
        if record.status is InteractionStatus.TIMED_OUT:
            raise TimedOut("the interaction had already timed out")
        payload = completion.payload
        if not isinstance(payload, dict) or "accepted" not in payload:
            raise PayloadError([Problem("$.responsePayload.accepted", "is required")])
        response = JsonText(orjson.dumps(payload, default=str).decode())
        duplicate = record.status is InteractionStatus.COMPLETED
        if duplicate and record.response != response:
            raise Conflict("another answer was admitted", code="conflicting_completion")
        self.interactions[completion.tenant_id, record.interaction_id] = attrs.evolve(
            record, status=InteractionStatus.COMPLETED, response=response
        )
        return Completed(record.interaction_id, record.execution_id, record.step_id, "COMPLETED", duplicate)

    async def redrive(self, tenant: TenantId, execution_id: str, **how: Any) -> ExecutionRecord:
        record = await self.execution(tenant, execution_id)
        self.calls.append(("redrive", how))
        if record.version != how["expected_version"]:
            raise Conflict("the execution has changed", code="stale_version")
        return attrs.evolve(record, status=ExecutionStatus.QUEUED, version=record.version + 1)

    async def match_orphan(
        self, tenant: TenantId, orphan_id: str, *, interaction_id: str, actor: str
    ) -> Completed:
        self._check("match_orphan", (tenant, orphan_id, interaction_id, actor))
        for late in self.lates:
            if (late.tenant_id, late.late_id) == (tenant, orphan_id):
                payload = parse_json(late.body or "")
                return self._complete(Completion(tenant, interaction_id, None, None, None, payload, actor))
        raise NotFound("there is no such orphan")

    async def redrive_many(self, tenant: TenantId, **how: Any) -> RedriveReport:
        self._check("redrive_many", (tenant, how))
        return RedriveReport(("E0001", "E0002"), None if how["cursor"] else "3:c")

    async def feed(
        self, tenant: TenantId, *, execution_id: str | None, pipeline: str | None, after: int, limit: int
    ) -> FactPage:
        self._check("feed", after)
        scanned = [fact for fact in self.facts if fact.seq > after][:limit]
        fitting = [
            fact
            for fact in scanned
            if fact.fact.tenant_id == tenant
            and execution_id in {None, fact.fact.execution_id}
            and pipeline in {None, fact.fact.pipeline_id}
        ]
        return FactPage(tuple(fitting), scanned[-1].seq if scanned else after)

    async def journal_end(self) -> int:
        self._check("journal_end")
        return self.facts[-1].seq if self.facts else 0

    async def wait_facts(self, after: int) -> None:
        while not any(fact.seq > after for fact in self.facts):
            await self._changed.wait()

    @asynccontextmanager
    async def attach(
        self, tenant: TenantId, *, pipeline: str | None, step_ids: Sequence[str], credit: int
    ) -> AsyncIterator[ProviderSocket]:
        self._check("attach", (tenant, pipeline, tuple(step_ids), credit))
        if "no-such-step" in step_ids:
            raise NotFound("there is no await step no-such-step")
        socket = DoubleSocket(credit)
        self.sockets.append(socket)
        self._ring()
        try:
            yield socket
        finally:
            socket.detached.set()

    async def attached(self) -> DoubleSocket:
        """The first provider's socket, once it is there."""
        while not self.sockets:
            await self._changed.wait()
        return self.sockets[0]

    def readiness(self) -> Readiness:
        return self.ready

    def overview(self) -> Mapping[str, object]:
        steps = [{"id": "await-decision", "name": "Await Decision", "kind": "AWAIT", "await": True}]
        return {"node": "n1", "pipelines": [{"id": "orders", "contractVersion": "c1", "steps": steps}]}


def store_down() -> StoreError:
    return StoreError("the store did not answer; nothing was stored")
