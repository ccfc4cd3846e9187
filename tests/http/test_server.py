"""Listening, TLS, and the drain."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx
import orjson
import pytest
import trio

from tests.http.conftest import Edge, Start, running
from tests.http.double import Double, execution
from tests.http.raw import ends, exchange, get, once, post, until, websocket
from tpfd.errors import ConfigError
from tpfd.http.server import serve
from tpfd.http.service import Readiness
from tpfd.http.settings import HttpSettings, TlsFiles
from tpfd.metrics import Metrics

HEALTH = "/q/health/live"
SUBSCRIBE = '{"type":"subscribe","stepIds":["pay"]}'


# --- listening ----------------------------------------------------------------------------------------------------


async def refused(**settings: object) -> str:
    with pytest.raises(ConfigError) as error:
        await serve(Double(), HttpSettings(**settings), Metrics(), input_schemas={})  # type: ignore[arg-type]
    return str(error.value)


async def test_a_port_in_use_is_named_with_what_to_do(edge: Edge) -> None:
    message = await refused(port=edge.port)
    assert f"127.0.0.1:{edge.port}" in message
    assert "another program" in message
    assert "$.http.bind" in message


@pytest.mark.parametrize(
    ("host", "advice"), [("192.0.2.1", "no such address"), ("no.such.host.invalid", "check the address")]
)
async def test_an_address_that_is_not_here_is_named(host: str, advice: str) -> None:
    message = await refused(host=host, port=0)
    assert host in message
    assert advice in message


async def test_a_port_without_the_privilege_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbidden(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(trio, "open_tcp_listeners", forbidden)
    assert "CAP_NET_BIND_SERVICE" in await refused(port=80)


async def test_two_servers_work_in_one_process(edge: Edge) -> None:
    async with running() as other:
        assert other.port != edge.port
        assert (await once(other, get(HEALTH))).status == 200
        assert (await once(edge, get(HEALTH))).status == 200


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    files = TlsFiles(folder / "cert.pem", folder / "key.pem")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, "-keyout", files.key, "-out", files.cert)
    return files


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


async def test_tls(start: Start, tls: TlsFiles) -> None:
    context = ssl.create_default_context(cafile=tls.cert)
    async with (
        start(tls=tls) as edge,
        httpx.AsyncClient(base_url=f"https://{edge.address}", verify=context, trust_env=False) as client,
    ):
        for _ in range(2):
            assert (await client.post("/pipeline/run-async", json={"amount": 1})).status_code == 202
        async with await edge.connect() as plain:
            await plain.send_all(get(HEALTH))
            assert await ends(plain)
        assert (await client.get(HEALTH)).status_code == 200


async def test_a_client_that_does_not_shake_hands_is_cut(start: Start, tls: TlsFiles) -> None:
    async with start(tls=tls, header_timeout_ms=100) as edge, await edge.connect() as silent:
        assert await ends(silent)


async def test_tls_files_that_cannot_be_used_are_named(tls: TlsFiles, tmp_path: Path) -> None:
    assert "there is no file" in await refused(port=0, tls=TlsFiles(tmp_path / "none.pem", tls.key))
    assert "$.http.tls.key" in await refused(port=0, tls=TlsFiles(tls.cert, tmp_path / "none.pem"))
    assert "cannot be used" in await refused(port=0, tls=TlsFiles(tls.key, tls.cert))
    locked = tmp_path / "locked.pem"
    openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", tls.key, "-out", locked)
    assert "cannot be used" in await refused(port=0, tls=TlsFiles(tls.cert, locked))


# --- drain --------------------------------------------------------------------------------------------------------


async def stopped(edge: Edge) -> None:
    """Waits until the server has let go of its port."""
    try:
        while True:
            await (await edge.connect()).aclose()
    except OSError:
        return


async def test_the_drain_answers_long_polls_closes_sockets_and_idle_connections(start: Start) -> None:
    async with start(drain_grace_ms=60_000) as edge:  # nothing of this may need the grace
        edge.service.put(execution(1))
        poll, idle = await edge.connect(), await edge.connect()
        feeding, providing = websocket(edge, "/pipeline/events"), websocket(edge, "/pipeline/interactions/stream")
        async with poll, idle, feeding as feed, providing as provider:
            await provider.send(SUBSCRIBE)
            await edge.service.attached()
            assert (await exchange(idle, get(HEALTH))).status == 200
            await poll.send_all(get("/pipeline/executions/E0001/result?wait=PT20S"))
            await until(lambda: ("wait_terminal", 20_000) in edge.service.calls)
            edge.drain()
            assert await feed.close_code() == 1012
            assert await provider.close_code() == 1012
            answer = await exchange(poll, b"")
            assert (answer.status, answer.headers["connection"]) == (202, "close")
            assert await ends(idle)
        await stopped(edge)


async def test_what_is_being_carried_out_is_answered_within_the_grace(start: Start) -> None:
    async with start(drain_grace_ms=10_000) as edge, await edge.connect() as stream:
        edge.service.hold = trio.Event()
        await stream.send_all(post(b'{"amount":1}'))
        await until(lambda: bool(edge.service.calls))
        edge.drain()
        await stopped(edge)
        edge.service.hold.set()
        answer = await exchange(stream, b"")
        assert (answer.status, answer.headers["connection"]) == (202, "close")


async def test_a_client_that_stopped_reading_cannot_hold_up_the_drain(start: Start) -> None:
    async with start(drain_grace_ms=200, request_timeout_ms=60_000) as edge:
        for number in range(400):
            edge.service.put(execution(number, error_message="x" * 50_000))
        async with await edge.connect() as answered, websocket(edge, "/pipeline/interactions/stream") as provider:
            await answered.send_all(get("/pipeline/executions?limit=400"))
            await provider.send(SUBSCRIBE.replace("}", ',"credit":10000}'))
            socket = await edge.service.attached()
            socket.push(*({"requestPayload": "x" * 10_000} for _ in range(5_000)))
            await until(lambda: not socket.waiting)
            edge.drain()
            await stopped(edge)
            await socket.detached.wait()
        # leaving `start` waits for the server; its own deadline is far below the request timeout


async def test_a_request_that_never_ends_is_cut_at_the_grace(start: Start) -> None:
    async with start(drain_grace_ms=100) as edge, await edge.connect() as stream:
        edge.service.hold = trio.Event()
        await stream.send_all(post(b'{"amount":1}'))
        await until(lambda: bool(edge.service.calls))
        edge.drain()
        assert await ends(stream)


# --- health -------------------------------------------------------------------------------------------------------


async def test_readiness_says_why_not(edge: Edge) -> None:
    assert (await once(edge, get("/q/health/ready"))).body == b'{"status":"UP","reasons":[]}'
    edge.service.ready = Readiness(False, ("the store does not answer",))
    answer = await once(edge, get("/q/health/ready"))
    assert answer.status == 503
    assert orjson.loads(answer.body) == {"status": "DOWN", "reasons": ["the store does not answer"]}
    assert (await once(edge, get(HEALTH))).status == 200


async def test_metrics_count_what_was_answered(edge: Edge) -> None:
    await once(edge, post(b'{"amount":1}'))
    await once(edge, get("/pipeline/executions/E0001"))
    await once(edge, get("/pipeline/executions/E0002"))
    await once(edge, get("/made/up/path"))
    answer = await once(edge, get("/q/metrics"))
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        b'tpf_http_answers_total{route="/pipeline/run-async",status="202"} 1.0',
        b'tpf_http_answers_total{route="/pipeline/executions/{id}",status="200"} 1.0',
        b'tpf_http_answers_total{route="/pipeline/executions/{id}",status="404"} 1.0',
        b'tpf_http_answers_total{route="unknown",status="404"} 1.0',
    ):
        assert line in answer.body
