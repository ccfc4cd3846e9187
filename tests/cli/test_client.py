"""The client against a daemon that the test plays, without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest

from tpfd.client import (
    BatchEntry,
    ExecutionFailed,
    Finished,
    Page,
    ProblemDetail,
    ServerRefused,
    Submission,
    TpfdClient,
    Unreachable,
)

URL = "http://127.0.0.1:8081"
ACCEPTED = {"executionId": "e-1", "duplicate": False, "statusUrl": "/pipeline/executions/e-1", "submittedAtEpochMs": 7}
FAILED = {
    "type": "urn:tpfd:problem:execution_failed",
    "title": "Conflict",
    "status": 409,
    "code": "execution_failed",
    "detail": "the file is refused",
    "errorCode": "csv_refused",
}
Answers = list[httpx.Response]


def client(
    *answers: httpx.Response, tenant: str | None = None, token: str | None = None, url: str = URL
) -> tuple[TpfdClient, list[httpx.Request]]:
    """A client whose requests are kept and answered in order."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers[len(asked) - 1]

    return TpfdClient(url, tenant=tenant, token=token, transport=httpx.MockTransport(answer)), asked


def body(request: httpx.Request) -> Any:
    return orjson.loads(request.content)


async def test_submit_sends_the_input_byte_for_byte_with_its_key_tenant_and_token() -> None:
    subject, asked = client(httpx.Response(202, json=ACCEPTED), tenant="t-1", token="s3cret")
    async with subject:
        submission = await subject.submit(orjson.Fragment(b'{"amount": 9.70}'), pipeline="orders", key="k-1")
    assert submission == Submission("e-1", False, "/pipeline/executions/e-1", 7)
    request = asked[0]
    assert (request.method, str(request.url)) == ("POST", f"{URL}/pipeline/run-async?pipeline=orders")
    assert request.content == b'{"amount": 9.70}'
    assert request.headers["idempotency-key"] == "k-1"
    assert request.headers["x-tenant-id"] == "t-1"
    assert request.headers["authorization"] == "Bearer s3cret"


async def test_what_is_not_given_is_not_sent() -> None:
    subject, asked = client(httpx.Response(200, json=ACCEPTED | {"duplicate": True}))
    async with subject:
        assert (await subject.submit({})).duplicate
    assert str(asked[0].url) == f"{URL}/pipeline/run-async"
    assert not {"idempotency-key", "x-tenant-id", "authorization"} & set(asked[0].headers)


async def test_a_batch_keeps_its_order_and_each_entry_its_own_answer() -> None:
    problem = {"title": "Unprocessable", "status": 422, "code": "payload_invalid", "detail": "no", "errors": []}
    subject, asked = client(httpx.Response(200, json=[ACCEPTED, problem]))
    async with subject:
        answers = await subject.submit_batch([BatchEntry({"a": 1}, key="k"), BatchEntry(None, pipeline="p")])
    assert body(asked[0]) == [{"input": {"a": 1}, "idempotencyKey": "k"}, {"input": None, "pipeline": "p"}]
    assert isinstance(answers[0], Submission)
    assert isinstance(answers[1], ProblemDetail)
    assert (answers[1].status, answers[1].code) == (422, "payload_invalid")


async def test_run_gives_the_result_or_the_submission() -> None:
    subject, _ = client(httpx.Response(200, json={"total": "1.00"}), httpx.Response(202, json=ACCEPTED))
    async with subject:
        assert await subject.run({}) == Finished({"total": "1.00"})
        assert isinstance(await subject.run({}), Submission)


async def test_result_polls_until_there_is_one(autojump_clock: object) -> None:
    waiting = httpx.Response(202, json={"status": "RUNNING"}, headers={"retry-after": "1"})
    subject, asked = client(waiting, waiting, httpx.Response(200, content=b"null"))
    async with subject:
        assert await subject.result("e-1") is None
    assert [request.url.params["wait"] for request in asked] == ["PT20S"] * 3


async def test_peeking_does_not_wait() -> None:
    subject, asked = client(httpx.Response(202, json={}), httpx.Response(200, json=[1]))
    async with subject:
        assert await subject.peek_result("e-1") is None
        assert await subject.peek_result("e-1") == Finished([1])
    assert str(asked[0].url) == f"{URL}/pipeline/executions/e-1/result"


async def test_a_failed_execution_is_not_a_refused_request() -> None:
    subject, _ = client(httpx.Response(409, json=FAILED), httpx.Response(404, json={"title": "Not Found"}))
    async with subject:
        with pytest.raises(ExecutionFailed, match="the file is refused") as failed:
            await subject.result("e-1")
        assert failed.value.problem.extra == {"errorCode": "csv_refused"}
        with pytest.raises(ServerRefused) as refused:
            await subject.result("e-2")
    assert not isinstance(refused.value, ExecutionFailed)


async def test_a_listing_is_read_page_by_page() -> None:
    link = {"link": '</pipeline/executions?status=FAILED&cursor=c%2F2>; rel="next"'}
    first = httpx.Response(200, json=[{"executionId": "a"}], headers=link)
    subject, asked = client(first, httpx.Response(200, json=[]))
    async with subject:
        page = await subject.executions(status="FAILED", search={"recipient": "Zoë & Co"}, limit=1)
        assert page == Page([{"executionId": "a"}], "c/2")
        assert await subject.executions(cursor=page.cursor) == Page([], None)
    assert dict(asked[0].url.params) == {"status": "FAILED", "search.recipient": "Zoë & Co", "limit": "1"}
    assert asked[1].url.params["cursor"] == "c/2"


async def test_complete_names_only_what_it_was_given_and_null_is_an_answer() -> None:
    subject, asked = client(httpx.Response(200, json={"duplicate": False}), httpx.Response(200, json={}))
    async with subject:
        assert await subject.complete({"accepted": {}}, interaction_id="i-1", actor="maria") == {"duplicate": False}
        await subject.complete(None, resume_token="t.s")
    assert body(asked[0]) == {"interactionId": "i-1", "actor": "maria", "responsePayload": {"accepted": {}}}
    assert body(asked[1]) == {"resumeToken": "t.s", "responsePayload": None}


async def test_operators_calls_go_to_the_tenants_own_path() -> None:
    subject, asked = client(*(httpx.Response(202, json={}) for _ in range(3)), tenant="a/b")
    async with subject:
        await subject.redrive("e/1", expected_version=3, reason="back", allow_failed=True, actor="maria")
        await subject.redrive_slice(status="DLQ", reason="back", limit=5, cursor="3:c", dry_run=True)
        await subject.cancel("e/1", reason="twice")
    assert asked[0].url.raw_path == b"/tpf/admin/tenants/a%2Fb/executions/e%2F1/redrive"
    assert body(asked[0]) == {
        "expectedVersion": 3,
        "reason": "back",
        "allowFailed": True,
        "confirmedStopped": False,
        "actor": "maria",
    }
    assert asked[1].url.raw_path == b"/tpf/admin/tenants/a%2Fb/executions/redrive"
    assert body(asked[1]) == {"status": "DLQ", "reason": "back", "limit": 5, "cursor": "3:c", "dryRun": True}
    assert asked[2].url.raw_path == b"/pipeline/executions/e%2F1/cancel"


async def test_ready_is_no_error_either_way() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    subject, _ = client(httpx.Response(200, json={}), httpx.Response(503, json={}))
    async with subject:
        assert [await subject.ready(), await subject.ready()] == [True, False]
    async with TpfdClient(URL, transport=httpx.MockTransport(gone)) as subject:
        assert not await subject.ready()


async def test_a_problem_is_read_with_all_it_says() -> None:
    answer = httpx.Response(
        422,
        json={
            "title": "Unprocessable Content",
            "status": 422,
            "code": "payload_invalid",
            "detail": "payload does not fit its type",
            "errors": [{"path": "$.totalAmount", "message": "'a lot' is not a decimal"}],
        },
        headers={"retry-after": "3"},
    )
    subject, _ = client(answer)
    async with subject:
        with pytest.raises(ServerRefused) as refused:
            await subject.submit({})
    error = refused.value
    assert (error.status, error.code, error.retry_after_s) == (422, "payload_invalid", 3.0)
    assert error.message == "Unprocessable Content: payload does not fit its type"
    assert [str(problem) for problem in error.problem.errors] == ["'a lot' is not a decimal @ $.totalAmount"]


@pytest.mark.parametrize(
    ("content", "title"),
    [(b"<html>", "Bad Gateway"), (b"[]", "Bad Gateway"), (b'{"title": null, "errors": [1]}', "Bad Gateway")],
)
async def test_a_body_that_is_no_problem_still_makes_an_error(content: bytes, title: str) -> None:
    subject, _ = client(httpx.Response(502, content=content))
    async with subject:
        with pytest.raises(ServerRefused, match=title):
            await subject.status("e-1")


def _connect_error(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("[Errno 111] Connection refused", request=request)


def _timeout(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("", request=request)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_connect_error, "cannot reach .*Connection refused"),
        (_timeout, "no answer from .* in time"),
        (lambda _: httpx.Response(308, headers={"location": "https://other/"}), "redirects to https://other/"),
        (lambda _: httpx.Response(200, content=b"<html>"), "no JSON; is this a tpfd daemon"),
        (lambda _: httpx.Response(200, json=[]), "something else than a JSON object"),
    ],
)
async def test_no_usable_answer_is_unreachable(
    answer: Callable[[httpx.Request], httpx.Response], message: str
) -> None:
    async with TpfdClient(URL, transport=httpx.MockTransport(answer)) as subject:
        with pytest.raises(Unreachable, match=message):
            await subject.status("e-1")


async def test_an_answer_to_a_submit_without_an_id_is_not_taken_for_accepted() -> None:
    subject, _ = client(httpx.Response(202, json={"ok": True}))
    async with subject:
        with pytest.raises(Unreachable, match="has no 'executionId'"):
            await subject.submit({})


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://host", "http://", "http://[::1"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(Unreachable, match="is not an address"):
        TpfdClient(url)


async def test_a_path_prefix_of_the_address_is_kept() -> None:
    subject, asked = client(httpx.Response(200, json={}), url="https://edge/tpfd/")
    async with subject:
        await subject.status("e-1")
    assert str(asked[0].url) == "https://edge/tpfd/pipeline/executions/e-1"


@pytest.mark.parametrize(("url", "direct"), [(URL, True), ("http://localhost:1", True), ("http://10.0.0.1", False)])
async def test_a_proxy_never_stands_between_us_and_this_host(
    url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    async with TpfdClient(url) as subject:
        pool = subject._exchange._http._mounts
    assert (not pool) is direct
