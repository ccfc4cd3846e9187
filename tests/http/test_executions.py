"""Submitting and following executions, over a real socket."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx
import pytest
import trio

from tests.http.conftest import Edge
from tests.http.double import Double, execution, fact, store_down
from tpfd.core.records import (
    ExecutionId,
    ExecutionStatus,
    JsonText,
    LateRecord,
    Payload,
    Publication,
    PublicationState,
    TenantId,
    TerminalReason,
)

RUN = "/pipeline/run-async"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def problem(response: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = response.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"] == f"urn:tpfd:problem:{code}"
    assert body["title"]
    assert body["detail"]
    return body


async def test_a_new_submit_is_202_and_its_repeat_200(client: httpx.AsyncClient) -> None:
    first = await client.post(RUN, json={"amount": 1}, headers={"Idempotency-Key": "k"})
    assert first.status_code == 202
    assert first.json() == {
        "executionId": "E0001",
        "duplicate": False,
        "statusUrl": "/pipeline/executions/E0001",
        "submittedAtEpochMs": 1_700_000_000_000,
    }
    again = await client.post(RUN, json={"amount": 1}, headers={"Idempotency-Key": "k"})
    assert again.status_code == 200
    assert again.json()["duplicate"] is True
    assert again.json()["executionId"] == "E0001"
    other = await client.post(RUN, json={"amount": 2}, headers={"Idempotency-Key": "k"})
    assert "E0001" in str(problem(other, 409, "idempotency_key_reused")["detail"])


async def test_amounts_reach_the_service_exactly(edge: Edge, client: httpx.AsyncClient) -> None:
    await client.post(RUN, content=b'{"amount": 9.70}', headers={"content-type": "application/json"})
    ((_, (_, item, _)),) = edge.service.calls
    assert item.input == {"amount": Decimal("9.70")}
    assert str(item.input["amount"]) == "9.70"


async def test_pipeline_and_trace_are_passed_on(edge: Edge, client: httpx.AsyncClient) -> None:
    await client.post(RUN + "?pipeline=orders", json={"amount": 1}, headers={"traceparent": TRACE})
    await client.post(RUN, json={"amount": 1}, headers={"x-tpf-pipeline": "orders", "traceparent": "nonsense"})
    (_, (_, by_query, trace)), (_, (_, by_header, no_trace)) = edge.service.calls
    assert (by_query.pipeline, trace) == ("orders", TRACE)
    assert (by_header.pipeline, no_trace) == ("orders", None)
    unknown = await client.post(RUN + "?pipeline=nope", json={"amount": 1})
    problem(unknown, 404, "not_found")


async def test_an_input_that_does_not_fit_names_every_path(client: httpx.AsyncClient) -> None:
    body = problem(await client.post(RUN, json={}), 422, "payload_invalid")
    assert body["errors"] == [{"path": "$.amount", "message": "is required"}]


@pytest.mark.parametrize("text", ["", "   "])
async def test_an_absent_input_is_422_or_400(client: httpx.AsyncClient, text: str) -> None:
    answer = await client.post(RUN, content=text, headers={"content-type": "application/json"})
    assert answer.status_code in {400, 422}


@pytest.mark.parametrize(
    "text", ["{not json", '{"a":1,"a":2}', "NaN", "[" * 100 + "]" * 100, '{"a":1} x', '{"a":"\\ud800"}']
)
async def test_broken_json_is_400(client: httpx.AsyncClient, text: str) -> None:
    answer = await client.post(RUN, content=text, headers={"content-type": "application/json"})
    problem(answer, 400, "malformed")


async def test_a_store_that_is_down_is_503_with_retry_after(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.fail = store_down()
    answer = await client.post(RUN, json={"amount": 1})
    assert "nothing was stored" in str(problem(answer, 503, "store_unavailable")["detail"])
    assert answer.headers["retry-after"] == "1"


async def test_a_fault_of_ours_is_a_500_that_says_nothing_and_the_server_goes_on(
    edge: Edge, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    edge.service.fail = ZeroDivisionError("secret detail")
    answer = await client.post(RUN, json={"amount": 1})
    problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "secret detail" in caplog.text
    caplog.clear()
    edge.service.fail = None
    assert (await client.post(RUN, json={"amount": 1})).status_code == 202


async def test_a_batch_answers_each_entry_in_order(edge: Edge, client: httpx.AsyncClient) -> None:
    entries = [
        {"input": {"amount": 1}, "idempotencyKey": "a"},
        {"input": {}},
        {"idempotencyKey": "b"},
        "nonsense",
        {"input": {"amount": 1}, "idempotencyKey": "a"},
        {"input": {"amount": 2}, "idempotencyKey": "a"},
        {"input": {"amount": 3}, "pipeline": "nope"},
    ]
    answer = await client.post(RUN + "/batch", json=entries, headers={"traceparent": TRACE})
    assert answer.status_code == 200
    first, unfit, no_input, no_object, again, reused, unknown = answer.json()
    assert first["executionId"] == "E0001"
    assert first["duplicate"] is False
    assert unfit["status"] == 422
    assert no_input["errors"] == [{"path": "$[2].input", "message": "is required"}]
    assert no_object["errors"] == [{"path": "$[3]", "message": "expected an object"}]
    assert again["duplicate"] is True
    assert reused["code"] == "idempotency_key_reused"
    assert unknown["status"] == 404
    assert [name for name, _ in edge.service.calls] == ["submit_many"]
    assert edge.service.calls[0][1][2] == TRACE


@pytest.mark.parametrize(("body", "status"), [([], 422), ({}, 422), ([{}] * 1001, 413)])
async def test_a_batch_must_be_an_array_of_1_to_1000(
    edge: Edge, client: httpx.AsyncClient, body: object, status: int
) -> None:
    assert (await client.post(RUN + "/batch", json=body)).status_code == status
    assert edge.service.calls == []


def finish(service: Double, number: int = 1, **changes: Any) -> None:
    succeeded: dict[str, Any] = {
        "status": ExecutionStatus.SUCCEEDED,
        "result": Payload(type_name="Done", json=JsonText('{"total":9.70}')),
    }
    service.put(execution(number, **{**succeeded, **changes}))


async def test_run_waits_for_the_result(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.on_wait = lambda: finish(edge.service)
    answer = await client.post("/pipeline/run", json={"amount": 1})
    assert answer.status_code == 200
    assert answer.text == '{"total":9.70}'


async def test_run_answers_202_at_the_limit(client: httpx.AsyncClient) -> None:
    answer = await client.post("/pipeline/run?wait=PT0.01S", json={"amount": 1})
    assert answer.status_code == 202
    assert answer.json()["executionId"] == "E0001"


async def test_the_summary_has_the_frameworks_names(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.put(
        execution(
            7,
            status=ExecutionStatus.WAIT_RETRY,
            attempt=2,
            next_check_epoch_ms=5,
            error_code="step_failed",
            error_message="no luck",
            search={"order": "o-1"},
            publication=Publication(
                state=PublicationState.PREPARED,
                target="out",
                object_key="x.csv",
                temporary=".x.tmp",
                digest="ab",
                size_bytes=3,
                item_count=1,
            ),
        )
    )
    body = (await client.get("/pipeline/executions/E0007")).json()
    expected = {
        "executionId": "E0007",
        "status": "WAIT_RETRY",
        "stepIndex": 0,
        "attempt": 2,
        "version": 1,
        "nextDueAtEpochMs": 5,
        "updatedAtEpochMs": 1_700_000_000_000,
        "errorCode": "step_failed",
        "errorMessage": "no luck",
        "search": {"order": "o-1"},
    }
    assert expected.items() <= body.items()
    assert body["publication"]["objectKey"] == "x.csv"


async def test_another_tenants_execution_is_as_unknown_as_one_that_never_was(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.put(execution(1, "acme"))
    theirs = await client.get("/pipeline/executions/E0001")
    nobodys = await client.get("/pipeline/executions/E9999")
    problem(theirs, 404, "not_found")
    assert theirs.json() == nobodys.json()
    assert (await client.get("/pipeline/executions/E0001", headers={"x-tenant-id": "acme"})).status_code == 200


async def test_the_result_is_202_until_it_is_there(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.put(execution(1))
    waiting = await client.get("/pipeline/executions/E0001/result")
    assert waiting.status_code == 202
    assert waiting.headers["retry-after"] == "1"
    assert waiting.json()["status"] == "QUEUED"
    finish(edge.service)
    done = await client.get("/pipeline/executions/E0001/result")
    assert done.status_code == 200
    assert done.headers["content-type"] == "application/json"
    assert done.text == '{"total":9.70}'


async def test_a_long_poll_answers_when_the_execution_ends(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.put(execution(1))
    edge.service.on_wait = lambda: finish(edge.service)
    answer = await client.get("/pipeline/executions/E0001/result?wait=PT20S")
    assert answer.status_code == 200


async def test_a_long_poll_is_held_no_longer_than_the_limit(edge: Edge, client: httpx.AsyncClient) -> None:
    finish(edge.service)
    await client.get("/pipeline/executions/E0001/result?wait=P7D")
    assert ("wait_terminal", 20_000) in edge.service.calls


@pytest.mark.parametrize("wait", ["20", "PT", "-PT5S", "P1M", "soon"])
async def test_a_wait_that_is_no_duration_is_400(client: httpx.AsyncClient, wait: str) -> None:
    body = problem(await client.get(f"/pipeline/executions/E0001/result?wait={wait}"), 400, "bad_query")
    assert body["errors"][0]["path"] == "?wait"  # type: ignore[index]


@pytest.mark.parametrize("status", [ExecutionStatus.FAILED, ExecutionStatus.DLQ, ExecutionStatus.CANCELLED])
async def test_the_result_of_a_failure_is_409_with_its_error(
    edge: Edge, client: httpx.AsyncClient, status: ExecutionStatus
) -> None:
    finish(
        edge.service,
        status=status,
        result=None,
        error_code="card_declined",
        error_message="the card was declined",
        terminal_reason=TerminalReason.NON_RETRYABLE,
    )
    body = problem(await client.get("/pipeline/executions/E0001/result"), 409, "execution_failed")
    assert body["executionStatus"] == status
    assert body["errorCode"] == "card_declined"
    assert body["detail"] == "the card was declined"
    assert body["terminalReason"] == "non_retryable"


async def test_lists_are_paged_by_link(edge: Edge, client: httpx.AsyncClient) -> None:
    for number in range(1, 6):
        edge.service.put(execution(number))
    seen: list[str] = []
    url = "/pipeline/executions?limit=2&search.order=a%26b&status=QUEUED"
    while True:
        answer = await client.get(url)
        seen += [item["executionId"] for item in answer.json()]
        if "next" not in answer.links:
            break
        url = answer.links["next"]["url"]
    assert seen == ["E0001", "E0002", "E0003", "E0004", "E0005"]
    criteria = [detail[1] for name, detail in edge.service.calls if name == "executions"]
    assert [(c["search"], c["status"], c["cursor"]) for c in criteria] == [
        ({"order": "a&b"}, "QUEUED", cursor) for cursor in (None, "2", "4")
    ]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "status=LOST", "limit=1&limit=2", "key=%ff", "limit=1e2"]
)
async def test_a_query_that_cannot_be_used_is_400(edge: Edge, client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/pipeline/executions?{query}"), 400, "bad_query")
    assert edge.service.calls == []


async def test_history_is_paged_by_sequence(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.put(execution(1))
    edge.service.add_facts(fact(3), fact(4, execution_id="E0002"), fact(5), fact(9))
    first = await client.get("/pipeline/executions/E0001/history?limit=2")
    assert [item["seq"] for item in first.json()] == [3, 5]
    assert first.json()[0] == {
        "seq": 3,
        "type": "RunSubmitted",
        "atEpochMs": 1_700_000_000_003,
        "executionId": "E0001",
        "pipelineId": "orders",
        "key": "fact-3",
        "data": {"n": 3},
    }
    second = await client.get(first.links["next"]["url"])
    assert [item["seq"] for item in second.json()] == [9]
    assert "next" not in second.links


async def test_late_completions_can_be_read(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.lates.append(
        LateRecord(
            tenant_id=TenantId("default"),
            late_id="L1",
            interaction_id="I0001",
            execution_id=ExecutionId("E0001"),
            step_id="await-decision",
            reason="late",
            body=JsonText('{"paid":1.10}'),
            actor="bank",
            created_epoch_ms=3,
        )
    )
    answer = await client.get("/pipeline/executions/E0001/late")
    assert '"responsePayload":{"paid":1.10}' in answer.text
    assert answer.json()[0]["reason"] == "late"


async def test_cancel(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.put(execution(1))
    answer = await client.post("/pipeline/executions/E0001/cancel", json={"reason": "wrong file", "actor": "ann"})
    assert answer.status_code == 202
    assert answer.json()["status"] == "CANCELLED"
    assert ("cancel", ("wrong file", "ann")) in edge.service.calls
    problem(await client.post("/pipeline/executions/E0001/cancel"), 409, "already_terminal")
    problem(await client.post("/pipeline/executions/E9999/cancel"), 404, "not_found")


async def test_requests_on_many_connections_are_served_side_by_side(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.hold = trio.Event()
    statuses: list[int] = []

    async def submit() -> None:
        statuses.append((await client.post(RUN, json={"amount": 1})).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(submit)
        while len(edge.service.calls) < 20:
            await trio.lowlevel.checkpoint()
        edge.service.hold.set()
    assert statuses == [202] * 20


