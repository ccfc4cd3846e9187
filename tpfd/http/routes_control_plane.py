"""The framework's control plane: the same things under a tenant's path, with payloads wrapped in text.

A wrapped payload is ``{payloadTypeId, payloadEncoding, payload}`` whose ``payload`` is the JSON text itself.
"""

from __future__ import annotations

from urllib.parse import quote

from tpfd.codec.strict_json import parse_json
from tpfd.core.records import ExecutionStatus
from tpfd.errors import MalformedError
from tpfd.http.auth import Access
from tpfd.http.bodies import Members
from tpfd.http.envelopes import (
    TRANSITION_JSON,
    JsonObject,
    completed_view,
    execution_view,
    read_completion,
    submitted_view,
)
from tpfd.http.messages import Response, json_response
from tpfd.http.routes_executions import LIST_OPERATION, STATUS_OPERATION, executions, status, trace_parent
from tpfd.http.routes_interactions import COMPLETE_OPERATION, PENDING_OPERATION, pending
from tpfd.http.routing import Call, Operation, Route
from tpfd.http.service import SubmitItem

_BASE = "/tpf/control-plane/tenants/{tenant}"


async def submit(call: Call) -> Response:
    """Stores one input as an execution; 200 also when it is new, as the framework answers."""
    members = Members.of_body(call.body)
    pipeline = members.text("pipelineId", required=True)
    key = members.text("idempotencyKey")
    wrapped = members.value("inputPayload")
    members.check()
    item = SubmitItem(unwrapped(wrapped, "$.inputPayload"), key, pipeline)
    submitted = await call.service.submit(call.tenant, item, trace_parent=trace_parent(call))
    here = f"/tpf/control-plane/tenants/{quote(call.tenant, safe='')}/executions"
    return json_response(200, submitted_view(submitted, f"{here}/{quote(submitted.execution_id, safe='')}"))


async def result(call: Call) -> Response:
    """Status and, once succeeded, the wrapped result; always 200, as the framework answers."""
    record = await call.service.execution(call.tenant, call.params["id"])
    view = execution_view(record, call.service.held_reason(record))
    payload: JsonObject | None = None
    if record.status is ExecutionStatus.SUCCEEDED:
        text = await call.service.result_json(record)
        type_name = "" if record.result is None else record.result.type_name
        payload = {"payloadTypeId": type_name, "payloadEncoding": TRANSITION_JSON, "payload": text or "null"}
    return json_response(200, {"status": view, "resultPayload": payload})


async def complete(call: Call) -> Response:
    """Answers an interaction with a wrapped payload."""
    members = Members.of_body(call.body)
    completion = read_completion(
        members, call.tenant_with(members.text("tenantId")), usual_actor=call.caller.name, unwrap=unwrapped
    )
    return json_response(200, completed_view(await call.service.complete(completion)))


def unwrapped(payload: object, path: str = "$.responsePayload") -> object:
    """The JSON data inside a wrapped payload; what is not wrapped is taken as it is.

    Raises:
        MalformedError: wrapped in an encoding that is not ours, or not JSON inside.
    """
    if not isinstance(payload, dict) or "payloadEncoding" not in payload:
        return payload
    encoding, text = payload["payloadEncoding"], payload.get("payload")
    if encoding != TRANSITION_JSON:
        raise MalformedError(f"{path}.payloadEncoding: expected {TRANSITION_JSON!r}, not {encoding!r}")
    if not isinstance(text, str):
        raise MalformedError(f"{path}.payload: expected the JSON text of the payload")
    return parse_json(text)


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        template=f"{_BASE}/executions",
        access=Access.SUBMIT,
        handler=submit,
        operation=Operation(
            summary="Submit an input", body="WrappedInput", answers={200: ("accepted: stored durably", "Submitted")}
        ),
    ),
    Route(
        method="GET",
        template=f"{_BASE}/executions",
        access=Access.READ,
        handler=executions,
        operation=LIST_OPERATION,
    ),
    Route(
        method="GET",
        template=f"{_BASE}/executions/{{id}}",
        access=Access.READ,
        handler=status,
        operation=STATUS_OPERATION,
    ),
    Route(
        method="GET",
        template=f"{_BASE}/executions/{{id}}/result",
        access=Access.READ,
        handler=result,
        operation=Operation(
            summary="Get status and result", answers={200: ("status, and the result once succeeded", "WrappedResult")}
        ),
    ),
    Route(
        method="GET",
        template=f"{_BASE}/interactions/pending",
        access=Access.READ,
        handler=pending,
        operation=PENDING_OPERATION,
    ),
    Route(
        method="POST",
        template=f"{_BASE}/interactions/complete",
        access=Access.COMPLETE,
        handler=complete,
        operation=COMPLETE_OPERATION,
    ),
)
