"""What one client can cost, whatever it sends or does not send."""

from __future__ import annotations

import httpx
import orjson
import pytest
import trio

from tests.http.conftest import Edge, Start
from tests.http.double import execution
from tests.http.raw import ends, exchange, get, once, post, read_answer, until
from tpfd.http.auth import API_ROLES, parse_tokens

HEALTH = "/q/health/live"


def code(body: bytes) -> str:
    return str(orjson.loads(body)["code"])


async def test_a_body_over_the_limit_is_refused_before_it_is_read(start: Start) -> None:
    async with start(max_body_bytes=1000) as edge:
        answer = await once(edge, post(b"", "Content-Length: 1001"))
        assert (answer.status, code(answer.body)) == (413, "too_large")
        assert answer.headers["connection"] == "close"
        assert edge.service.calls == []


async def test_a_client_that_is_still_sending_gets_to_read_the_413(start: Start) -> None:
    async with start(max_body_bytes=1000) as edge, await edge.connect() as stream:
        await stream.send_all(post(b"", "Content-Length: 50000000"))
        for _ in range(8):  # unread bytes in the server's buffer would reset the connection when it closes
            await stream.send_all(b"x" * 65536)
        answer = await read_answer(stream)
        assert answer.status == 413


async def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(start: Start) -> None:
    async with start(max_body_bytes=1000) as edge:
        chunk = b"1f4\r\n" + b"x" * 500 + b"\r\n"
        answer = await once(edge, post(b"", "Transfer-Encoding: chunked") + chunk * 3)
        assert (answer.status, code(answer.body)) == (413, "too_large")


async def test_a_body_at_the_limit_is_taken(start: Start) -> None:
    body = b'{"amount":1}'
    async with start(max_body_bytes=len(body)) as edge:
        assert (await once(edge, post(body))).status == 202
        chunked = b"c\r\n" + body + b"\r\n0\r\n\r\n"
        assert (await once(edge, post(chunked, "Transfer-Encoding: chunked"))).status == 202


async def test_an_unauthorised_body_is_not_read(start: Start) -> None:
    tokens = parse_tokens("0123456789abcdef", origin="tokens", usual_roles=API_ROLES)
    async with start(tokens=tokens) as edge:
        answer = await once(edge, post(b"", "Content-Length: 1000000"))
        assert answer.status == 401


async def test_expect_100_is_answered_only_for_a_body_that_is_wanted(start: Start) -> None:
    async with start(max_body_bytes=1000) as edge:
        async with await edge.connect() as stream:
            await stream.send_all(post(b"", "Content-Length: 12", "Expect: 100-continue"))
            assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 100 ")
            assert (await exchange(stream, b'{"amount":1}')).status == 202
        assert (await once(edge, post(b"", "Content-Length: 2000", "Expect: 100-continue"))).status == 413


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/", *(f"X-{n}: 1" for n in range(200))), 431),
        (get("/", "X-Long: " + "a" * 200_000), 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS to the plain port
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (post(b"{}", "Content-Length: 2", "Content-Length: 3"), 400),
        (post(b"2\r\n{}\r\n0\r\n\r\n", "Content-Length: 2", "Transfer-Encoding: chunked"), 400),
        (post(b"{}", "Transfer-Encoding: gzip"), 501),
        (post(b"{}", "Content-Length: -1"), 400),
        (post(b"zz\r\n{}", "Transfer-Encoding: chunked"), 400),
        (get("/", "Bad Header: 1"), 400),
        (get("/", "X: a\x00b"), 400),
    ],
)
async def test_requests_that_are_no_good_http_are_refused(edge: Edge, request_bytes: bytes, status: int) -> None:
    answer = await once(edge, request_bytes)
    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/problem+json"


async def test_http2_is_not_spoken_on_the_plain_port(edge: Edge) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    answer = await once(edge, get(HEALTH, *upgrade))
    assert (answer.status, answer.body) == (200, b'{"status":"UP"}')


async def test_the_door_is_closed_behind_the_last_allowed_connection(start: Start) -> None:
    async with start(max_connections=2) as edge:
        async with await edge.connect() as first, await edge.connect() as second:
            assert (await exchange(first, get(HEALTH))).status == 200
            assert (await exchange(second, get(HEALTH))).status == 200
            async with await edge.connect() as third:
                answer = await read_answer(third)
                assert (answer.status, code(answer.body)) == (503, "too_many_connections")
                assert answer.headers["retry-after"] == "1"
            assert (await exchange(first, get(HEALTH))).status == 200
        await until(lambda: b"tpf_http_connections 0.0" in edge.metrics.exposition())
        assert (await once(edge, get(HEALTH))).status == 200
        assert b"tpf_http_connections_refused_total 1.0" in edge.metrics.exposition()


# --- A33: slow clients --------------------------------------------------------------------------------------------


async def trickle(stream: trio.SocketStream, text: bytes) -> None:
    """Sends a byte at a time until the server has had enough."""
    try:
        for index in range(len(text)):
            await stream.send_all(text[index : index + 1])
            await trio.sleep(0.02)
    except trio.BrokenResourceError:
        return


@pytest.mark.parametrize("slow", ["head", "body", "silent", "stalled"])
async def test_a33_a_slow_client_is_cut_at_an_absolute_deadline_and_the_others_are_served(
    start: Start, slow: str
) -> None:
    limits = {"header_timeout_ms": 300, "request_timeout_ms": 600, "max_connections": 40}
    async with start(**limits) as edge, trio.open_nursery() as nursery:

        async def be_slow() -> None:
            async with await edge.connect() as stream, trio.open_nursery() as sending:
                match slow:
                    case "head":
                        head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2000
                        sending.start_soon(trickle, stream, head)
                    case "body":
                        await stream.send_all(post(b"", "Content-Length: 100000"))
                        sending.start_soon(trickle, stream, b"a" * 2000)
                    case "stalled":
                        await stream.send_all(post(b"{", "Content-Length: 1000"))
                assert await ends(stream)
                sending.cancel_scope.cancel()

        for _ in range(20):
            nursery.start_soon(be_slow)
        async with httpx.AsyncClient(base_url=edge.url, trust_env=False) as client:
            for _ in range(50):
                assert (await client.post("/pipeline/run-async", json={"amount": 1})).status_code == 202


async def test_a_slow_head_and_a_slow_body_are_told_why(start: Start) -> None:
    async with start(header_timeout_ms=100, request_timeout_ms=200) as edge:
        head = await once(edge, b"GET / HTTP/1.1\r\n")
        assert (head.status, code(head.body)) == (408, "request_too_slow")
        body = await once(edge, post(b"{", "Content-Length: 10"))
        assert (body.status, code(body.body)) == (408, "request_too_slow")


async def test_a_handler_that_does_not_finish_is_answered_and_says_that_nothing_is_known(start: Start) -> None:
    async with start(request_timeout_ms=100) as edge:
        edge.service.hold = trio.Event()
        answer = await once(edge, post(b'{"amount":1}'))
        assert (answer.status, code(answer.body)) == (503, "request_timeout")
        assert b"not known" in answer.body


async def test_a_client_that_does_not_take_its_answer_is_dropped(start: Start) -> None:
    async with start(request_timeout_ms=300) as edge:
        for number in range(400):
            edge.service.put(execution(number, error_message="x" * 50_000))
        async with await edge.connect() as stream:
            await stream.send_all(get("/pipeline/executions?limit=400"))
            await until(lambda: b"tpf_http_connections 1.0" in edge.metrics.exposition())
            await until(lambda: b"tpf_http_connections 0.0" in edge.metrics.exposition())


# --- keep-alive ---------------------------------------------------------------------------------------------------


async def test_a_connection_is_kept_over_answers_and_refusals(edge: Edge) -> None:
    async with await edge.connect() as stream:
        assert (await exchange(stream, get(HEALTH))).status == 200
        assert (await exchange(stream, post(b'{"amount":1}'))).status == 202
        assert (await exchange(stream, post(b"{}", path="/nowhere"))).status == 404  # its body is passed over
        assert (await exchange(stream, post(b"{"))).status == 400
        assert (await exchange(stream, get(HEALTH))).status == 200


async def test_pipelined_requests_are_answered_in_order(edge: Edge) -> None:
    async with await edge.connect() as stream:
        await stream.send_all(post(b'{"amount":1}') + post(b'{"amount":2}') + get(HEALTH, "Connection: close"))
        data = b""
        while chunk := await stream.receive_some(65536):
            data += chunk
        assert data.count(b"HTTP/1.1 202") == 2
        assert data.endswith(b'{"status":"UP"}')
        assert data.index(b"E0001") < data.index(b"E0002")


async def test_http_1_0_is_answered_and_closed(edge: Edge) -> None:
    async with await edge.connect() as stream:
        answer = await exchange(stream, f"GET {HEALTH} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert answer.status == 200
        assert await ends(stream)


async def test_head_has_the_head_of_get(client: httpx.AsyncClient) -> None:
    head = await client.head(HEALTH)
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(b'{"status":"UP"}'))
    assert head.content == b""
    assert (await client.get(HEALTH)).status_code == 200


async def test_a_client_that_leaves_in_the_middle_hurts_nobody(edge: Edge, client: httpx.AsyncClient) -> None:
    for request in (post(b'{"am', "Content-Length: 100"), b"GET / HT", post(b'{"amount":1}')):
        stream = await edge.connect()
        await stream.send_all(request)
        await stream.aclose()
    assert (await client.get(HEALTH)).status_code == 200
