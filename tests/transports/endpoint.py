"""The other side of webhooks, played by the test: a server on a real socket that answers as it is told."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h11
import trio
from attrs import define, field, frozen


@frozen
class Heard:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Heard, trio.abc.Stream], Awaitable[bytes | None]]
"""Bytes to send as they are; None: the connection is closed without a word."""


def response(status: int, body: bytes = b"", **headers: str) -> bytes:
    """An answer as bytes."""
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@define(eq=False)
class Endpoint:
    """Listens until its nursery is cancelled.

    Attributes:
        answer: what to say to each request.
        heard: all requests, whole.
        connection_count: connections that were accepted.
    """

    answer: Answer
    port: int = 0
    heard: list[Heard] = field(factory=list)
    connection_count: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connection_count += 1
        parser = h11.Connection(h11.SERVER)
        async with stream:
            while True:
                try:
                    heard = await _request(parser, stream)
                except (trio.BrokenResourceError, h11.RemoteProtocolError):
                    return
                if heard is None:
                    return
                self.heard.append(heard)
                said = await self.answer(heard, stream)
                if said is None:
                    return
                try:
                    await stream.send_all(said)
                except trio.BrokenResourceError:
                    return
                parser = h11.Connection(h11.SERVER)


async def _request(parser: h11.Connection, stream: trio.abc.Stream) -> Heard | None:
    head: h11.Request | None = None
    body = b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = await stream.receive_some(65536)
            if not data and head is None:
                return None
            parser.receive_data(bytes(data))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Heard(head.method.decode(), head.target.decode(), headers, body)
        else:
            return None


def always(status: int, body: bytes = b"", **headers: str) -> Answer:
    """The same answer to everything."""

    async def answer(_heard: Heard, _stream: trio.abc.Stream) -> bytes:
        return response(status, body, **headers)

    return answer


@asynccontextmanager
async def listening(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """An endpoint on 127.0.0.1 for as long as the block lasts."""
    endpoint = Endpoint(answer)

    async def handle(stream: trio.SocketStream) -> None:
        if tls is None:
            await endpoint.serve(stream)
            return
        secured = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError:
            return
        await endpoint.serve(secured)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        endpoint.port = listeners[0].socket.getsockname()[1]
        yield endpoint
        nursery.cancel_scope.cancel("the test is over")
