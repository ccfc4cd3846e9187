"""One WebSocket to the daemon: connect, talk, and close it whatever happens.

trio-websocket's own ``open_websocket_url`` leaves the TCP connection to the garbage collector when the peer closes
first. A client that outlives many daemons cannot afford that, so the stream is opened and closed here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from ssl import create_default_context
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import orjson
import trio
from attrs import field, frozen
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream

from tpfd.client.errors import ProblemDetail, ServerRefused, Unreachable, first_of
from tpfd.errors import TpfdError

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
FAREWELL_S = 0.1
RECEIVE_BYTES = 64 * 1024
FRAMES_WAITING = 2
MAX_FRAME_BYTES = 32 * 2**20
BACKOFF_FIRST_S = 0.1
BACKOFF_CAP_S = 2.0
WORTH_REPEATING = frozenset({408, 425, 429})
"""Statuses below 500 that say "later" and not "no"."""


class NotConnected(Unreachable):
    """There is no connection now; there may be one later."""

    code = "not_connected"


@frozen
class Address:
    """Where and as whom to connect.

    Attributes:
        url: the daemon's base address, http or https.
        path: path below it.
        query: query parameters.
        tenant: tenant id, None is the daemon's default tenant.
        token: bearer token, None sends none.
    """

    url: str
    path: str
    query: Mapping[str, str] = field(factory=dict)
    tenant: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def resource(self) -> str:
        """What the handshake asks for."""
        query = f"?{urlencode(self.query)}" if self.query else ""
        return urlsplit(self.url).path.rstrip("/") + self.path + query

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the handshake."""
        headers = []
        if self.tenant is not None:
            headers.append((b"x-tenant-id", self.tenant.encode()))
        if self.token is not None:
            headers.append((b"authorization", f"Bearer {self.token}".encode()))
        return headers


async def converse(address: Address, talk: Callable[[WebSocketConnection], Awaitable[T]]) -> T:
    """Connects, talks, and closes.

    Args:
        address: where to connect.
        talk: the conversation; it sees ``ConnectionClosed`` when the connection is lost, and must handle it.

    Returns:
        What ``talk`` returned.

    Raises:
        NotConnected: there is no daemon, or it cannot serve us now.
        ServerRefused: the daemon refused the handshake, and would refuse it again.
        TpfdError: what ``talk`` raised.

    **Cancellation**: says good-bye to the daemon, for at most `FAREWELL_S`.
    """
    said: list[T] = []
    failure: TpfdError | None = None
    stream = await _open_stream(address)
    try:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                socket = await wrap_client_stream(
                    nursery,
                    stream,
                    urlsplit(address.url).netloc,
                    address.resource,
                    extra_headers=address.headers,
                    message_queue_size=FRAMES_WAITING,
                    max_message_size=MAX_FRAME_BYTES,
                    receive_buffer_size=RECEIVE_BYTES,
                )
            try:
                said.append(await talk(socket))
            finally:
                # When we are cancelled, so is the task that would read the daemon's answer to our good-bye.
                cancelled = trio.current_effective_deadline() == -math.inf
                with trio.move_on_after(FAREWELL_S if cancelled else CLOSE_TIMEOUT_S, shield=True):
                    await socket.aclose()
            nursery.cancel_scope.cancel(reason="the conversation is over")
    except* ConnectionRejected as group:
        failure = _refused(first_of(group))
    except* trio.TooSlowError:
        failure = NotConnected(f"{address.url} did not answer the handshake within {CONNECT_TIMEOUT_S:.0f} s")
    except* TpfdError as group:
        failure = first_of(group)
    finally:
        await trio.aclose_forcefully(stream)
    if failure is not None:
        raise failure
    return said[0]


def why_closed(closed: ConnectionClosed) -> str:
    """The end of a connection in words."""
    reason = closed.reason
    if reason is None:
        return "the connection was cut off"
    return f"the daemon closed the connection ({reason.code} {reason.reason or reason.name})"


def backoff_s(attempt: int, jitter: float) -> float:
    """Seconds until the next try to connect.

    Args:
        attempt: tries so far without hearing anything, from 1.
        jitter: in [0, 1): spreads clients that lost the same daemon.
    """
    ceiling = BACKOFF_CAP_S if attempt > 10 else min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2 ** (attempt - 1))
    return ceiling * (0.5 + jitter / 2)


async def _open_stream(address: Address) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    parts = urlsplit(address.url)
    if parts.scheme not in {"http", "https"} or parts.hostname is None:
        raise Unreachable(f"{address.url!r} is not an address like http://127.0.0.1:8081")
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            if parts.scheme == "http":
                return await trio.open_tcp_stream(parts.hostname, parts.port or 80)
            return await trio.open_ssl_over_tcp_stream(
                parts.hostname, parts.port or 443, ssl_context=create_default_context(), https_compatible=True
            )
    except trio.TooSlowError as error:
        raise NotConnected(f"{address.url} did not answer within {CONNECT_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise NotConnected(f"cannot reach {address.url}: {error}") from error


def _refused(rejected: ConnectionRejected) -> TpfdError:
    status = rejected.status_code
    if status >= 500 or status in WORTH_REPEATING:
        return NotConnected(f"the daemon answered the handshake with {status}")
    try:
        body = orjson.loads(rejected.body or b"null")
    except orjson.JSONDecodeError:
        body = None  # not one of the daemon's own answers: the status is all there is to say
    return ServerRefused(ProblemDetail.from_json(status, body, reason="the daemon refused the WebSocket"))
