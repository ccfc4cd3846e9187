"""Pending interactions and their completions, the control plane, re-drives, over a real socket."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import orjson
import pytest
import trio

from tests.http.conftest import Edge
from tests.http.double import execution, interaction
from tests.http.test_executions import problem
from tpfd.client import TpfdClient
from tpfd.core.records import ExecutionStatus, InteractionStatus, JsonText, LateRecord, Payload, TenantId

PENDING = "/pipeline/interactions/pending"
COMPLETE = "/pipeline/interactions/complete"
CONTROL = "/tpf/control-plane/tenants/acme"
ADMIN = "/tpf/admin/tenants/acme/executions"
YES = {"accepted": {"by": "ann"}}


async def test_pending_shows_what_is_asked(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1, assignee="ann", transport_metadata={"a": "b"})
    answer = await client.get(PENDING)
    assert '"requestPayload":{"amount":9.70}' in answer.text  # as it was stored, digit for digit
    (item,) = answer.json()
    expected = {
        "interactionId": "I0001",
        "correlationId": "corr-1",
        "executionId": "E0001",
        "stepId": "await-decision",
        "stepIndex": 1,
        "outputType": "Decision",
        "status": "WAITING",
        "assignee": "ann",
        "group": None,
        "transportType": "interaction-api",
        "transportMetadata": {"a": "b"},
        "deadlineEpochMs": 1_700_000_060_000,
        "createdAtEpochMs": 1_700_000_000_000,
        "updatedAtEpochMs": 1_700_000_000_000,
    }
    assert expected.items() <= item.items()


async def test_pending_is_filtered_and_paged(edge: Edge, client: httpx.AsyncClient) -> None:
    for number in range(3):
        edge.service.interactions["default", f"I{number:04d}"] = interaction(number)
    first = await client.get(PENDING, params={"stepId": "s t/ep&", "assignee": "ann", "group": "", "limit": "2"})
    assert [item["interactionId"] for item in first.json()] == ["I0000", "I0001"]
    following = await client.get(first.links["next"]["url"])
    assert [item["interactionId"] for item in following.json()] == ["I0002"]
    assert "next" not in following.links
    asked = [detail[1] for name, detail in edge.service.calls if name == "pending"]
    assert [(c["step_id"], c["assignee"], c["group"], c["cursor"]) for c in asked] == [
        ("s t/ep&", "ann", None, None),
        ("s t/ep&", "ann", None, "2"),
    ]


async def test_another_tenant_sees_nothing(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    other = {"x-tenant-id": "other"}
    assert (await client.get(PENDING, headers=other)).json() == []
    body = {"interactionId": "I0001", "responsePayload": YES}
    problem(await client.post(COMPLETE, json=body, headers=other), 404, "not_found")


async def test_a_completion_is_admitted_once(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    body = {
        "interactionId": " I0001 ",
        "correlationId": "  ",
        "resumeToken": None,
        "idempotencyKey": "k",
        "actor": "ann",
        "unknown": [1],
        "responsePayload": YES,
    }
    first = await client.post(COMPLETE, json=body)
    assert first.status_code == 200
    assert first.json() == {
        "interactionId": "I0001",
        "executionId": "E0001",
        "stepId": "await-decision",
        "status": "COMPLETED",
        "duplicate": False,
    }
    assert (await client.post(COMPLETE, json=body)).json()["duplicate"] is True
    other = await client.post(COMPLETE, json={**body, "responsePayload": {"accepted": False}})
    problem(other, 409, "conflicting_completion")
    completion = edge.service.calls[0][1]
    assert (completion.tenant_id, completion.interaction_id) == ("default", "I0001")
    assert (completion.correlation_id, completion.resume_token) == (None, None)
    assert (completion.idempotency_key, completion.actor) == ("k", "ann")


async def test_a11_every_wrong_completion_names_what_is_wrong(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.interactions["default", "I0001"] = interaction(1)
    edge.service.interactions["default", "I0002"] = interaction(2, step_id="no-await")
    edge.service.interactions["default", "I0003"] = interaction(3, status=InteractionStatus.TIMED_OUT)
    before = dict(edge.service.interactions)

    async def complete(interaction_id: str, payload: object = YES) -> httpx.Response:
        return await client.post(COMPLETE, json={"interactionId": interaction_id, "responsePayload": payload})

    problem(await complete("I9999"), 404, "not_found")
    problem(await complete("E0001/no-such-step"), 404, "not_found")
    problem(await complete("I0002"), 409, "not_an_await")
    problem(await complete("I0003"), 410, "timed_out")
    unfit = problem(await complete("I0001", {}), 422, "payload_invalid")
    assert unfit["errors"] == [{"path": "$.responsePayload.accepted", "message": "is required"}]
    empty = problem(await client.post(COMPLETE, json={}), 422, "body_invalid")
    assert [entry["path"] for entry in empty["errors"]] == ["$.responsePayload", "$.interactionId"]  # type: ignore[attr-defined]
    broken = await client.post(COMPLETE, content=b"{not json", headers={"content-type": "application/json"})
    problem(broken, 400, "malformed")
    problem(await client.post(COMPLETE, json=[YES]), 422, "body_invalid")
    problem(await client.post(COMPLETE, json={"interactionId": 7, "responsePayload": YES}), 422, "body_invalid")
    assert edge.service.interactions == before


def orphan(late_id: str, body: str = '{"a":1}') -> LateRecord:
    return LateRecord(
        tenant_id=TenantId("default"),
        late_id=late_id,
        interaction_id="I0009",
        execution_id=None,
        step_id=None,
        reason="orphan",
        body=JsonText(body),
        actor=None,
        created_epoch_ms=3,
    )


async def test_orphans_are_listed(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.lates.append(orphan("L1"))
    (found,) = (await client.get("/pipeline/interactions/orphans")).json()
    assert (found["reason"], found["responsePayload"]) == ("orphan", {"a": 1})


@pytest.mark.parametrize("late_id", ["01J.s002.000000000~5f70bf18a0860070", "a/b.c/../d", "ä %2F?#&;~"])
async def test_an_orphan_is_matched_by_its_id_whatever_stands_in_it(
    edge: Edge, client: httpx.AsyncClient, late_id: str
) -> None:
    edge.service.lates.append(orphan(late_id, orjson.dumps(YES).decode()))
    edge.service.interactions["default", "I0001"] = interaction(1)
    async with TpfdClient(edge.url) as subject:
        (found,) = (await subject.orphans()).items
        matched = await subject.match_orphan(found["lateId"], "I0001", actor="ops")
        assert (matched["interactionId"], matched["status"], matched["duplicate"]) == ("I0001", "COMPLETED", False)
        assert (await subject.match_orphan(found["lateId"], "I0001"))["duplicate"] is True
    asked = [detail for name, detail in edge.service.calls if name == "match_orphan"]
    assert asked[0] == ("default", late_id, "I0001", "ops")
    path = f"/pipeline/interactions/orphans/{quote(late_id, safe='')}/match"
    problem(await client.post(path, json={}), 422, "body_invalid")
    problem(await client.post(path, json={"interactionId": "I0002"}), 404, "not_found")
    problem(await client.post(path, json={"interactionId": "I0001"}, headers={"x-tenant-id": "acme"}), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/pipeline/interactions/orphans//match", 404),
        ("POST", "/tpf/admin/tenants/acme/pipelines/p/workers/register", 404),
        ("POST", "/tpf/admin/tenants/acme/pipelines/p/releases/register", 404),
        ("POST", "/pipeline/worker/transitions/execute", 404),
        ("GET", "/pipeline/executions/", 404),
        ("GET", "/pipeline/executions/%00", 404),
        ("GET", "/pipeline/executions/%ff", 404),
        ("GET", "/nowhere", 404),
        ("DELETE", "/pipeline/executions/E0001", 405),
        ("GET", "/pipeline/run-async", 405),
        ("OPTIONS", "/pipeline/run-async", 405),
        ("GET", "/pipeline/events", 426),
    ],
)
async def test_paths_and_methods_that_are_not_there(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    if status == 405:
        assert answer.headers["allow"] in {"POST", "GET, HEAD"}


async def test_an_id_may_hold_anything_that_can_be_printed(edge: Edge, client: httpx.AsyncClient) -> None:
    await client.get("/pipeline/executions/a%2Fb%20%C3%A9")
    assert edge.service.calls == [("execution", ("default", "a/b é"))]


# --- control plane ------------------------------------------------------------------------------------------------


def wrapped(payload: object) -> dict[str, str]:
    return {
        "payloadTypeId": "org.example.Order",
        "payloadEncoding": "application/tpf-transition+json",
        "payload": orjson.dumps(payload).decode(),
    }


async def test_the_control_plane_speaks_the_frameworks_envelopes(edge: Edge, client: httpx.AsyncClient) -> None:
    submit = {
        "pipelineId": "orders",
        "inputShape": "UNI",
        "inputPayload": wrapped({"amount": 1}),
        "idempotencyKey": "k",
        "outputStreaming": False,
    }
    accepted = await client.post(f"{CONTROL}/executions", json=submit)
    assert accepted.status_code == 200
    assert accepted.json()["statusUrl"] == f"{CONTROL}/executions/E0001"
    _, (tenant, item, _) = edge.service.calls[0]
    assert (tenant, item.input, item.key, item.pipeline) == ("acme", {"amount": 1}, "k", "orders")

    assert (await client.get(f"{CONTROL}/executions/E0001")).json()["status"] == "QUEUED"
    pending = await client.get(f"{CONTROL}/executions/E0001/result")
    assert pending.status_code == 200
    assert pending.json()["resultPayload"] is None
    done = Payload(type_name="Done", json=JsonText('{"total":1}'))
    edge.service.put(execution(1, "acme", status=ExecutionStatus.SUCCEEDED, result=done))
    result = (await client.get(f"{CONTROL}/executions/E0001/result")).json()
    assert result["status"]["status"] == "SUCCEEDED"
    assert result["resultPayload"] == {
        "payloadTypeId": "Done",
        "payloadEncoding": "application/tpf-transition+json",
        "payload": '{"total":1}',
    }

    edge.service.interactions["acme", "I0001"] = interaction(1, "acme")
    assert [item["interactionId"] for item in (await client.get(f"{CONTROL}/interactions/pending")).json()] == ["I0001"]
    body = {"interactionId": "I0001", "responsePayload": wrapped(YES)}
    assert (await client.post(f"{CONTROL}/interactions/complete", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ({"payloadEncoding": "protobuf", "payload": ""}, 400),
        ({"payloadEncoding": "application/tpf-transition+json", "payload": 1}, 400),
        ({"payloadEncoding": "application/tpf-transition+json", "payload": "{"}, 400),
        ({"amount": 1}, 200),
    ],
)
async def test_a_wrapping_that_cannot_be_opened_is_400(
    client: httpx.AsyncClient, payload: object, status: int
) -> None:
    answer = await client.post(f"{CONTROL}/executions", json={"pipelineId": "orders", "inputPayload": payload})
    assert answer.status_code == status


# --- re-drive -----------------------------------------------------------------------------------------------------


async def test_redrive_passes_on_what_the_operator_states(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.put(execution(1, "acme", status=ExecutionStatus.DLQ, version=7))
    body = {"expectedVersion": 7, "reason": "bank is back", "allowFailed": True, "actor": "ann"}
    answer = await client.post(f"{ADMIN}/E0001/redrive", json=body)
    assert answer.status_code == 202
    assert answer.json()["status"] == "QUEUED"
    (how,) = [detail for name, detail in edge.service.calls if name == "redrive"]
    assert how == {
        "expected_version": 7,
        "reason": "bank is back",
        "allow_failed": True,
        "confirmed_stopped": False,
        "actor": "ann",
    }
    problem(await client.post(f"{ADMIN}/E0001/redrive", json={**body, "expectedVersion": 6}), 409, "stale_version")


async def test_redrive_says_everything_that_is_missing_or_wrong(edge: Edge, client: httpx.AsyncClient) -> None:
    body = problem(await client.post(f"{ADMIN}/E0001/redrive", json={"allowFailed": "yes"}), 422, "body_invalid")
    assert [entry["path"] for entry in body["errors"]] == [  # type: ignore[attr-defined]
        "$.expectedVersion",
        "$.reason",
        "$.allowFailed",
    ]
    for version in (True, 1.5, "7", -1):
        wrong = {"expectedVersion": version, "reason": "r"}
        assert (await client.post(f"{ADMIN}/E0001/redrive", json=wrong)).status_code == 422
    assert edge.service.calls == []


async def test_bulk_redrive(edge: Edge, client: httpx.AsyncClient) -> None:
    body = {"status": "DLQ", "errorCode": "timeout", "reason": "bank is back", "dryRun": True}
    answer = await client.post(f"{ADMIN}/redrive", json=body)
    assert answer.status_code == 200
    assert answer.json() == {"count": 2, "executionIds": ["E0001", "E0002"], "dryRun": True, "cursor": "3:c"}
    following = await client.post(f"{ADMIN}/redrive", json={**body, "cursor": answer.json()["cursor"], "limit": 200})
    assert following.json()["cursor"] is None
    assert [detail[1]["cursor"] for _, detail in edge.service.calls] == [None, "3:c"]
    problem(await client.post(f"{ADMIN}/redrive", json={**body, "limit": 201}), 422, "body_invalid")
    (_, (tenant, how)) = edge.service.calls[0]
    assert tenant == "acme"
    assert (how["status"], how["error_code"], how["pipeline"], how["dry_run"]) == ("DLQ", "timeout", None, True)


@pytest.mark.parametrize("status", ["REMOTE_OUTCOME_UNKNOWN", "SUCCEEDED", "x", None])
async def test_bulk_redrive_is_never_for_unknown_outcomes(
    edge: Edge, client: httpx.AsyncClient, status: str | None
) -> None:
    answer = await client.post(f"{ADMIN}/redrive", json={"status": status, "reason": "r"})
    problem(answer, 422, "body_invalid")
    assert edge.service.calls == []


async def test_completions_of_many_callers_meet_in_the_service(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.hold = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(10):
            edge.service.interactions["default", f"I{number:04d}"] = interaction(number)
            body = {"interactionId": f"I{number:04d}", "responsePayload": YES}
            nursery.start_soon(lambda body: client.post(COMPLETE, json=body), body)
        while edge.service.completing_at_once < 10:
            await trio.lowlevel.checkpoint()
        edge.service.hold.set()
