"""The OpenAPI document says what the edge does: answers are checked against it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
import pytest

import tpfd
from tests.http.conftest import Edge
from tests.http.double import execution, fact, interaction
from tpfd.core.records import ExecutionId, ExecutionStatus, JsonText, LateRecord, Payload, TenantId
from tpfd.http.app import ROUTES
from tpfd.http.auth import Access
from tpfd.http.problems import problem_body
from tpfd.http.routing import RouteTable


async def described(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    document: dict[str, Any] = answer.json()
    return document


async def test_every_route_is_described_and_nothing_else(client: httpx.AsyncClient) -> None:
    document = await described(client)
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == tpfd.__version__
    described_routes = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described_routes == {(route.method, route.template) for route in ROUTES}
    for path, item in document["paths"].items():
        for operation in item.values():
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert operation["responses"]
    for route in ROUTES:
        operation = document["paths"][route.template][route.method.lower()]
        assert ("security" in operation) == (route.access is not Access.PUBLIC)


async def test_every_reference_leads_somewhere(client: httpx.AsyncClient) -> None:
    document = await described(client)

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [found for member in value.values() for found in references(member)]
        if isinstance(value, list):
            return [found for member in value for found in references(member)]
        return []

    found = set(references(document))
    assert found
    for reference in found:
        place: Any = document
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]
    assert document["components"]["schemas"]["Input.orders"] == {"type": "object", "required": ["amount"]}
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


async def test_answers_are_as_described(edge: Edge, client: httpx.AsyncClient) -> None:
    document = await described(client)
    done = Payload(type_name="Done", json=JsonText("1"))
    edge.service.put(execution(1, status=ExecutionStatus.SUCCEEDED, result=done))
    edge.service.put(execution(2))
    edge.service.put(execution(3))
    edge.service.interactions["default", "I0001"] = interaction(1)
    edge.service.add_facts(fact(1))
    edge.service.lates.append(
        LateRecord(
            tenant_id=TenantId("default"),
            late_id="L1",
            interaction_id="I0001",
            execution_id=ExecutionId("E0001"),
            step_id=None,
            reason="late",
            body=JsonText("1"),
            actor=None,
            created_epoch_ms=3,
        )
    )
    control = "/tpf/control-plane/tenants/default"
    admin = "/tpf/admin/tenants/default/executions"
    calls: list[tuple[str, str, object]] = [
        ("POST", "/pipeline/run-async", {"amount": 1}),
        ("POST", "/pipeline/run-async", {}),
        ("POST", "/pipeline/run-async/batch", [{"input": {"amount": 1}}, {"input": {}}]),
        ("POST", "/pipeline/run?wait=PT0S", {"amount": 1}),
        ("GET", "/pipeline/executions", None),
        ("GET", "/pipeline/executions/E0001", None),
        ("GET", "/pipeline/executions/E0001/result", None),
        ("GET", "/pipeline/executions/E0002/result", None),
        ("GET", "/pipeline/executions/E0001/history", None),
        ("GET", "/pipeline/executions/E0001/late", None),
        ("POST", "/pipeline/executions/E0003/cancel", {"reason": "r"}),
        ("GET", "/pipeline/interactions/pending", None),
        ("POST", "/pipeline/interactions/complete", {"interactionId": "I0001", "responsePayload": {"accepted": 1}}),
        ("GET", "/pipeline/interactions/orphans", None),
        ("POST", "/pipeline/interactions/orphans/L1/match", {"interactionId": "I0001"}),
        ("POST", f"{control}/executions", {"pipelineId": "orders", "inputPayload": {"amount": 1}}),
        ("GET", f"{control}/executions", None),
        ("GET", f"{control}/executions/E0001", None),
        ("GET", f"{control}/executions/E0001/result", None),
        ("GET", f"{control}/executions/E0002/result", None),
        ("GET", f"{control}/interactions/pending", None),
        ("POST", f"{control}/interactions/complete", {"interactionId": "I0001", "responsePayload": {"accepted": 1}}),
        ("POST", f"{admin}/E0002/redrive", {"expectedVersion": 1, "reason": "r"}),
        ("POST", f"{admin}/redrive", {"status": "DLQ", "reason": "r"}),
        ("GET", "/q/health/live", None),
        ("GET", "/q/health/ready", None),
    ]
    table, seen = RouteTable(ROUTES), set()
    for method, target, body in calls:
        answer = await client.request(method, target, json=body)
        route, _ = table.find(method, target.partition("?")[0])
        seen.add((route.method, route.template))
        operation = document["paths"][route.template][route.method.lower()]
        if answer.status_code >= 400:
            schema: dict[str, Any] = {"$ref": "#/components/schemas/Problem"}
        else:
            described_answer = operation["responses"][str(answer.status_code)]
            if "content" not in described_answer:
                continue
            schema = described_answer["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
        if isinstance(answer.json(), list):
            assert answer.json() or "orphans" in target, target
    unseen = {(route.method, route.template) for route in ROUTES if route.handler} - seen
    assert unseen == {("GET", path) for path in ("/", "/openapi.json", "/q/metrics", "/pipeline/overview")}


def test_two_routes_for_the_same_thing_are_refused() -> None:
    with pytest.raises(ValueError, match="two routes"):
        RouteTable([*ROUTES, ROUTES[0]])


def test_a_problem_without_details_has_no_errors() -> None:
    from tpfd.errors import InternalError, NotFound

    assert "errors" not in problem_body(NotFound("no"), 404)
    hidden = problem_body(InternalError("index 7 is out of range"), 500)
    assert "index" not in str(hidden)
