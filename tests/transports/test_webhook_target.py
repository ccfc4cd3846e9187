"""The settings of a webhook step: where the framework writes them, and what is refused at load, with its path."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tpfd.errors import ConfigError
from tpfd.pipeline.loader import load_pipeline
from tpfd.pipeline.model import Pipeline
from tpfd.transports.allow_list import AllowList
from tpfd.transports.webhook_target import WebhookTarget, read_targets

TYPES = """
version: 3
appName: Test
types:
  Row: {fields: [[number, int64]]}
"""
PATH = "$.steps[0].await.transport"


def pipeline(transport: str, environ: dict[str, str] | None = None) -> Pipeline:
    step = f"{{name: ask, kind: await, input: Row, output: Row, timeout: PT1M, await: {{transport: {transport}}}}}"
    return load_pipeline(f"{TYPES}steps:\n  - {step}\n", "f", environ or {})


def target(settings: str, *allow: str, environ: dict[str, str] | None = None) -> WebhookTarget:
    listed = AllowList.parse(allow or ("pay.example.org",), "$.a")
    (found,) = read_targets(pipeline(f"{{type: webhook, {settings}}}", environ), listed, 30_000).values()
    return found


def refused(settings: str, *allow: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        target(settings, *allow)
    return {problem.path: problem.message for problem in caught.value.problems}


URL = 'request: {url: "https://pay.example.org/hooks/a?b=c"}'


def test_a_url_is_enough() -> None:
    assert target(URL) == WebhookTarget(
        scheme="https", host="pay.example.org", port=443, path="/hooks/a?b=c", method="POST", headers=(),
        timeout_ms=30_000, callback=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        'request: {url: "http://pay.example.org:8080", method: put, headers: {X-Key: k}, timeout: PT5S}',
        'dispatch: {url: "http://pay.example.org:8080", method: put, headers: {X-Key: k}, timeout: PT5S}',
        'url: "http://pay.example.org:8080", method: put, headers: {X-Key: k}, timeout: PT5S',
        'request: {url: "http://pay.example.org:8080"}, method: put, headers: {X-Key: k}, timeoutMillis: 5000',
    ],
)
def test_settings_stand_where_the_framework_takes_them(settings: str) -> None:
    found = target(settings)
    assert (found.scheme, found.authority, found.path) == ("http", "pay.example.org:8080", "/")
    assert (found.method, found.headers, found.timeout_ms) == ("PUT", (("x-key", "k"),), 5_000)


def test_dispatch_may_stand_beside_the_transport() -> None:
    text = f"{TYPES}steps:\n" + textwrap.indent(
        "- {name: ask, kind: await, input: Row, output: Row, timeout: PT1M,\n"
        "   await: {transport: {type: webhook}, dispatch: {url: 'https://pay.example.org'}}}\n", "  "
    )  # fmt: skip
    found = read_targets(load_pipeline(text, "f", {}), AllowList.parse(["pay.example.org"], "$"), 1_000)
    assert found[0].host == "pay.example.org"


def test_other_transports_are_not_looked_at() -> None:
    assert read_targets(pipeline('{type: websocket, request: {url: "what"}}'), AllowList(), 1_000) == {}


def test_the_url_may_come_from_the_environment() -> None:
    environ = {"PAY": "https://pay.example.org/x"}
    assert target('request: {url: "${PAY}"}', environ=environ).path == "/x"


def test_the_callback_names_where_answers_go() -> None:
    base = f'{URL}, callback: {{baseUrl: "https://tpfd.example.org/"'
    assert target(base + "}").callback == {
        "baseUrl": "https://tpfd.example.org/",
        "completionPath": "/pipeline/interactions/complete",
        "completionUrl": "https://tpfd.example.org/pipeline/interactions/complete",
    }
    found = target(base + ", completionPath: cb}").callback
    assert found is not None
    assert (found["completionPath"], found["completionUrl"]) == ("/cb", "https://tpfd.example.org/cb")
    assert target(f'{URL}, callback: {{completionUrl: "https://c.example.org/x"}}').callback == {
        "completionUrl": "https://c.example.org/x"
    }


def test_an_ipv6_address_is_bracketed_where_it_is_written() -> None:
    found = target('request: {url: "http://[2001:DB8::1]:8080/x"}', "[2001:db8::1]:8080")
    assert (found.host, found.authority) == ("2001:db8::1", "[2001:db8::1]:8080")


def test_a_host_that_is_not_listed_is_refused_and_the_message_says_what_to_add() -> None:
    found = refused(URL, "api.example.org")
    assert found == {
        f"{PATH}.request.url": "pay.example.org:443 is not on the allow-list; add it to await.webhook.allow if it may "
        "be called"
    }


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.5/", "http://169.254.169.254/latest", "http://127.0.0.1:8080/", "http://[::1]/", "http://[::ffff:10.0.0.5]/"],
)
def test_a31_an_inner_address_in_the_url_is_refused_when_configured(url: str) -> None:
    found = refused(f'request: {{url: "{url}"}}', "pay.example.org", "*.org")
    assert "is not on the allow-list" in found[f"{PATH}.request.url"]


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
def test_a31_an_address_in_an_odd_spelling_is_refused_when_configured(host: str) -> None:
    assert "odd spelling" in refused(f'request: {{url: "http://{host}/"}}', "127.0.0.1")[f"{PATH}.request.url"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is not a URL in visible ASCII"),
        ("pay.example.org", "is not a URL with http"),
        ("ftp://pay.example.org/", "is not a URL with http"),
        ("http://", "is not a URL with http"),
        ("http://pay.example.org:0/", "is not a URL with http"),
        ("http://pay.example.org:99999/", "is not a URL:"),
        ("http://pay.example.org/#x", "no fragment"),
        ("http://me:secret@pay.example.org/", "has a user name in it"),
        ("http://pay.example.org/ü", "visible ASCII"),
        ("http://pay.example.org/a b", "visible ASCII"),
        ("http://[fe80::1%25eth0]/", "not a host name"),
        ("http://pay.example.org\\\\@evil.test/", "has a user name"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    found = refused(f'request: {{url: "{url}"}}')[f"{PATH}.request.url"]
    assert message in found
    assert "secret" not in found


def test_no_url_at_all() -> None:
    assert "is missing" in refused("method: POST")[f"{PATH}.request.url"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("Idempotency-Key", "mine", "set by tpfd"),
        ("x-tpf-webhook-signature", "mine", "set by tpfd"),
        ("X-TPF-Anything", "mine", "set by tpfd"),
        ("Host", "evil.test", "set by tpfd"),
        ("Content-Length", "5", "set by tpfd"),
        ("Transfer-Encoding", "chunked", "set by tpfd"),
        ("Connection", "close", "set by tpfd"),
        ("traceparent", "00-x", "set by tpfd"),
        ("Content-Type", "text/plain", "the body is JSON"),
        ("X Y", "v", "not a header name"),
        ("X-Y", "a\\r\\nX-Z: b", "not a header value"),
        ("X-Y", "", "not a header value"),
        ("X-Y", "ü", "not a header value"),
    ],
)
def test_headers_that_would_take_over_ours_or_break_the_request_are_refused(
    name: str, value: str, message: str
) -> None:
    found = refused(f'{URL}, headers: {{"{name}": "{value}"}}')
    assert message in found[f"{PATH}.headers.{name}"]


def test_a_json_content_type_may_be_written_and_others_are_taken_as_they_are() -> None:
    headers = '{Content-Type: "application/vnd.pay+json; charset=UTF-8", Authorization: "Bearer x"}'
    found = target(f"{URL}, headers: {headers}")
    assert found.headers == (
        ("content-type", "application/vnd.pay+json; charset=UTF-8"),
        ("authorization", "Bearer x"),
    )


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        ("reqest: {}", "reqest", "did you mean"),
        ("request: {uri: x}", "request.uri", "did you mean"),
        ("callback: {baseURL: x}", "callback.baseURL", "did you mean"),
        ("callback: {completionPath: /x}", "callback", "needs a baseUrl"),
        ("callback: {baseUrl: nowhere}", "callback.baseUrl", "is not a URL"),
        ("callback: {baseUrl: 5}", "callback.baseUrl", "text is needed"),
        ("callback: nowhere", "callback", "a mapping is needed"),
        ("request: nowhere", "request", "a mapping is needed"),
        ("headers: [a]", "headers", "a mapping of header names"),
        ("method: GET", "method", "is not a method for sending a body"),
        ("timeout: 5", "timeout", "has no unit"),
        ("timeoutMillis: 0", "timeoutMillis", "milliseconds"),
        ("timeoutMillis: soon", "timeoutMillis", "milliseconds"),
    ],
)
def test_every_other_setting_is_checked(settings: str, path: str, message: str) -> None:
    beside = "" if settings.startswith("request") else f"{URL}, "
    assert message in refused(beside + settings)[f"{PATH}.{path}"]


def test_all_problems_of_a_step_are_told_at_once() -> None:
    found: dict[str, Any] = refused("method: GET, timeout: 5, headers: [a], reqest: {}")
    assert len(found) == 5
