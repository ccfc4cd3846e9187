"""Submitting, following and cancelling executions."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

import trio

from tpfd.codec.strict_json import parse_json
from tpfd.core.records import ExecutionRecord, ExecutionStatus
from tpfd.durations import parse_duration_ms
from tpfd.errors import Conflict, PayloadError, Problem, TooLarge, TpfdError
from tpfd.http.auth import Access
from tpfd.http.bodies import Members
from tpfd.http.envelopes import JsonObject, execution_view, fact_view, late_view, submitted_view
from tpfd.http.messages import BadQuery, Response, json_response
from tpfd.http.problems import problem_body, problem_response, status_of
from tpfd.http.routing import Call, Operation, Route
from tpfd.http.service import SubmitItem, Submitted

MAX_BATCH_COUNT = 1000
MAX_PAGE_COUNT = 1000
PAGE_COUNT = 100
MAX_KEY_CHARS = 512
RETRY_RESULT_S = 1
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


# --- submit -------------------------------------------------------------------------------------------------------


async def run_async(call: Call) -> Response:
    """Stores one input as an execution."""
    submitted = await call.service.submit(call.tenant, _item(call), trace_parent=trace_parent(call))
    return _accepted(submitted)


async def run_and_wait(call: Call) -> Response:
    """Stores one input and waits for its result, up to the limit."""
    wait_ms = _wait_ms(call, default_ms=call.edge.settings.max_wait_ms)
    submitted = await call.service.submit(call.tenant, _item(call), trace_parent=trace_parent(call))
    record = await _wait(call, submitted.execution_id, wait_ms)
    return await _result(call, record) if record.status.terminal else _accepted(submitted)


async def run_batch(call: Call) -> Response:
    """Stores many inputs in one go; each is accepted or refused by itself."""
    entries = parse_json(call.body) if call.body else None
    if not isinstance(entries, list) or not entries:
        raise PayloadError([Problem("$", "expected an array of one or more submits")], code="body_invalid")
    if len(entries) > MAX_BATCH_COUNT:
        raise TooLarge(f"a batch has at most {MAX_BATCH_COUNT} entries, this one has {len(entries)}")
    outcomes: list[Submitted | TpfdError | None] = [None] * len(entries)
    items: list[SubmitItem] = []
    places: list[int] = []
    for index, entry in enumerate(entries):
        try:
            items.append(_batch_item(entry, f"$[{index}]"))
            places.append(index)
        except PayloadError as refused:
            outcomes[index] = refused
    if items:
        answers = await call.service.submit_many(call.tenant, items, trace_parent=trace_parent(call))
        for index, answer in zip(places, answers, strict=True):
            outcomes[index] = answer
    return json_response(200, [_batch_view(outcome) for outcome in outcomes if outcome is not None])


def _item(call: Call) -> SubmitItem:
    if not call.body:
        raise PayloadError([Problem("$", "the input is missing: send it as the body")], code="body_invalid")
    pipeline = call.query.text("pipeline") or call.request.header("x-tpf-pipeline")
    return SubmitItem(parse_json(call.body), _key(call.request.header("idempotency-key")), pipeline)


def _batch_item(entry: object, path: str) -> SubmitItem:
    members = Members(entry, path)
    item = SubmitItem(
        members.value("input"), _key(members.text("idempotencyKey"), f"{path}.idempotencyKey"), members.text("pipeline")
    )
    members.check()
    return item


def _key(key: str | None, path: str = "Idempotency-Key") -> str | None:
    if key is not None and (len(key) > MAX_KEY_CHARS or not key.isprintable()):
        raise PayloadError(
            [Problem(path, f"an idempotency key has at most {MAX_KEY_CHARS} printable characters")], code="key_invalid"
        )
    return key


def _batch_view(outcome: Submitted | TpfdError) -> JsonObject:
    if isinstance(outcome, Submitted):
        return submitted_view(outcome, _status_url(outcome.execution_id))
    return problem_body(outcome, status_of(outcome))


def _accepted(submitted: Submitted) -> Response:
    view = submitted_view(submitted, _status_url(submitted.execution_id))
    return json_response(200 if submitted.duplicate else 202, view)


def _status_url(execution_id: str) -> str:
    return f"/pipeline/executions/{quote(execution_id, safe='')}"


def trace_parent(call: Call) -> str | None:
    """The caller's trace context; one that is not well formed is ignored. Source: W3C Trace Context, section 3.2."""
    value = call.request.header("traceparent")
    return value if value is not None and _TRACE_PARENT.fullmatch(value) else None


# --- follow -------------------------------------------------------------------------------------------------------


async def status(call: Call) -> Response:
    """The summary of one execution."""
    record = await call.service.execution(call.tenant, call.params["id"])
    return json_response(200, _view(call, record))


def _view(call: Call, record: ExecutionRecord) -> JsonObject:
    return execution_view(record, call.service.held_reason(record))


async def result(call: Call) -> Response:
    """The result, once there is one; with ``wait`` the request is held until then."""
    wait_ms = _wait_ms(call, default_ms=0)
    return await _result(call, await _wait(call, call.params["id"], wait_ms))


async def _wait(call: Call, execution_id: str, wait_ms: int) -> ExecutionRecord:
    if wait_ms:
        drain, scope = call.edge.drain, trio.CancelScope()
        drain.cuts(scope)
        try:
            with scope:
                return await call.service.wait_terminal(call.tenant, execution_id, wait_ms=wait_ms)
        finally:
            drain.spares(scope)
    return await call.service.execution(call.tenant, execution_id)


async def _result(call: Call, record: ExecutionRecord) -> Response:
    if record.status is ExecutionStatus.SUCCEEDED:
        text = await call.service.result_json(record)
        return Response(200, b"null" if text is None else text.encode())
    if not record.status.terminal:
        headers = (("retry-after", str(RETRY_RESULT_S)),)
        return json_response(202, _view(call, record), headers=headers)
    view = execution_view(record)
    failure = Conflict(record.error_message or f"the execution ended {record.status}", code="execution_failed")
    members = {name: view[name] for name in ("executionId", "errorCode", "errorMessage", "terminalReason")}
    return problem_response(failure, executionStatus=view["status"], **members)


def _wait_ms(call: Call, *, default_ms: int) -> int:
    text = call.query.text("wait")
    if text is None:
        return default_ms
    try:
        wait_ms = parse_duration_ms(text, zero_ok=True)
    except ValueError as error:
        raise BadQuery("wait", str(error)) from error
    return min(wait_ms, call.edge.settings.max_wait_ms)


async def executions(call: Call) -> Response:
    """A page of executions."""
    wanted = call.query.text("status")
    if wanted is not None and wanted not in set(ExecutionStatus):
        raise BadQuery("status", f"expected one of {', '.join(ExecutionStatus)}")
    page = await call.service.executions(
        call.tenant,
        status=wanted,
        pipeline=call.query.text("pipeline"),
        key=call.query.text("key"),
        search=call.query.prefixed("search."),
        limit=call.query.count("limit", default=PAGE_COUNT, highest=MAX_PAGE_COUNT),
        cursor=call.query.text("cursor"),
    )
    return paged(call, [_view(call, record) for record in page.records], page.cursor)


async def history(call: Call) -> Response:
    """The facts of one execution, oldest first; the cursor is a sequence number."""
    limit = call.query.count("limit", default=PAGE_COUNT, highest=MAX_PAGE_COUNT)
    facts = await call.service.history(
        call.tenant, call.params["id"], after=call.query.sequence("cursor"), limit=limit
    )
    following = str(facts[-1].seq) if len(facts) == limit else None
    return paged(call, [fact_view(fact) for fact in facts], following)


async def late(call: Call) -> Response:
    """Completions that came too late for the execution, or contradicted the admitted one."""
    page = await call.service.late(
        call.tenant,
        call.params["id"],
        limit=call.query.count("limit", default=PAGE_COUNT, highest=MAX_PAGE_COUNT),
        cursor=call.query.text("cursor"),
    )
    return paged(call, [late_view(record) for record in page.records], page.cursor)


async def cancel(call: Call) -> Response:
    """Cancels an execution that has not ended."""
    members = Members.of_body(call.body)
    reason = members.text("reason") or "cancelled by request"
    actor = members.text("actor") or call.caller.name
    members.check()
    record = await call.service.cancel(call.tenant, call.params["id"], reason=reason, actor=actor)
    return json_response(202, _view(call, record))


def paged(call: Call, items: list[JsonObject], cursor: str | None) -> Response:
    """A JSON array, with the address of the next page in ``Link``."""
    if cursor is None:
        return json_response(200, items)
    query = urlencode({**call.query.values, "cursor": cursor})
    return json_response(200, items, headers=(("link", f'<{call.request.path}?{query}>; rel="next"'),))


# --- table --------------------------------------------------------------------------------------------------------

_PAGE_QUERY = {"limit": f"records at most, 1 to {MAX_PAGE_COUNT}", "cursor": "from the Link of the page before"}
_WAIT_QUERY = {"wait": "ISO 8601 duration: hold the request until the execution has ended, at most so long"}
_PIPELINE_QUERY = {"pipeline": "pipeline id; needed when several are loaded"}
SUBMIT_ANSWERS = {
    202: ("accepted: stored durably", "Submitted"),
    200: ("a repeat of the same key and input: the first execution", "Submitted"),
}
LIST_OPERATION = Operation(
    summary="List executions",
    query={
        "status": "only those in this status",
        "pipeline": "only those of this pipeline",
        "key": "only the one submitted under this idempotency key",
        "search.NAME": "only those whose search key NAME has this value",
        **_PAGE_QUERY,
    },
    answers={200: ("a page", "Executions")},
)
STATUS_OPERATION = Operation(summary="Show an execution", answers={200: ("its summary", "Execution")})

ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        template="/pipeline/run-async",
        access=Access.SUBMIT,
        handler=run_async,
        operation=Operation(
            summary="Submit an input", query=_PIPELINE_QUERY, body="Input", answers=SUBMIT_ANSWERS
        ),
    ),
    Route(
        method="POST",
        template="/pipeline/run-async/batch",
        access=Access.SUBMIT,
        handler=run_batch,
        operation=Operation(
            summary="Submit many inputs",
            body="Batch",
            answers={200: ("one entry for each input, in order: accepted or a problem", "BatchOutcome")},
        ),
    ),
    Route(
        method="POST",
        template="/pipeline/run",
        access=Access.SUBMIT,
        handler=run_and_wait,
        operation=Operation(
            summary="Submit an input and wait for its result",
            query=_PIPELINE_QUERY | _WAIT_QUERY,
            body="Input",
            answers={200: ("the result", None), 202: ("accepted, not finished within the limit", "Submitted")},
        ),
    ),
    Route(
        method="GET",
        template="/pipeline/executions",
        access=Access.READ,
        handler=executions,
        operation=LIST_OPERATION,
    ),
    Route(
        method="GET",
        template="/pipeline/executions/{id}",
        access=Access.READ,
        handler=status,
        operation=STATUS_OPERATION,
    ),
    Route(
        method="GET",
        template="/pipeline/executions/{id}/result",
        access=Access.READ,
        handler=result,
        operation=Operation(
            summary="Get the result of an execution",
            query=_WAIT_QUERY,
            answers={200: ("the result", None), 202: ("not finished; see Retry-After", "Execution")},
        ),
    ),
    Route(
        method="GET",
        template="/pipeline/executions/{id}/history",
        access=Access.READ,
        handler=history,
        operation=Operation(
            summary="Show what happened to an execution",
            query=_PAGE_QUERY,
            answers={200: ("facts, oldest first", "Facts")},
        ),
    ),
    Route(
        method="GET",
        template="/pipeline/executions/{id}/late",
        access=Access.READ,
        handler=late,
        operation=Operation(
            summary="Show completions that came too late or contradicted the admitted one",
            query=_PAGE_QUERY,
            answers={200: ("a page", "LateCompletions")},
        ),
    ),
    Route(
        method="POST",
        template="/pipeline/executions/{id}/cancel",
        access=Access.OPERATE,
        handler=cancel,
        operation=Operation(
            summary="Cancel an execution", body="Cancel", answers={202: ("cancelled", "Execution")}
        ),
    ),
)
