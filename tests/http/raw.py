"""A client that speaks bytes, for what a well-behaved one would never send."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import h11
import trio
from attrs import frozen
from wsproto.connection import Connection as WebSocketConnection
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from tests.http.conftest import Edge


@frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


async def exchange(stream: trio.SocketStream, request: bytes) -> Answer:
    """Sends bytes and reads one answer."""
    await stream.send_all(request)
    return await read_answer(stream)


async def read_answer(stream: trio.SocketStream) -> Answer:
    """Reads one answer to a request that the parser is not told about."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    status, headers, body = 0, {}, b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return Answer(status, headers, body)


async def once(edge: Edge, request: bytes) -> Answer:
    """One exchange on a connection of its own."""
    async with await edge.connect() as stream:
        return await exchange(stream, request)


async def ends(stream: trio.SocketStream) -> bool:
    """Waits until the server has closed; what comes before is thrown away."""
    try:
        while await stream.receive_some(65536):
            pass
    except trio.BrokenResourceError:
        return True
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that a server does in its own time; the surrounding deadline is the limit."""
    while not condition():
        await trio.sleep(0.005)


def post(body: bytes, *headers: str, path: str = "/pipeline/run-async") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers]).encode() + b"\r\n\r\n"


class Rejected(Exception):
    """The handshake was answered with something else than 101."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


class Closed(Exception):
    """The server has closed the WebSocket."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class Socket:
    """The client's side of a WebSocket, without a task of its own: it reads only while somebody asks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._frames = WebSocketConnection(ConnectionType.CLIENT)

    async def send(self, data: str | bytes) -> None:
        message = TextMessage(data=data) if isinstance(data, str) else BytesMessage(data=data)
        await self.send_event(message)

    async def send_event(self, event: Event) -> None:
        await self.stream.send_all(self._frames.send(event))

    async def receive(self) -> str:
        """The next message. Raises `Closed`."""
        text = ""
        while True:
            for event in self._frames.events():
                if isinstance(event, TextMessage):
                    text += event.data
                    if event.message_finished:
                        return text
                elif isinstance(event, Ping):
                    await self.send_event(event.response())
                elif isinstance(event, CloseConnection):
                    with contextlib.suppress(LocalProtocolError, trio.BrokenResourceError):
                        await self.send_event(event.response())
                    raise Closed(event.code)
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                raise Closed(None) from None
            if not data:
                raise Closed(None)
            self._frames.receive_data(data)

    async def close_code(self) -> int | None:
        """Waits for the end, whatever comes before."""
        while True:
            try:
                await self.receive()
            except Closed as closed:
                return closed.code


UPGRADE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: WebSocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
)


@asynccontextmanager
async def websocket(edge: Edge, path: str, *headers: str) -> AsyncIterator[Socket]:
    """Opens a WebSocket. Raises `Rejected`."""
    async with await edge.connect() as stream:
        await stream.send_all(get(path, *UPGRADE, *headers))
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some(1)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise Rejected(await _rest(stream, head))
        yield Socket(stream)


async def _rest(stream: trio.SocketStream, head: bytes) -> Answer:
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(head)
    response = parser.next_event()
    assert isinstance(response, h11.Response)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    body = b""
    while len(body) < int(headers["content-length"]):
        body += await stream.receive_some(65536)
    return Answer(response.status_code, headers, body)
