"""The calls of the daemon's HTTP interface, one method each.

Answers that code decides on are classes; those that are only shown (summaries, facts, pending interactions) stay the
daemon's own camelCase JSON objects, so that nothing is lost on the way to ``--output json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import httpx
import trio

from tpfd.client.answers import BatchEntry, Finished, JsonObject, Page, Submission
from tpfd.client.errors import ExecutionFailed, ProblemDetail, ServerRefused, Unreachable
from tpfd.client.exchange import Exchange, json_body, retry_after_s

LONG_POLL_S = 20
POLL_PAUSE_S = 0.2
MAX_SLICE_COUNT = 200
"""Executions that the daemon re-drives in one request."""


class TpfdClient:
    """Talks to one daemon for one tenant. Use as an async context manager.

    Args:
        url: base address, such as ``http://127.0.0.1:8081``.
        tenant: tenant id; None is the daemon's default tenant.
        token: bearer token; None sends none.
        timeout_s: how long to wait for one answer.
        transport: for tests: an httpx transport in place of the network.

    Every method raises `ServerRefused` when the daemon says no and `Unreachable` when there is no usable answer.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None = None,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.tenant = tenant
        self._exchange = Exchange(url, tenant=tenant, token=token, timeout_s=timeout_s, transport=transport)

    async def __aenter__(self) -> Self:
        await self._exchange.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exchange.__aexit__(*exc_info)

    # --- executions -------------------------------------------------------------------------------------------------

    async def submit(self, payload: object, *, pipeline: str | None = None, key: str | None = None) -> Submission:
        """Submits one input and returns as soon as it is durable.

        Args:
            payload: JSON data of the first step's input type, or an ``orjson.Fragment`` of its text.
            pipeline: pipeline id; needed when the daemon runs several.
            key: idempotency key; the same key with the same input is the same execution.
        """
        response = await self._exchange.send(
            "POST",
            "/pipeline/run-async",
            body=payload,
            query={"pipeline": pipeline},
            headers={"idempotency-key": key},
        )
        return _submission(response)

    async def submit_batch(self, entries: Sequence[BatchEntry]) -> list[Submission | ProblemDetail]:
        """Submits up to 1,000 inputs in one request; each is accepted or refused by itself, in order."""
        body = [
            {"input": entry.payload, **_given(idempotencyKey=entry.key, pipeline=entry.pipeline)} for entry in entries
        ]
        answers = json_body(await self._exchange.send("POST", "/pipeline/run-async/batch", body=body))
        return [
            Submission.from_json(answer)
            if "executionId" in answer and "duplicate" in answer
            else ProblemDetail.from_json(int(answer.get("status", 500)), answer, reason="refused")
            for answer in answers
        ]

    async def run(
        self, payload: object, *, pipeline: str | None = None, key: str | None = None
    ) -> Finished | Submission:
        """Submits and lets the daemon wait for the result up to its limit.

        Returns:
            `Finished`, or the `Submission` when the daemon's limit came first.

        Raises:
            ExecutionFailed: it ended without a result.
        """
        response = await self._exchange.send(
            "POST",
            "/pipeline/run",
            body=payload,
            query={"pipeline": pipeline},
            headers={"idempotency-key": key},
            wait_s=LONG_POLL_S,
        )
        return Finished(json_body(response)) if response.status_code == 200 else _submission(response)

    async def status(self, execution_id: str) -> JsonObject:
        """The execution's summary: ``executionId, status, stepIndex, attempt, version, …``."""
        return _object(await self._exchange.send("GET", f"/pipeline/executions/{quote(execution_id, safe='')}"))

    async def peek_result(self, execution_id: str, *, wait_s: int = 0) -> Finished | None:
        """The result, or None while the execution is not terminal.

        Args:
            execution_id: the execution.
            wait_s: let the daemon hold the request up to so many seconds.

        Raises:
            ExecutionFailed: it ended without a result.
        """
        finished, _ = await self._peek(execution_id, wait_s)
        return finished

    async def result(self, execution_id: str) -> Any:
        """Waits for the result, for ever: bound it with a cancel scope.

        Returns:
            The result as JSON data.

        Raises:
            ExecutionFailed: it ended without a result.
        """
        while True:
            began = trio.current_time()
            finished, pause_s = await self._peek(execution_id, LONG_POLL_S)
            if finished is not None:
                return finished.value
            if trio.current_time() - began < LONG_POLL_S / 2:
                await trio.sleep(max(POLL_PAUSE_S, pause_s or 0.0))  # the daemon did not hold it: do not spin

    async def _peek(self, execution_id: str, wait_s: int) -> tuple[Finished | None, float | None]:
        try:
            response = await self._exchange.send(
                "GET",
                f"/pipeline/executions/{quote(execution_id, safe='')}/result",
                query={"wait": f"PT{wait_s}S" if wait_s else None},
                wait_s=wait_s,
            )
        except ServerRefused as refused:
            if refused.status == 409:
                raise ExecutionFailed(refused.problem) from refused
            raise
        return (Finished(json_body(response)), None) if response.status_code == 200 else (None, retry_after_s(response))

    async def executions(
        self,
        *,
        status: str | None = None,
        pipeline: str | None = None,
        key: str | None = None,
        search: Mapping[str, str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """One page of execution summaries.

        Args:
            status: only those in this status.
            pipeline: only those of this pipeline.
            key: only the one with this idempotency key.
            search: search name to value, as the pipeline's ``search`` declares them.
            limit: at most so many; None is the daemon's page.
            cursor: from an earlier `Page`.
        """
        query: dict[str, str | int | None] = {
            "status": status,
            "pipeline": pipeline,
            "key": key,
            "limit": limit,
            "cursor": cursor,
        }
        query.update({f"search.{name}": value for name, value in (search or {}).items()})
        return _page(await self._exchange.send("GET", "/pipeline/executions", query=query))

    async def history(self, execution_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """One page of the execution's facts: ``{seq, type, atEpochMs, key, data}``, oldest first."""
        path = f"/pipeline/executions/{quote(execution_id, safe='')}/history"
        return _page(await self._exchange.send("GET", path, query={"limit": limit, "cursor": cursor}))

    async def late(self, execution_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """One page of the completions that changed nothing: ``{lateId, reason, responsePayload, actor, …}``."""
        path = f"/pipeline/executions/{quote(execution_id, safe='')}/late"
        return _page(await self._exchange.send("GET", path, query={"limit": limit, "cursor": cursor}))

    async def cancel(self, execution_id: str, *, reason: str | None = None, actor: str | None = None) -> JsonObject:
        """Cancels an execution; one that has ended or is being published is a 409.

        Args:
            execution_id: the execution.
            reason: kept in the history.
            actor: who cancels, kept there too.
        """
        path = f"/pipeline/executions/{quote(execution_id, safe='')}/cancel"
        return _object(await self._exchange.send("POST", path, body=_given(reason=reason, actor=actor)))

    # --- interactions -----------------------------------------------------------------------------------------------

    async def pending(
        self,
        *,
        step: str | None = None,
        assignee: str | None = None,
        group: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """One page of interactions that wait for an answer."""
        query = {"stepId": step, "assignee": assignee, "group": group, "limit": limit, "cursor": cursor}
        return _page(await self._exchange.send("GET", "/pipeline/interactions/pending", query=query))

    async def complete(
        self,
        response_payload: object,
        *,
        interaction_id: str | None = None,
        correlation_id: str | None = None,
        resume_token: str | None = None,
        key: str | None = None,
        actor: str | None = None,
    ) -> JsonObject:
        """Answers an interaction, named by its id, its correlation id or its resume token.

        Returns:
            ``{interactionId, executionId, stepId, status, duplicate}``.
        """
        body = _given(
            interactionId=interaction_id,
            correlationId=correlation_id,
            resumeToken=resume_token,
            idempotencyKey=key,
            actor=actor,
        )
        body["responsePayload"] = response_payload  # null is an answer too
        return _object(await self._exchange.send("POST", "/pipeline/interactions/complete", body=body))

    async def orphans(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """One page of completions that met no interaction; bearer token of an operator."""
        query = {"limit": limit, "cursor": cursor}
        return _page(await self._exchange.send("GET", "/pipeline/interactions/orphans", query=query))

    async def match_orphan(self, orphan_id: str, interaction_id: str, *, actor: str | None = None) -> JsonObject:
        """Has an orphan admitted as the answer to an interaction; bearer token of an operator.

        Args:
            orphan_id: its ``lateId``.
            interaction_id: what it answers.
            actor: who says so, kept as the one who answered.

        Returns:
            As `complete`.
        """
        path = f"/pipeline/interactions/orphans/{quote(orphan_id, safe='')}/match"
        return _object(await self._exchange.send("POST", path, body=_given(interactionId=interaction_id, actor=actor)))

    # --- operations -------------------------------------------------------------------------------------------------

    async def redrive(
        self,
        execution_id: str,
        *,
        expected_version: int,
        reason: str,
        allow_failed: bool = False,
        confirmed_stopped: bool = False,
        actor: str | None = None,
    ) -> JsonObject:
        """Puts one FAILED, DLQ or REMOTE_OUTCOME_UNKNOWN execution back to work; bearer token.

        Args:
            execution_id: the execution.
            expected_version: the version the operator looked at; another one is a 409.
            reason: kept in the history.
            allow_failed: needed for FAILED.
            confirmed_stopped: needed for REMOTE_OUTCOME_UNKNOWN: the operator knows that the old call is over.
            actor: who does it, kept in the history.
        """
        body = _given(
            expectedVersion=expected_version,
            reason=reason,
            allowFailed=allow_failed,
            confirmedStopped=confirmed_stopped,
            actor=actor,
        )
        path = f"{self._admin_path()}/executions/{quote(execution_id, safe='')}/redrive"
        return _object(await self._exchange.send("POST", path, body=body))

    async def redrive_slice(
        self,
        *,
        status: str,
        pipeline: str | None = None,
        error_code: str | None = None,
        reason: str,
        limit: int,
        cursor: str | None = None,
        dry_run: bool,
        actor: str | None = None,
    ) -> JsonObject:
        """Re-drives, or only counts, one slice of what a filter finds; never unknown outcomes; bearer token.

        Args:
            status: FAILED or DLQ.
            pipeline: only those of this pipeline.
            error_code: only those that ended with this error.
            reason: kept in each history.
            limit: at most so many, up to `MAX_SLICE_COUNT`.
            cursor: from the answer before; None begins.
            dry_run: change nothing, say which ones it would be.
            actor: who does it, kept in each history.

        Returns:
            ``{count, executionIds, dryRun, cursor}``; without a cursor nothing follows.
        """
        body = _given(
            status=status,
            pipeline=pipeline,
            errorCode=error_code,
            reason=reason,
            limit=limit,
            cursor=cursor,
            dryRun=dry_run,
            actor=actor,
        )
        return _object(await self._exchange.send("POST", f"{self._admin_path()}/executions/redrive", body=body))

    async def ready(self) -> bool:
        """Whether the daemon answers and is ready; never raises for a daemon that is not there yet."""
        try:
            await self._exchange.send("GET", "/q/health/ready")
        except (ServerRefused, Unreachable):
            return False
        return True

    def _admin_path(self) -> str:
        return f"/tpf/admin/tenants/{quote(self.tenant or 'default', safe='')}"


def _given(**members: object) -> JsonObject:
    """The members that were given a value."""
    return {name: value for name, value in members.items() if value is not None}


def _submission(response: httpx.Response) -> Submission:
    return Submission.from_json(_object(response))


def _object(response: httpx.Response) -> JsonObject:
    body = json_body(response)
    if not isinstance(body, dict):
        raise Unreachable(f"{response.request.url.path} answered something else than a JSON object")
    return body


def _page(response: httpx.Response) -> Page:
    """Reads a bare array with its next page in ``Link``, as the framework's clients know it."""
    body = json_body(response)
    if not isinstance(body, list):
        raise Unreachable(f"{response.request.url.path} answered something else than a JSON array")
    following = response.links.get("next", {}).get("url")
    return Page(items=body, cursor=httpx.URL(following).params.get("cursor") if following else None)
