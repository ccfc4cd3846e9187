"""Sends webhook requests over HTTP/1.1 and says what became of each.

No redirects, no cookies, no proxies from the environment; connections only where `CheckedNetwork` allows them. What the
other side says besides its status and Retry-After is read only as far as it takes to use the connection again.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import httpcore
import trio
from attrs import define, field

from tpfd.clock import Clock
from tpfd.transports.checked_network import CheckedNetwork, Refused, Unreachable
from tpfd.transports.webhook_message import WebhookMessage
from tpfd.transports.webhook_replies import Never, NotNow, Reply, judge
from tpfd.transports.webhook_target import WebhookTarget

MAX_BODY_BYTES = 64 * 1024
BODY_S = 1.0
"""Time to read the rest of an answer; the connection is closed when it takes longer."""
KEEP_ALIVE_S = 15.0

Origin = tuple[str, str, int]


@define(eq=False, kw_only=True)
class WebhookHttp:
    """The connections of all webhook steps of a process. Use as an async context manager.

    There are as many as requests are on their way at once, which the steps bound. httpcore's own pool looks at all
    connections, pair by pair, for each request: with 64 of them that took more time than everything else.

    Attributes:
        tls: for https; None: no target needs it.
    """

    network: CheckedNetwork
    clock: Clock
    tls: ssl.SSLContext | None = None
    _idle: dict[Origin, list[httpcore.AsyncHTTPConnection]] = field(factory=dict, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):  # closing is no waiting
            for connections in self._idle.values():
                while connections:
                    await connections.pop().aclose()

    async def send(self, message: WebhookMessage) -> Reply:
        """Sends one request within the target's timeout.

        **Cancellation**: whether the other side has it is not known then; it is sent again when its lease is over.
        """
        target = message.target
        status: int | None = None
        retry_after: str | None = None
        with trio.move_on_after(target.timeout_ms / 1000):
            try:
                async with self._connection(target) as connection, _exchange(connection, message) as response:
                    status, retry_after = response.status, _header(response, b"retry-after")
                    await _pass_over(response)
            except Refused as refused:
                return Never(refused.message)
            except Unreachable as unreachable:
                return NotNow(unreachable.message)
            except httpcore.LocalProtocolError as error:
                return Never(f"the request to {target.authority} cannot be written: {error}")
            except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
                # Behind the status, the rest of the answer does not matter.
                if status is None:
                    what = "did not speak HTTP" if isinstance(error, httpcore.RemoteProtocolError) else "hung up"
                    return NotNow(f"{target.authority} {what} before it answered")
        if status is None:
            return NotNow(f"{target.authority} did not answer within {target.timeout_ms} ms")
        return judge(target.authority, status, retry_after, self.clock.now_ms())

    @asynccontextmanager
    async def _connection(self, target: WebhookTarget) -> AsyncIterator[httpcore.AsyncHTTPConnection]:
        """A connection for one request: the one that was used last, or a new one."""
        idle = self._idle.setdefault((target.scheme, target.host, target.port), [])
        connection = await _usable(idle) or httpcore.AsyncHTTPConnection(
            origin=httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port),
            ssl_context=self.tls,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=self.network,
        )
        try:
            yield connection
        finally:
            if connection.is_available():
                idle.append(connection)
            else:
                with trio.CancelScope(shield=True):  # closing is no waiting
                    await connection.aclose()


async def _usable(idle: list[httpcore.AsyncHTTPConnection]) -> httpcore.AsyncHTTPConnection | None:
    """Takes the last one that neither side has given up; closes those that are passed over."""
    while idle:
        connection = idle.pop()
        if not connection.has_expired():
            return connection
        await connection.aclose()
    return None


@asynccontextmanager
async def _exchange(
    connection: httpcore.AsyncHTTPConnection, message: WebhookMessage
) -> AsyncIterator[httpcore.Response]:
    target = message.target
    url = httpcore.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
    )
    headers = [(name.encode(), value.encode()) for name, value in message.headers]
    headers.append((b"content-length", str(len(message.body)).encode()))
    async with connection.stream(target.method, url, headers=headers, content=_Body(message.body)) as response:
        yield response


def _header(response: httpcore.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), None)


async def _pass_over(response: httpcore.Response) -> None:
    """Reads the body if it is small and there; else the connection is not used again."""
    size = 0
    with trio.move_on_after(BODY_S) as scope:
        async for part in response.aiter_stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                # No break: it would leave httpcore's generators unfinished. The cancel ends them where they wait.
                scope.cancel("that is enough of it")


class _Body:
    """A request body in one piece. No generator, which httpcore would leave unfinished when the connection breaks."""

    def __init__(self, data: bytes) -> None:
        self._parts = iter((data,))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration
