"""Submits: validate, find or make the one execution of a key, answer when it is durable."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import trio
from attrs import evolve, frozen

from tpfd import payloads
from tpfd.codec.digests import digest
from tpfd.core import commit, ids
from tpfd.core.commit import Submission
from tpfd.core.kinds import EXECUTION_KEY
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    IngestedRecord,
    ResultShape,
    TenantId,
)
from tpfd.core.transact import MAX_TOUCHED, Decision, Snapshot
from tpfd.errors import Conflict, MalformedError, NotFound, TooLarge, TpfdError
from tpfd.http.service import SubmitItem, Submitted
from tpfd.program import Program
from tpfd.runtime import CommitDue, Runtime


class KeyPolicy(StrEnum):
    """Who gives the idempotency key."""

    OPTIONAL_CLIENT_KEY = "OPTIONAL_CLIENT_KEY"
    CLIENT_KEY_REQUIRED = "CLIENT_KEY_REQUIRED"
    SERVER_KEY_ONLY = "SERVER_KEY_ONLY"


@frozen
class _Prepared:
    """A submit that is valid and only has to be stored."""

    record: ExecutionRecord
    key_id: str | None


@frozen(kw_only=True)
class Submitting:
    """Submits executions.

    Attributes:
        commit: commits what makes executions due, and may begin with them at once.
    """

    runtime: Runtime
    key_policy: KeyPolicy
    commit: CommitDue

    async def submit(self, tenant: TenantId, item: SubmitItem, *, trace_parent: str | None) -> Submitted:
        """See ``tpfd.http.service.Service.submit``."""
        (done,) = await self.submit_many(tenant, (item,), trace_parent=trace_parent)
        if isinstance(done, TpfdError):
            raise done
        return done

    async def submit_many(
        self, tenant: TenantId, items: Sequence[SubmitItem], *, trace_parent: str | None
    ) -> list[Submitted | TpfdError]:
        """See ``tpfd.http.service.Service.submit_many``."""
        outcomes: list[Submitted | TpfdError | None] = [None] * len(items)
        ready: list[tuple[int, _Prepared]] = []
        for place, item in enumerate(items):
            try:
                ready.append((place, await self._prepare(tenant, item, trace_parent)))
            except TpfdError as error:
                outcomes[place] = error
        for first, *others in _rounds(ready):
            if not others:
                await self._store(first, outcomes)  # the usual case: one submit
                continue
            async with trio.open_nursery() as nursery:
                for page in (first, *others):
                    nursery.start_soon(self._store, page, outcomes)
        self.runtime.bells.facts.ring()
        return [outcome for outcome in outcomes if outcome is not None]

    async def _prepare(self, tenant: TenantId, item: SubmitItem, trace_parent: str | None) -> _Prepared:
        program = self._program(item.pipeline)
        key = self._key(program, item)
        value = program.codec.decode(program.type_at(0), item.input)
        record = self._record(tenant, program, value, key, trace_parent)
        if self.key_policy is KeyPolicy.SERVER_KEY_ONLY:
            pipeline = program.pipeline
            key = digest(f"{pipeline.pipeline_id}\n{pipeline.contract_version}\n{record.input_digest}")
            record = evolve(record, execution_key=key)
        key_id = None if key is None else commit.execution_key_id(program.pipeline_id, key)
        return _Prepared(await self._stored(record, key_id), key_id)

    async def _stored(self, record: ExecutionRecord, key_id: str | None) -> ExecutionRecord:
        """The record with its input where it belongs: a large one apart."""
        if len(record.input.json or "") <= payloads.INLINE_CHARS:
            return record
        known = None if key_id is None else EXECUTION_KEY.key(record.tenant_id, key_id)
        if known is not None and await self.runtime.store.get(known) is not None:
            # Very likely a repeat: it is compared by its digest, and nothing need be stored for that.
            return record
        stored = await payloads.stored(self.runtime, record.tenant_id, record.execution_id, "input", record.input)
        return evolve(record, input=stored)

    def _program(self, pipeline: str | None) -> Program:
        runtime = self.runtime
        if pipeline is not None:
            return runtime.program(pipeline)
        if len(runtime.programs) == 1:
            return next(iter(runtime.programs.values()))
        known = ", ".join(sorted(runtime.programs))
        raise NotFound(f"several pipelines are loaded; name one with ?pipeline= or x-tpf-pipeline: {known}")

    def _key(self, program: Program, item: SubmitItem) -> str | None:
        match self.key_policy:
            case KeyPolicy.CLIENT_KEY_REQUIRED if item.key is None:
                raise MalformedError(
                    f"pipeline {program.pipeline_id} needs an Idempotency-Key header", code="idempotency_key_required"
                )
            case KeyPolicy.SERVER_KEY_ONLY if item.key is not None:
                raise MalformedError(
                    "this server makes idempotency keys itself; send none", code="idempotency_key_not_allowed"
                )
        return item.key

    def _record(
        self, tenant: TenantId, program: Program, value: object, key: str | None, trace_parent: str | None
    ) -> ExecutionRecord:
        runtime = self.runtime
        now = runtime.now()
        execution_id = ids.execution_id(now, runtime.random.getrandbits(80))
        payload = program.payload(0, value)
        assert payload.json is not None
        if len(payload.json) > runtime.settings.max_payload_bytes:
            raise TooLarge(f"the input is over execution.max-payload ({runtime.settings.max_payload_bytes:,} bytes)")
        many = program.pipeline.steps[-1].cardinality.gives_many
        return ExecutionRecord(
            tenant_id=tenant,
            execution_id=execution_id,
            execution_key=key,
            pipeline_id=program.pipeline_id,
            contract_version=program.pipeline.contract_version,
            result_shape=ResultShape.MANY if many else ResultShape.ONE,
            status=ExecutionStatus.QUEUED,
            version=1,
            next_check_epoch_ms=now,
            input=payload,
            input_digest=digest(payload.json),
            search=self._search(program, value),
            trace_parent=trace_parent,
            created_epoch_ms=now,
            updated_epoch_ms=now,
        )

    def _search(self, program: Program, value: object) -> Mapping[str, str]:
        search = program.pipeline.search
        if not search:
            return {}
        data = program.codec.unstructure(program.type_at(0), value)
        return {name: str(data[field]) for name, field in search.items() if data.get(field) is not None}

    async def _store(self, page: list[tuple[int, _Prepared]], outcomes: list[Submitted | TpfdError | None]) -> None:
        reads = [read for _, one in page for read in commit.submit_reads(one.record, one.key_id)]
        try:
            done = await self.commit(reads, functools.partial(_submit_page, page=page), len(page))
        except TpfdError as error:
            for place, _ in page:
                outcomes[place] = error
            return
        for (place, one), submission in zip(page, done, strict=True):
            if submission.duplicate:
                await payloads.discard(self.runtime, one.record.tenant_id, one.record.input)
            outcomes[place] = self._outcome(one, submission)

    def _outcome(self, one: _Prepared, submission: Submission) -> Submitted | TpfdError:
        if submission.mismatch:
            return Conflict(
                f"idempotency key {one.record.execution_key!r} was used with another input by execution "
                f"{submission.execution_id}",
                code="idempotency_key_reused",
            )
        if not submission.duplicate:
            self.runtime.metrics.transitions.add(one.record.pipeline_id, one.record.status)
        return Submitted(submission.execution_id, submission.duplicate, submission.created_epoch_ms)

    async def ingest(
        self,
        tenant: TenantId,
        program: Program,
        source: str,
        source_key: str,
        data: object,
        identity: str,
        *,
        keep: bool,
    ) -> tuple[ExecutionId, bool]:
        """Submits the execution of an ingested object, with the row that remembers it.

        Args:
            keep: nothing is to be done with the object after success.

        Returns:
            The execution, and whether the object had been taken in before.

        Raises:
            PayloadError: the object does not fit the first step's type.
            StoreError: nothing was stored.
        """
        value = program.codec.decode(program.type_at(0), data)
        record = await self._stored(self._record(tenant, program, value, None, None), None)
        record = evolve(record, source_key=source_key)
        ingested = IngestedRecord(
            tenant_id=tenant,
            identity=identity,
            source=source,
            object_key=source_key,
            execution_id=record.execution_id,
            after_done=keep,
            created_epoch_ms=record.created_epoch_ms,
        )
        submission = await self.commit(
            commit.submit_reads(record, None, ingested),
            functools.partial(commit.submit, record=record, key_id=None, ingested=ingested),
            1,
        )
        if submission.duplicate:
            await payloads.discard(self.runtime, tenant, record.input)
        self.runtime.bells.facts.ring()
        return submission.execution_id, submission.duplicate


def _rounds(ready: Sequence[tuple[int, _Prepared]]) -> Iterator[list[list[tuple[int, _Prepared]]]]:
    """Pages that fit one decision each, in rounds: what repeats a key waits until the first of that key is stored."""
    rest = ready
    while rest:
        keys: set[str] = set()
        pages: list[list[tuple[int, _Prepared]]] = []
        later: list[tuple[int, _Prepared]] = []
        rows = MAX_TOUCHED
        for place, one in rest:
            if one.key_id in keys:
                later.append((place, one))
                continue
            if one.key_id is not None:
                keys.add(one.key_id)
            size = 2 + len(one.record.search)
            if rows + size > MAX_TOUCHED:
                pages.append([])
                rows = 0
            pages[-1].append((place, one))
            rows += size
        yield pages
        rest = later


def _submit_page(snapshot: Snapshot, page: list[tuple[int, _Prepared]]) -> Decision[list[Submission]]:
    """Several submits as one decision; their keys differ."""
    done = [commit.submit(snapshot, one.record, one.key_id) for _, one in page]
    return Decision(
        [decision.result for decision in done],
        puts=tuple(put for decision in done for put in decision.puts),
        facts=tuple(fact for decision in done for fact in decision.facts),
    )
