"""How the edge is set up. The daemon fills this from the configuration."""

from __future__ import annotations

from pathlib import Path

from attrs import field, frozen

from tpfd.http.auth import Token


@frozen
class TlsFiles:
    """PEM files of the certificate chain and its unencrypted key."""

    cert: Path
    key: Path


@frozen(kw_only=True)
class HttpSettings:
    """Addresses, limits and credentials of the edge.

    What one client can make the daemon hold: `max_connections` connections, each with one buffered body or WebSocket
    message of at most `max_body_bytes`; a body is read only after the request has been authorised.
    """

    host: str = "127.0.0.1"
    port: int = 8081  # 0: any free one, see what `serve` reports as started
    max_body_bytes: int = 17 * 1024 * 1024  # of a request and of a WebSocket message
    request_timeout_ms: int = 30_000  # to send a whole request; to work on it; to take its answer
    header_timeout_ms: int = 10_000  # to send a request's head; to shake hands for TLS
    max_connections: int = 1024
    max_sockets_per_client: int = 64  # WebSockets of one client address
    drain_grace_ms: int = 3_000  # what is being answered when the drain begins may take so long
    tls: TlsFiles | None = None  # None: plain
    tokens: tuple[Token, ...] = field(default=(), repr=False)  # empty: open, for loopback only
    default_tenant: str = "default"
    tenant_required: bool = False  # a request without x-tenant-id is refused

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    @property
    def header_timeout_s(self) -> float:
        return self.header_timeout_ms / 1000

    @property
    def max_wait_ms(self) -> int:
        """The longest that a long poll is held: it leaves a third of the request's time for the rest."""
        return self.request_timeout_ms * 2 // 3
