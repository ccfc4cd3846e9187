"""The WebSocket layer itself: handshake, frames, limits, liveness."""

from __future__ import annotations

import tracemalloc

import pytest
import trio
import trio.testing
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from tests.http.conftest import Edge, Start
from tests.http.raw import UPGRADE, Closed, Rejected, Socket, exchange, get, once, websocket
from tpfd.http import websocket as module
from tpfd.http.websocket import FrameRefused, WebSocket

EVENTS = "/pipeline/events"
KIB = 1024


async def test_the_handshake_is_that_of_the_rfc(edge: Edge) -> None:
    async with await edge.connect() as stream:
        await stream.send_all(get(EVENTS, *UPGRADE[:3], "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
        head = await stream.receive_some(4096)
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # the example of RFC 6455, section 1.3


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get(EVENTS, *UPGRADE[:2], UPGRADE[3], "Sec-WebSocket-Version: 8"), 426),
        (get(EVENTS, *UPGRADE[:2], UPGRADE[3]), 426),
        (get(EVENTS, *UPGRADE[:3]), 400),
        (get(EVENTS, *UPGRADE[:3], "Sec-WebSocket-Key: short"), 400),
        (get(EVENTS, *UPGRADE[:3], "Sec-WebSocket-Key: ****************"), 400),
        (get(EVENTS, *UPGRADE, "Content-Length: 3") + b"abc", 400),
        (get(EVENTS, *UPGRADE).replace(b"GET", b"POST", 1), 400),
        (get("/q/health/live", *UPGRADE), 400),
        (get("/nowhere", *UPGRADE), 404),
        (get(EVENTS, "Upgrade: websocket"), 426),  # without Connection: Upgrade it is a plain GET
    ],
)
async def test_a_handshake_that_is_none_is_answered_and_the_connection_goes_on(
    edge: Edge, request_bytes: bytes, status: int
) -> None:
    async with await edge.connect() as stream:
        answer = await exchange(stream, request_bytes)
        assert answer.status == status
        assert answer.headers["content-type"] == "application/problem+json"
        if answer.headers.get("connection") != "close":
            assert (await exchange(stream, get("/q/health/live"))).status == 200
    assert (await once(edge, get("/q/health/live"))).status == 200


async def test_compression_is_not_agreed_to(start: Start) -> None:
    async with start() as edge, await edge.connect() as stream:
        await stream.send_all(get(EVENTS, *UPGRADE, "Sec-WebSocket-Extensions: permessage-deflate"))
        head = await stream.receive_some(4096)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in head.lower()
        bomb = b"\xc1\x8a\0\0\0\0" + b"\xaa" * 10  # a text frame with the bit of the extension
        await stream.send_all(bomb)
        data = b""
        while chunk := await stream.receive_some(4096):
            data += chunk
        assert CloseReason.PROTOCOL_ERROR.to_bytes(2, "big") in data


@pytest.mark.parametrize(
    "beginning",
    [
        bytes([0x81, 0x80 | 127]) + (1 << 40).to_bytes(8, "big") + b"\0\0\0\0",  # a message of a tebibyte
        b"\x83\x80\0\0\0\0",  # a frame of no known kind: nothing behind it can be read
    ],
)
async def test_a_client_that_sends_without_end_does_not_fill_the_memory(start: Start, beginning: bytes) -> None:
    async with start(max_body_bytes=256 * KIB) as edge, websocket(edge, "/pipeline/interactions/stream") as client:
        await client.stream.send_all(beginning)
        chunk = b"x" * 64 * KIB
        tracemalloc.start()
        try:
            for _ in range(1024):  # 64 MiB
                await client.stream.send_all(chunk)
        except trio.BrokenResourceError:
            pass  # cut off: better still
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 4 * KIB * KIB


async def test_endless_fragments_do_not_fill_the_memory_either(start: Start) -> None:
    async with start(max_body_bytes=1000) as edge, websocket(edge, "/pipeline/interactions/stream") as client:
        for _ in range(11):
            await client.send_event(TextMessage(data="x" * 100, message_finished=False))
        assert await client.close_code() == 1009


class Pair:
    """A server's WebSocket and a client on a stream in memory."""

    def __init__(self, **limits: float) -> None:
        near, far = trio.testing.memory_stream_pair()
        self.server = WebSocket(near, b"", max_message_chars=1000, send_timeout_s=limits.get("send_timeout_s", 5.0))
        self.far = far
        self.client = Socket(far)  # type: ignore[arg-type]


async def test_fragments_and_control_frames_make_one_message() -> None:
    pair = Pair()
    await pair.client.send_event(TextMessage(data="za", message_finished=False))
    await pair.client.send_event(Ping(payload=b"there?"))
    await pair.client.send_event(TextMessage(data="", message_finished=False))
    await pair.client.send_event(TextMessage(data="ż"))
    assert await pair.server.receive() == "zaż"
    answer = await pair.far.receive_some(100)
    assert answer == b"\x8a\x06there?"


async def test_the_client_may_close() -> None:
    pair = Pair()
    async with trio.open_nursery() as nursery:

        async def close() -> None:
            with pytest.raises(trio.EndOfChannel):
                await pair.server.receive()

        nursery.start_soon(close)
        await pair.client.send_event(CloseConnection(code=1000))
        assert await pair.far.receive_some(100) == b"\x88\x02\x03\xe8"
    with pytest.raises(trio.BrokenResourceError):
        await pair.server.send("too late")


async def test_a_client_that_vanishes_is_an_end() -> None:
    pair = Pair()
    await pair.far.aclose()
    with pytest.raises(trio.EndOfChannel):
        await pair.server.receive()


async def test_bad_utf8_is_refused_as_such() -> None:
    pair = Pair()
    await pair.far.send_all(b"\x81\x82\0\0\0\0\xff\xfe")
    with pytest.raises(FrameRefused) as refused:
        await pair.server.receive()
    assert refused.value.close_code == 1007


async def test_binary_is_refused() -> None:
    pair = Pair()
    await pair.client.send_event(BytesMessage(data=b"x"))
    with pytest.raises(FrameRefused) as refused:
        await pair.server.receive()
    assert refused.value.close_code == 1003


async def test_an_unmasked_frame_is_refused() -> None:
    pair = Pair()
    await pair.far.send_all(b"\x81\x01x")
    with pytest.raises(FrameRefused) as refused:
        await pair.server.receive()
    assert refused.value.close_code == 1002


async def test_a_silent_peer_is_asked_and_then_given_up(autojump_clock: trio.testing.MockClock) -> None:
    pair = Pair()
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            with pytest.raises(trio.EndOfChannel):
                await pair.server.receive()

        nursery.start_soon(listen)
        assert await pair.far.receive_some(100) == b"\x89\x00"
        assert trio.current_time() == pytest.approx(module.PING_AFTER_S)
    assert trio.current_time() == pytest.approx(module.PING_AFTER_S + module.PONG_WITHIN_S)


async def test_a_peer_that_answers_pings_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    pair = Pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.server.receive)
        for _ in range(3):
            assert await pair.far.receive_some(100) == b"\x89\x00"
            await pair.far.send_all(b"\x8a\x80\0\0\0\0")
        await pair.client.send("done")


async def test_a_peer_that_does_not_read_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    near, _far = trio.testing.lockstep_stream_pair()
    server = WebSocket(near, b"", max_message_chars=1000, send_timeout_s=5.0)
    with pytest.raises(trio.BrokenResourceError):
        await server.send("x")
    assert trio.current_time() == pytest.approx(5.0)
    with pytest.raises(trio.BrokenResourceError, match="cut off"):
        await server.send("nothing can follow half a frame")


async def test_closing_does_not_wait_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    pair = Pair()
    await pair.server.close(1012, "restart")
    assert trio.current_time() == pytest.approx(module.CLOSE_WITHIN_S)
    with pytest.raises(Closed) as closed:
        await pair.client.receive()
    assert closed.value.code == 1012


async def test_early_bytes_behind_the_handshake_are_not_lost(edge: Edge) -> None:
    async with await edge.connect() as stream:
        ping = b"\x89\x82\0\0\0\0hi"
        await stream.send_all(get(EVENTS, *UPGRADE) + ping)
        data = b""
        while b"\x8a\x02hi" not in data:
            data += await stream.receive_some(4096)


async def test_a_rejected_handshake_is_a_problem(edge: Edge) -> None:
    with pytest.raises(Rejected) as rejected:
        async with websocket(edge, "/nowhere"):
            pass
    assert rejected.value.answer.status == 404
