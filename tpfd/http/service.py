"""What the edge asks of the daemon. The engine's coordinator has these methods; tests use a double.

Every method raises errors of ``tpfd.errors``; ``tpfd.http.problems`` turns them into answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from attrs import frozen

from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    InteractionRecord,
    LateRecord,
    SequencedFact,
    TenantId,
)
from tpfd.core.transact import Page
from tpfd.errors import TpfdError


@frozen
class SubmitItem:
    """One input to run.

    Attributes:
        input: parsed JSON data, not yet checked against a type.
        key: idempotency key; None: the caller gave none.
        pipeline: pipeline id; None: the only one that is loaded.
    """

    input: object
    key: str | None
    pipeline: str | None


@frozen
class Submitted:
    """An accepted execution; `duplicate` when the key was already known with the same input."""

    execution_id: ExecutionId
    duplicate: bool
    submitted_at_epoch_ms: int


@frozen
class Completion:
    """An answer to an interaction. At least one of interaction_id, correlation_id and resume_token is set.

    Attributes:
        payload: parsed JSON data, not yet checked against a type.
        actor: who answered, as far as the edge knows.
    """

    tenant_id: TenantId
    interaction_id: str | None
    correlation_id: str | None
    resume_token: str | None
    idempotency_key: str | None
    payload: object
    actor: str | None


@frozen
class Completed:
    """An admitted completion; `duplicate` when the same answer had been admitted before."""

    interaction_id: str
    execution_id: str
    step_id: str
    status: str
    duplicate: bool


@frozen
class RedriveReport:
    """What one slice of a bulk re-drive did, or would do.

    Attributes:
        cursor: to go on with the next slice; None: nothing follows.
    """

    execution_ids: tuple[str, ...]
    cursor: str | None


@frozen
class FactPage:
    """Facts that pass a filter, in order.

    Attributes:
        scanned_seq: every fact up to it was looked at; go on behind it.
    """

    facts: tuple[SequencedFact, ...]
    scanned_seq: int


@frozen
class Readiness:
    """Whether new work can be taken; `reasons` say why not."""

    ready: bool
    reasons: tuple[str, ...]


class ProviderSocket(Protocol):
    """One attached provider, from ``async with service.attach(...)``."""

    def add_credit(self, count: int) -> None:
        """Raises the number of requests that may be unanswered at once."""

    async def next_requests(self) -> list[bytes]:
        """Waits for work.

        Returns:
            Encoded dispatch envelopes, at least one and at most what the credit allows. Each is a JSON object that
            already carries ``"type":"request"``.
        """

    def answered(self, interaction_id: str) -> None:
        """Frees the place that this interaction held, if it held one."""


class Service(Protocol):
    """The daemon as the edge sees it."""

    async def submit(self, tenant: TenantId, item: SubmitItem, *, trace_parent: str | None) -> Submitted:
        """Raises PayloadError, Conflict (``idempotency_key_reused``), NotFound (pipeline), StoreError, TooLarge."""

    async def submit_many(
        self, tenant: TenantId, items: Sequence[SubmitItem], *, trace_parent: str | None
    ) -> list[Submitted | TpfdError]:
        """One outcome per item, in order; stored together."""

    async def execution(self, tenant: TenantId, execution_id: str) -> ExecutionRecord:
        """Raises NotFound."""

    async def wait_terminal(self, tenant: TenantId, execution_id: str, *, wait_ms: int) -> ExecutionRecord:
        """Returns once terminal, at the limit, or when the daemon drains, whatever the status. Raises NotFound."""

    def held_reason(self, record: ExecutionRecord) -> str | None:
        """Why this replica leaves an execution that is not over to others; None when it does not."""

    async def result_json(self, record: ExecutionRecord) -> str | None:
        """JSON text of the result; None when it has none."""

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
        """A page of root executions."""

    async def history(
        self, tenant: TenantId, execution_id: str, *, after: int, limit: int
    ) -> list[SequencedFact]:
        """Facts of one execution above `after`. Raises NotFound."""

    async def late(
        self, tenant: TenantId, execution_id: str | None, *, limit: int, cursor: str | None
    ) -> Page[LateRecord]:
        """Late and conflicting completions of an execution; with None, the orphans."""

    async def cancel(self, tenant: TenantId, execution_id: str, *, reason: str, actor: str) -> ExecutionRecord:
        """Raises NotFound, Conflict."""

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
        """A page of interactions that wait for an answer."""

    async def complete(self, completion: Completion) -> Completed:
        """Raises MalformedError, PayloadError, TooLarge, NotFound, Conflict, TimedOut, TokenRejected, StoreError."""

    async def match_orphan(
        self, tenant: TenantId, orphan_id: str, *, interaction_id: str, actor: str
    ) -> Completed:
        """Admits an orphan as the completion of an interaction. Raises as `complete`; the orphan then stays."""

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
        """Raises NotFound, Conflict."""

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
        """Re-drives, or with `dry_run` only finds, at most `limit` executions: one slice, bounded in time."""

    async def feed(
        self, tenant: TenantId, *, execution_id: str | None, pipeline: str | None, after: int, limit: int
    ) -> FactPage:
        """Facts above `after`; none when none of those that exist pass the filter."""

    async def journal_end(self) -> int:
        """The sequence number of the last fact; 0 when there is none."""

    async def wait_facts(self, after: int) -> None:
        """Returns when a fact with a higher sequence number may exist."""

    def attach(
        self, tenant: TenantId, *, pipeline: str | None, step_ids: Sequence[str], credit: int
    ) -> AbstractAsyncContextManager[ProviderSocket]:
        """A provider's place for as long as its socket lives. Entering raises NotFound for an unknown step."""

    def readiness(self) -> Readiness:
        """Cheap: called by probes every few seconds."""

    def overview(self) -> Mapping[str, object]:
        """For the console: ``{node, pipelines: [{id, contractVersion, steps: [{id, name, kind, await}]}]}``."""
