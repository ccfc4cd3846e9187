"""A daemon's interaction stream, played by the test: it sends what the test says and keeps what it hears."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import trio
from attrs import define, field
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, WebSocketServer, serve_websocket

Message = dict[str, Any]


@define
class Peer:
    """One attached provider, seen from the daemon."""

    socket: WebSocketConnection
    headers: dict[str, str]
    subscription: Message
    heard: list[Message] = field(factory=list)

    async def ask(self, *messages: Message, single: bool = False) -> None:
        """Sends requests: as one array, or as one object per frame."""
        frames = list(messages) if single else [list(messages)]
        for frame in frames:
            await self.socket.send_message(orjson.dumps(frame).decode())

    async def hear(self, count: int) -> list[Message]:
        """Reads frames until ``count`` messages more have come; returns them."""
        start = len(self.heard)
        with trio.fail_after(20):
            while len(self.heard) - start < count:
                frame = orjson.loads(await self.socket.get_message())
                self.heard += frame if isinstance(frame, list) else [frame]
        return self.heard[start:]

    async def acknowledge(self, *interaction_ids: str, duplicate: bool = False) -> None:
        """Says that answers were admitted."""
        await self.ask(
            *({"type": "completed", "interactionId": one, "duplicate": duplicate} for one in interaction_ids)
        )


Script = Callable[[Peer], Awaitable[None]]


@define
class Stream:
    """The listening double: each connection runs the next script, the last one again and again."""

    scripts: list[Script]
    server: WebSocketServer | None = None
    connection_count: int = 0

    @property
    def port(self) -> int:
        assert self.server is not None
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def attend(self, request: WebSocketRequest) -> None:
        script = self.scripts[min(self.connection_count, len(self.scripts) - 1)]
        self.connection_count += 1
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        socket = await request.accept()
        try:
            subscription = orjson.loads(await socket.get_message())
            await script(Peer(socket, headers | {":path": request.path}, subscription))
        except ConnectionClosed:
            pass  # the provider has left: its side of the test says whether that was right


@asynccontextmanager
async def listening(*scripts: Script, port: int = 0) -> AsyncIterator[Stream]:
    """A stream on a port of its own, or on the one that is asked for."""
    stream = Stream(list(scripts))
    async with trio.open_nursery() as nursery:
        stream.server = await nursery.start(serve_websocket, stream.attend, "127.0.0.1", port, None)
        yield stream
        nursery.cancel_scope.cancel(reason="the test is over")


def request_message(number: int, **over: Any) -> Message:
    """A request for payment number ``number``."""
    return {
        "type": "request",
        "tenantId": "default",
        "executionId": "e-1",
        "interactionId": f"e-1.1.{number:07d}",
        "correlationId": f"c-{number}",
        "stepId": "await-payment-provider",
        "deadlineEpochMs": 4_000_000_000_000,
        "inputType": "PaymentRecord",
        "outputType": "PaymentStatus",
        "resumeToken": f"token-{number}",
        "requestPayload": {
            "id": f"0b6e2f0a-5d0e-5b6b-8a5e-{number:012d}",
            "csvId": str(number),
            "recipient": f"Recipient {number}",
            "amount": "38.07",
            "currency": "EUR",
            "csvPaymentsInputFilePath": "/in/payments.csv",
        },
        "transportMetadata": {},
        **over,
    }
