"""The OpenAPI document, made from the route table, so that both cannot differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

import tpfd
from tpfd.core.late import LateReason
from tpfd.core.records import ExecutionStatus, FactType, InteractionStatus
from tpfd.http.auth import Access
from tpfd.http.problems import PROBLEM_JSON
from tpfd.http.routing import Route

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_EPOCH_MS: Schema = {"type": "integer", "description": "epoch milliseconds"}
_MAYBE_EPOCH_MS: Schema = {"type": ["integer", "null"], "description": "epoch milliseconds"}
_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _array(of: str) -> Schema:
    return {"type": "array", "items": _ref(of)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_EXECUTION_OPTIONAL: Mapping[str, Schema] = {
    "executionKey": _MAYBE_TEXT,
    "contractVersion": _TEXT,
    "heldReason": _MAYBE_TEXT,
    "workerLosses": _COUNT,
    "redriveCount": _COUNT,
    "resultShape": {"enum": ["ONE", "MANY"]},
    "nextDueAtEpochMs": _MAYBE_EPOCH_MS,
    "createdAtEpochMs": _EPOCH_MS,
    "errorCode": _MAYBE_TEXT,
    "errorMessage": _MAYBE_TEXT,
    "terminalReason": _MAYBE_TEXT,
    "awaitUnitId": _MAYBE_TEXT,
    "parentExecutionId": _MAYBE_TEXT,
    "search": {"type": "object", "additionalProperties": _TEXT},
    "publication": {"type": ["object", "null"]},
}
_WRAPPED: Schema = _object({"payloadTypeId": _TEXT, "payloadEncoding": _TEXT, "payload": _TEXT})

_SCHEMAS: Mapping[str, Schema] = {
    "Problem": _object(
        {"type": _TEXT, "title": _TEXT, "status": _COUNT, "code": _TEXT, "detail": _TEXT},
        {"errors": {"type": "array", "items": _object({"path": _TEXT, "message": _TEXT})}},
    ),
    "Submitted": _object(
        {"executionId": _TEXT, "duplicate": _FLAG, "statusUrl": _TEXT, "submittedAtEpochMs": _EPOCH_MS}
    ),
    "Batch": {
        "type": "array",
        "minItems": 1,
        "maxItems": 1000,
        "items": _object({"input": _ref("Input")}, {"idempotencyKey": _TEXT, "pipeline": _TEXT}),
    },
    "BatchOutcome": {"type": "array", "items": {"anyOf": [_ref("Submitted"), _ref("Problem")]}},
    "Execution": _object(
        {
            "executionId": _TEXT,
            "pipelineId": _TEXT,
            "status": {"enum": [status.value for status in ExecutionStatus]},
            "stepIndex": _COUNT,
            "attempt": _COUNT,
            "version": _COUNT,
            "updatedAtEpochMs": _EPOCH_MS,
        },
        _EXECUTION_OPTIONAL,
    ),
    "Executions": _array("Execution"),
    "Cancel": _object({}, {"reason": _TEXT, "actor": _TEXT}),
    "Fact": _object(
        {
            "seq": _COUNT,
            "type": {"enum": [fact.value for fact in FactType]},
            "atEpochMs": _EPOCH_MS,
            "executionId": _TEXT,
            "pipelineId": _TEXT,
            "key": _TEXT,
            "data": {"type": "object"},
        }
    ),
    "Facts": _array("Fact"),
    "Interaction": _object(
        {
            "interactionId": _TEXT,
            "correlationId": _TEXT,
            "executionId": _TEXT,
            "pipelineId": _TEXT,
            "stepId": _TEXT,
            "stepIndex": _COUNT,
            "itemIndex": _COUNT,
            "inputType": _TEXT,
            "outputType": _TEXT,
            "status": {"enum": [status.value for status in InteractionStatus]},
            "requestPayload": _ANY,
            "assignee": _MAYBE_TEXT,
            "group": _MAYBE_TEXT,
            "transportType": _TEXT,
            "transportMetadata": {"type": "object", "additionalProperties": _TEXT},
            "deadlineEpochMs": _EPOCH_MS,
            "createdAtEpochMs": _EPOCH_MS,
            "updatedAtEpochMs": _EPOCH_MS,
        }
    ),
    "Interactions": _array("Interaction"),
    "Completion": {
        **_object(
            {"responsePayload": _ANY},
            {
                "tenantId": _TEXT,
                "interactionId": _TEXT,
                "correlationId": _TEXT,
                "resumeToken": _TEXT,
                "idempotencyKey": _TEXT,
                "actor": _TEXT,
            },
        ),
        "anyOf": [{"required": [name]} for name in ("interactionId", "correlationId", "resumeToken")],
    },
    "Completed": _object(
        {"interactionId": _TEXT, "executionId": _TEXT, "stepId": _TEXT, "status": _TEXT, "duplicate": _FLAG}
    ),
    "LateCompletion": _object(
        {
            "lateId": _TEXT,
            "interactionId": _TEXT,
            "executionId": _MAYBE_TEXT,
            "stepId": _MAYBE_TEXT,
            "reason": {"enum": [reason.value for reason in LateReason]},
            "responsePayload": _ANY,
            "actor": _MAYBE_TEXT,
            "createdAtEpochMs": _EPOCH_MS,
        }
    ),
    "LateCompletions": _array("LateCompletion"),
    "Match": _object({"interactionId": _TEXT}, {"actor": _TEXT}),
    "WrappedInput": _object(
        {"pipelineId": _TEXT, "inputPayload": {"anyOf": [_WRAPPED, _ANY]}}, {"idempotencyKey": _TEXT}
    ),
    "WrappedResult": _object({"status": _ref("Execution"), "resultPayload": {"anyOf": [_WRAPPED, {"type": "null"}]}}),
    "Redrive": _object(
        {"expectedVersion": _COUNT, "reason": _TEXT},
        {"allowFailed": _FLAG, "confirmedStopped": _FLAG, "actor": _TEXT},
    ),
    "RedriveMany": _object(
        {"status": {"enum": ["FAILED", "DLQ"]}, "reason": _TEXT},
        {
            "pipeline": _TEXT,
            "errorCode": _TEXT,
            "limit": {"type": "integer", "minimum": 1, "maximum": 200},
            "cursor": {"type": "string", "description": "from the answer before, for the next slice"},
            "dryRun": _FLAG,
            "actor": _TEXT,
        },
    ),
    "RedriveReport": _object(
        {
            "count": _COUNT,
            "executionIds": {"type": "array", "items": _TEXT},
            "dryRun": _FLAG,
            "cursor": {"type": ["string", "null"], "description": "where the next slice begins; null: nothing follows"},
        }
    ),
    "Health": _object({"status": {"enum": ["UP", "DOWN"]}}, {"reasons": {"type": "array", "items": _TEXT}}),
}


def document(routes: Iterable[Route], input_schemas: Mapping[str, Schema]) -> bytes:
    """The document as JSON.

    Args:
        routes: the route table.
        input_schemas: pipeline id to the JSON schema of its input.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    schemas = {**_SCHEMAS, **{f"Input.{name}": schema for name, schema in input_schemas.items()}}
    schemas["Input"] = {"anyOf": [_ref(f"Input.{name}") for name in input_schemas]} if input_schemas else {}
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "tpfd", "version": tpfd.__version__, "summary": "The durable pipeline daemon"},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                "responses": {
                    "Problem": {
                        "description": "refused or failed; see its code and detail",
                        "content": {PROBLEM_JSON: {"schema": _ref("Problem")}},
                    }
                },
            },
        }
    )


def _operation(route: Route) -> dict[str, Any]:
    operation = route.operation
    parameters = [_parameter(name, "path", "", required=True) for name in re.findall(r"{(\w+)}", route.template)]
    parameters += [_parameter(name, "query", text) for name, text in operation.query.items()]
    answers: dict[str, Any] = {
        str(status): _answer(description, schema) for status, (description, schema) in operation.answers.items()
    }
    described: dict[str, Any] = {"summary": operation.summary, "parameters": parameters, "responses": answers}
    if route.access is not Access.PUBLIC:
        described["security"] = [{"bearer": []}]
        parameters.append(_parameter("x-tenant-id", "header", "tenant; absent: the token's, else the default one"))
        answers["default"] = {"$ref": "#/components/responses/Problem"}
    if operation.body is not None:
        described["requestBody"] = {"content": {"application/json": {"schema": _ref(operation.body)}}}
    if operation.body == "Input":
        parameters.append(_parameter("Idempotency-Key", "header", "the same key and input is the same execution"))
        parameters.append(_parameter("traceparent", "header", "W3C trace context"))
    return described


def _parameter(name: str, place: str, text: str, *, required: bool = False) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "in": place, "required": required, "schema": _TEXT}
    return {**described, "description": text} if text else described


def _answer(description: str, schema: str | None) -> dict[str, Any]:
    if schema is None:
        return {"description": description}
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}
