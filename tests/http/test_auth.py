"""Tokens, roles, tenants, and what an edge without tokens does about web pages."""

from __future__ import annotations

import httpx
import pytest

from tests.http.conftest import Edge, Start
from tests.http.double import execution, interaction
from tests.http.raw import get, once, post
from tpfd.errors import ConfigError
from tpfd.http.auth import ADMIN_ROLES, API_ROLES, Role, Token, parse_tokens

FILE = """
# who                          what             for whom
submitter-0123456789abcdef     submit
completer-0123456789abcdef     complete         acme
operator-00123456789abcdef     operate          -
admin-0000000123456789abcd     admin
usual-0000000123456789abcd
bound-0000000123456789abcd     -                acme
"""
TOKENS = {line.split("-")[0]: line.split()[0] for line in FILE.splitlines() if line and line[0] != "#"}


def tokens() -> tuple[Token, ...]:
    return parse_tokens(FILE, origin="tokens", usual_roles=API_ROLES)


def bearer(name: str, **headers: str) -> dict[str, str]:
    others = {key.replace("_", "-"): value for key, value in headers.items()}
    return {"authorization": f"Bearer {TOKENS[name]}", **others}


def test_a_token_file_gives_roles_and_tenants() -> None:
    submitter, completer, operator, admin, usual, bound = tokens()
    assert submitter.roles == {Role.SUBMIT}
    assert completer.roles == {Role.COMPLETE}
    assert completer.tenant == "acme"
    assert operator.roles == {Role.OPERATE}
    assert operator.tenant is None
    assert admin.roles == ADMIN_ROLES
    assert (usual.roles, usual.tenant) == (API_ROLES, None)
    assert (bound.roles, bound.tenant) == (API_ROLES, "acme")


def test_a_token_is_never_shown() -> None:
    for token in tokens():
        assert not any(secret in repr(token) + token.name for secret in TOKENS.values())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("short", "16"),
        ("0123456789abcdef fly", "fly"),
        ("0123456789abcdef submit a/b", "a/b"),
        ("0123456789abcdef submit acme more", "expected"),
        ("0123456789abcdef\n0123456789abcdef", "earlier"),
        ("0123456789abcdé", "ASCII"),
        ("\n# nothing\n", "no token"),
    ],
)
def test_a_bad_token_file_is_refused_without_repeating_the_token(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_tokens(text, origin="tokens", usual_roles=API_ROLES)
    assert fault in str(refused.value)
    assert "tokens" in str(refused.value)
    assert "0123456789" not in str(refused.value)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Basic 0123456789abcdef",
        "Bearer 0123456789abcdef",
        "Bearer é",
        "submitter-0123456789abcdef",
    ],
)
async def test_without_a_known_token_there_is_401(start: Start, header: str | None) -> None:
    async with start(tokens=tokens()) as edge:
        lines = [] if header is None else [f"Authorization: {header}"]
        for path in ("/pipeline/executions", "/q/metrics", "/pipeline/overview", "/pipeline/events"):
            request = "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode("latin-1")
            answer = await once(edge, request)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert edge.service.calls == []


async def test_health_console_and_description_ask_nobody(start: Start) -> None:
    async with start(tokens=tokens()) as edge:
        for path in ("/q/health/live", "/q/health/ready", "/", "/openapi.json"):
            assert (await once(edge, get(path))).status == 200


SUBMIT = ("POST", "/pipeline/run-async", {"amount": 1})
COMPLETE = ("POST", "/pipeline/interactions/complete", {"interactionId": "I0001", "responsePayload": {"accepted": 1}})
CANCEL = ("POST", "/pipeline/executions/E0001/cancel", None)
ORPHANS = ("GET", "/pipeline/interactions/orphans", None)
LOOK = ("GET", "/pipeline/executions", None)
REDRIVE = ("POST", "/tpf/admin/tenants/acme/executions/E0001/redrive", {"expectedVersion": 1, "reason": "r"})


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("submitter", [SUBMIT, LOOK]),
        ("completer", [COMPLETE, LOOK]),
        ("operator", [CANCEL, ORPHANS, REDRIVE, LOOK]),
        ("admin", [SUBMIT, COMPLETE, CANCEL, ORPHANS, REDRIVE, LOOK]),
        ("usual", [SUBMIT, COMPLETE, LOOK]),
    ],
)
async def test_roles_decide_what_a_token_may(start: Start, name: str, allowed: list[tuple[str, str, object]]) -> None:
    for method, path, body in (SUBMIT, COMPLETE, CANCEL, ORPHANS, REDRIVE, LOOK):
        async with start(tokens=tokens()) as edge, httpx.AsyncClient(base_url=edge.url, trust_env=False) as client:
            edge.service.put(execution(1, "acme"))
            edge.service.interactions["acme", "I0001"] = interaction(1, "acme")
            answer = await client.request(method, path, json=body, headers=bearer(name, x_tenant_id="acme"))
            if (method, path, body) in allowed:
                assert answer.status_code < 300, answer.text
            else:
                assert answer.status_code == 403
                assert answer.json()["code"] == "forbidden"
                assert edge.service.calls == []


async def test_a_bound_token_acts_for_its_tenant_only(start: Start) -> None:
    async with start(tokens=tokens()) as edge, httpx.AsyncClient(base_url=edge.url, trust_env=False) as client:
        edge.service.put(execution(1, "acme"))
        edge.service.put(execution(2, "other"))
        path = "/pipeline/executions/"
        assert (await client.get(path + "E0001", headers=bearer("bound"))).status_code == 200
        assert (await client.get(path + "E0001", headers=bearer("bound", x_tenant_id="acme"))).status_code == 200
        assert (await client.get(path + "E0002", headers=bearer("bound"))).status_code == 404
        theirs = await client.get(path + "E0002", headers=bearer("bound", x_tenant_id="other"))
        nobodys = await client.get(path + "E9999", headers=bearer("bound", x_tenant_id="other"))
        assert theirs.status_code == 403
        assert theirs.json() == nobodys.json()
        control = await client.get("/tpf/control-plane/tenants/other/executions/E0002", headers=bearer("bound"))
        assert control.status_code == 403


async def test_the_actor_is_the_tokens_name_unless_one_is_given(start: Start) -> None:
    async with start(tokens=tokens()) as edge, httpx.AsyncClient(base_url=edge.url, trust_env=False) as client:
        edge.service.put(execution(1))
        await client.post("/pipeline/executions/E0001/cancel", headers=bearer("operator"))
        (operator,) = [token.name for token in tokens() if token.roles == {Role.OPERATE}]
        assert ("cancel", ("cancelled by request", operator)) in edge.service.calls


# --- tenants ------------------------------------------------------------------------------------------------------


async def test_a_tenant_can_be_required(start: Start) -> None:
    async with start(tenant_required=True) as edge:
        answer = await once(edge, get("/pipeline/executions"))
        assert answer.status == 400
        assert b"tenant_required" in answer.body
        assert (await once(edge, get("/pipeline/executions", "x-tenant-id: acme"))).status == 200
        assert (await once(edge, get("/q/health/live"))).status == 200
        body = b'{"tenantId":"acme","interactionId":"I1","responsePayload":1}'
        assert (await once(edge, post(body, path="/pipeline/interactions/complete"))).status == 404


@pytest.mark.parametrize("tenant", ["a/b", "../x", "a b", "x" * 129, ".", "é", "a,b"])
async def test_a_tenant_id_that_could_mean_something_else_is_400(edge: Edge, tenant: str) -> None:
    request = f"GET /pipeline/executions HTTP/1.1\r\nHost: localhost\r\nx-tenant-id: {tenant}\r\n\r\n"
    answer = await once(edge, request.encode())
    assert answer.status == 400
    assert edge.service.calls == []


async def test_contradicting_tenants_are_400(edge: Edge) -> None:
    body = b'{"tenantId":"b","interactionId":"I1","responsePayload":1}'
    answer = await once(edge, post(body, "x-tenant-id: a", path="/pipeline/interactions/complete"))
    assert answer.status == 400
    assert b"tenant_contradiction" in answer.body
    twice = await once(edge, get("/pipeline/executions", "x-tenant-id: a", "x-tenant-id: b"))
    assert twice.status == 400


# --- an open edge and web pages -----------------------------------------------------------------------------------


async def test_a_foreign_page_cannot_use_an_open_edge(edge: Edge) -> None:
    body = b'{"amount":1}'
    foreign = await once(edge, post(body, "Origin: https://evil.example"))
    assert (foreign.status, b"foreign_origin" in foreign.body) == (403, True)
    nowhere = await once(edge, post(body, "Origin: null"))
    assert nowhere.status == 403
    upgrade = get(
        "/pipeline/interactions/stream",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        "Origin: https://evil.example",
    )
    assert (await once(edge, upgrade)).status == 403
    own = await once(edge, post(body, "Origin: http://localhost"))
    assert own.status == 202
    assert [name for name, _ in edge.service.calls] == ["submit"]


async def test_a_name_that_was_bent_to_this_host_is_refused(edge: Edge) -> None:
    def reached_as(host: str) -> bytes:
        return f"GET /pipeline/executions HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    for host in ("evil.example", "evil.example:8081", "127.0.0.1.evil.example", "[", ""):
        answer = await once(edge, reached_as(host))
        assert (answer.status, b"foreign_host" in answer.body) == (421, True), host
    for host in ("localhost:1", "127.0.0.1:8081", "[::1]:80", "x.localhost"):
        assert (await once(edge, reached_as(host))).status == 200, host


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "json"],
)
async def test_a_body_that_is_not_declared_json_is_415(edge: Edge, content_type: str | None) -> None:
    lines = ["POST /pipeline/run-async HTTP/1.1", "Host: localhost", "Content-Length: 12"]
    lines += [] if content_type is None else [f"Content-Type: {content_type}"]
    answer = await once(edge, "\r\n".join(lines).encode() + b'\r\n\r\n{"amount":1}')
    assert answer.status == 415
    assert edge.service.calls == []


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=UTF-8", "application/x+json"])
async def test_json_by_any_of_its_names_is_taken(client: httpx.AsyncClient, content_type: str) -> None:
    answer = await client.post("/pipeline/run-async", content='{"amount":1}', headers={"content-type": content_type})
    assert answer.status_code == 202
    packed = await client.post(
        "/pipeline/run-async", content="x", headers={"content-type": content_type, "content-encoding": "gzip"}
    )
    assert packed.status_code == 415
