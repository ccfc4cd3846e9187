"""What every WebSocket to the daemon has in common: its address, its headers, a refused handshake, trying again."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit, urlunsplit

import orjson
from trio_websocket import ConnectionClosed, ConnectionRejected

from tpfd.client.errors import ProblemDetail, ServerRefused

CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
MAX_FRAME_BYTES = 32 * 2**20
BACKOFF_FIRST_S = 0.1
BACKOFF_CAP_S = 2.0
WORTH_REPEATING = frozenset({408, 425, 429})
"""Statuses below 500 that say "later" and not "no"."""


def socket_url(url: str, path: str, query: Mapping[str, str] | None = None) -> str:
    """The ws or wss address of a path below the daemon's base address."""
    parts = urlsplit(url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + path, urlencode(query or {}), ""))


def socket_headers(tenant: str | None, token: str | None) -> list[tuple[bytes, bytes]]:
    """Headers of the handshake."""
    headers = []
    if tenant is not None:
        headers.append((b"x-tenant-id", tenant.encode()))
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    return headers


def is_final(rejected: ConnectionRejected) -> bool:
    """Whether a refused handshake will be refused again: a wrong token, an unknown path."""
    return 400 <= rejected.status_code < 500 and rejected.status_code not in WORTH_REPEATING


def handshake_refused(rejected: ConnectionRejected) -> ServerRefused:
    """The typed error for a handshake that the daemon refused."""
    try:
        body = orjson.loads(rejected.body or b"null")
    except orjson.JSONDecodeError:
        body = None
    problem = ProblemDetail.from_json(rejected.status_code, body, reason="the daemon refused the WebSocket")
    return ServerRefused(problem)


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
