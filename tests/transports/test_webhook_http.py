"""Requests over real sockets: what arrives there, and what every kind of answer, or none, means here."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.core.applier import Applier, await_terms
from tests.transports.endpoint import Endpoint, Heard, always, listening, response
from tpfd.clock import SystemClock
from tpfd.core import signing
from tpfd.core.records import JsonText
from tpfd.core.tokens import SigningKey
from tpfd.transports import webhook_http
from tpfd.transports.allow_list import AllowList
from tpfd.transports.checked_network import CheckedNetwork
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.webhook_http import WebhookHttp
from tpfd.transports.webhook_message import WebhookMessage, write_message
from tpfd.transports.webhook_replies import Never, NotNow, Reply, Taken
from tpfd.transports.webhook_target import WebhookTarget

KEY = SigningKey(None, b"a secret of the webhook tests")


def message(
    endpoint: Endpoint,
    timeout_ms: int = 20_000,
    scheme: str = "http",
    host: str = "127.0.0.1",
    payload: str = '{"amount":"9.70"}',
) -> WebhookMessage:
    store = Applier()
    store.parked_scalar(await_terms(transport_type="webhook"))
    target = WebhookTarget(
        scheme=scheme, host=host, port=endpoint.port, path="/hooks?a=b", method="POST", headers=(("x-key", "k"),),
        timeout_ms=timeout_ms, callback=None,
    )  # fmt: skip
    return write_message(
        store.interaction(),
        JsonText(payload),
        target,
        EnvelopeWriter(KEY),
        nonce="n1",
        trace_parent=None,
        now_epoch_ms=SystemClock().now_ms(),
    )


@asynccontextmanager
async def client(*allow: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[WebhookHttp]:
    network = CheckedNetwork(allowed=AllowList.parse(allow or ("127.0.0.1",), "$"))
    async with WebhookHttp(network=network, clock=SystemClock(), tls=tls) as http:
        yield http


async def outcome(answer: object, timeout_ms: int = 20_000) -> Reply:
    """What one request comes to."""
    async with listening(answer) as endpoint, client() as http:  # type: ignore[arg-type]
        return await http.send(message(endpoint, timeout_ms))


async def test_what_arrives_is_what_was_signed() -> None:
    async with listening(always(202)) as endpoint, client() as http:
        sent = message(endpoint)
        assert await http.send(sent) == Taken()
        (heard,) = endpoint.heard
        assert (heard.method, heard.target, heard.body) == ("POST", "/hooks?a=b", sent.body)
        assert heard.headers["host"] == f"127.0.0.1:{endpoint.port}"
        assert heard.headers["content-length"] == str(len(sent.body))
        assert heard.headers["x-key"] == "k"
        assert heard.headers["x-tpf-webhook-signature"] == signing.signature(
            KEY.secret,
            method=heard.method,
            path=heard.target,
            timestamp=heard.headers["x-tpf-webhook-timestamp"],
            nonce=heard.headers["x-tpf-webhook-nonce"],
            body=heard.body,
        )
        assert heard.json()["requestPayload"] == {"amount": "9.70"}


async def test_connections_are_used_again() -> None:
    async with listening(always(202, b'{"ok":true}')) as endpoint, client() as http:
        for _ in range(3):
            assert await http.send(message(endpoint)) == Taken()
        assert (endpoint.connection_count, len(endpoint.heard)) == (1, 3)


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    met = trio.Event()

    async def answer(_heard: Heard, _stream: trio.abc.Stream) -> bytes:
        if len(endpoint.heard) == 3:
            met.set()
        await met.wait()
        return response(200)

    async with listening(answer) as endpoint, client() as http, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(http.send, message(endpoint))
    assert endpoint.connection_count == 3


async def test_a_connection_that_the_other_side_closed_meanwhile_is_not_used() -> None:
    closed = trio.Event()

    async def answer(_heard: Heard, stream: trio.abc.Stream) -> bytes | None:
        await stream.send_all(response(200))
        closed.set()
        return None

    async with listening(answer) as endpoint, client() as http:
        for _ in range(2):
            assert await http.send(message(endpoint)) == Taken()
            await closed.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert endpoint.connection_count == 2


async def test_retry_after_is_heard_in_both_forms() -> None:
    reply = await outcome(always(429, retry_after="7"))
    assert isinstance(reply, NotNow)
    assert reply.floor_ms == 7_000
    later = await outcome(always(503, retry_after="Fri, 15 Jan 2100 08:01:00 GMT"))
    assert isinstance(later, NotNow)
    assert later.floor_ms > 0


async def test_a_redirect_is_not_followed() -> None:
    async with listening(always(200)) as elsewhere:
        reply = await outcome(always(307, location=f"http://127.0.0.1:{elsewhere.port}/"))
        assert isinstance(reply, Never)
        assert elsewhere.heard == []


async def test_no_answer_within_the_timeout_may_come_later() -> None:
    async def silence(_heard: Heard, _stream: trio.abc.Stream) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    reply = await outcome(silence, timeout_ms=50)
    assert isinstance(reply, NotNow)
    assert "did not answer within 50 ms" in reply.message


async def test_an_answer_that_trickles_is_cut_at_the_timeout() -> None:
    async def trickle(_heard: Heard, stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 200")
        await trio.sleep_forever()

    assert isinstance(await outcome(trickle, timeout_ms=50), NotNow)


async def test_hanging_up_and_talking_nonsense_may_pass() -> None:
    async def hang_up(_heard: Heard, _stream: trio.abc.Stream) -> None:
        return None

    async def nonsense(_heard: Heard, _stream: trio.abc.Stream) -> bytes:
        return b"SSH-2.0-OpenSSH_9\r\n\r\n"

    async def endless_head(_heard: Heard, _stream: trio.abc.Stream) -> bytes:
        return b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"a" * 200_000

    for answer in (hang_up, nonsense, endless_head):
        reply = await outcome(answer)
        assert isinstance(reply, NotNow), answer.__name__
        assert "before it answered" in reply.message


async def test_the_status_decides_whatever_happens_to_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_http, "BODY_S", 0.05)

    async def torn(_heard: Heard, stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 100\r\n\r\nhalf")

    async def stuck(_heard: Heard, stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 100\r\n\r\nhalf")
        await trio.sleep_forever()

    for answer in (torn, stuck):
        async with listening(answer) as endpoint, client() as http:
            with trio.fail_after(30):
                for _ in range(2):
                    assert await http.send(message(endpoint, timeout_ms=3_600_000)) == Taken(), answer.__name__
            assert endpoint.connection_count == 2, "such a connection is not used again"


async def test_an_endless_body_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_http, "BODY_S", 3600)
    ended = trio.Event()

    async def endless(_heard: Heard, stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 202 Accepted\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                await stream.send_all(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        except trio.BrokenResourceError:
            ended.set()

    async with listening(endless) as endpoint, client() as http:
        with trio.fail_after(30):
            assert await http.send(message(endpoint, timeout_ms=3_600_000)) == Taken()
            await ended.wait()


async def test_hanging_up_on_a_large_request_may_pass() -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        await stream.aclose()

    async with trio.open_nursery() as nursery, client() as http:
        listeners = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        endpoint = Endpoint(always(200), port=listeners[0].socket.getsockname()[1])
        reply = await http.send(message(endpoint, payload='"' + "x" * 20_000_000 + '"'))
        nursery.cancel_scope.cancel("the test is over")
    assert isinstance(reply, NotNow)


async def test_a_refused_connection_may_pass_and_an_address_that_is_not_listed_may_not() -> None:
    async with listening(always(200)) as endpoint, client("127.0.0.1:1") as http:
        gone = evolve(message(endpoint), target=evolve(message(endpoint).target, port=1))
        reply = await http.send(gone)
        assert isinstance(reply, NotNow)
        assert "cannot connect to 127.0.0.1:1" in reply.message
        assert isinstance(await http.send(message(endpoint)), Never)
        assert endpoint.connection_count == 0


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(always(200)) as proxy, listening(always(202)) as endpoint, client() as http:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await http.send(message(endpoint)) == Taken()
        assert (proxy.connection_count, endpoint.connection_count) == (0, 1)


async def test_a_request_that_http_cannot_carry_is_given_up() -> None:
    async with listening(always(200)) as endpoint, client() as http:
        broken = evolve(message(endpoint), headers=(("host", "x"), ("x-a", "a\r\nx-b: c")))
        reply = await http.send(broken)
        assert isinstance(reply, Never)
        assert "cannot be written" in reply.message
        assert endpoint.heard == []


async def test_a_cancel_in_the_middle_leaves_nothing_open() -> None:
    arrived = trio.Event()

    async def silence(_heard: Heard, stream: trio.abc.Stream) -> None:
        arrived.set()
        assert await stream.receive_some(1) == b""

    async with listening(silence) as endpoint, client() as http, trio.open_nursery() as nursery:
        nursery.start_soon(http.send, message(endpoint))
        await arrived.wait()
        nursery.cancel_scope.cancel("the test wants it")


# ── TLS ──


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for the name localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


def serving(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


async def test_over_tls_the_name_is_checked_although_the_number_is_connected_to(
    certificate: tuple[Path, Path],
) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    async with listening(always(202), serving(certificate)) as endpoint:
        async with client("localhost", tls=trusting) as http:
            for _ in range(2):
                assert await http.send(message(endpoint, scheme="https", host="localhost")) == Taken()
            assert endpoint.connection_count == 1
        async with client("127.0.0.1", tls=trusting) as http:
            reply = await http.send(message(endpoint, scheme="https"))
    assert isinstance(reply, Never)
    assert "IP address mismatch" in reply.message


async def test_a_certificate_that_is_not_trusted_is_refused_for_good(certificate: tuple[Path, Path]) -> None:
    async with (
        listening(always(202), serving(certificate)) as endpoint,
        client("localhost", tls=ssl.create_default_context()) as http,
    ):
        reply = await http.send(message(endpoint, scheme="https", host="localhost"))
    assert isinstance(reply, Never)
    assert "self-signed certificate" in reply.message
    assert endpoint.heard == []


async def test_plain_http_where_tls_is_expected_is_refused_and_hanging_up_is_not() -> None:
    async def plain(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(response(400))

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.aclose()

    for handler, expected in ((plain, Never), (hang_up, NotNow)):
        async with trio.open_nursery() as nursery, client("localhost", tls=ssl.create_default_context()) as http:
            listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
            endpoint = Endpoint(always(200), port=listeners[0].socket.getsockname()[1])
            reply = await http.send(message(endpoint, scheme="https", host="localhost"))
            assert isinstance(reply, expected), reply
            nursery.cancel_scope.cancel("the test is over")


def test_the_envelope_is_json_for_everybody() -> None:
    assert json.loads(message(Endpoint(always(200))).body)["inputType"] == "In"
