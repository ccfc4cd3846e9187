"""Connections for outgoing requests: what is connected to is what was checked.

A name is resolved once, here. Every address that it has must be allowed, also those that would not be tried, and the
connection goes to one of them by number: there is no second look-up that could give another answer. TLS and the Host
header still carry the name.
"""

from __future__ import annotations

import ssl
import typing
from collections.abc import Awaitable, Callable, Iterable, Sequence

import httpcore
import trio
from attrs import define

from tpfd.errors import TransportError
from tpfd.ops.logs import get_logger
from tpfd.transports.allow_list import Address, AllowList, as_address

log = get_logger("tpfd.webhook")

TRY_S = 5.0
"""Time for one of several addresses; the request's own deadline bounds them all."""

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""The addresses of a name, in the order to try them. Raises OSError when there are none."""
Connect = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Connects to an address by number. Raises OSError."""


class Unreachable(TransportError):
    """There is no connection; another time there may be."""

    code = "webhook_unreachable"


class Refused(TransportError):
    """There must not be a connection."""

    code = "webhook_refused"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


async def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses that the system's resolver knows."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    # A link-local address comes with the name of its network card; without it, it is judged by its number.
    addresses = [as_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]
    return list(dict.fromkeys(address for address in addresses if address is not None))


@define(eq=False, kw_only=True)
class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Opens connections to allowed addresses only.

    Attributes:
        allowed: may be replaced at any time; it counts from the next connection on.
    """

    allowed: AllowList
    resolve: Resolve = resolve
    connect: Connect = trio.open_tcp_stream

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - httpcore's signature; the caller's cancel scope bounds it all
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        """Connects.

        Raises:
            Refused: the host, or an address that it has, is not allowed.
            Unreachable: it has no address, or none of them takes the connection.
        """
        addresses = await self._checked(host, port)
        for address in addresses:
            with trio.move_on_after(TRY_S if len(addresses) > 1 else float("inf")):
                try:
                    return _Stream(await self.connect(str(address), port), host)
                except OSError as error:
                    log.debug("webhook_address_failed", host=host, address=str(address), port=port, message=str(error))
        raise Unreachable(f"cannot connect to {host}:{port}")

    async def _checked(self, host: str, port: int) -> Sequence[Address]:
        if not self.allowed.admits_host(host, port):
            raise Refused(f"{host}:{port} is not on the allow-list any more")
        literal = as_address(host)
        try:
            addresses = [literal] if literal is not None else await self.resolve(host, port)
        except OSError as error:
            raise Unreachable(f"cannot find the address of {host}: {error.strerror or error}") from error
        if not addresses:
            raise Unreachable(f"{host} has no address")
        for address in addresses:
            if not self.allowed.admits_address(host, address, port):
                # The log is the operator's; the message may reach callers, whom inner addresses do not concern.
                log.error("webhook_address_refused", host=host, port=port, address=str(address))
                raise Refused(
                    f"{host} has an address inside a network that must not be called; "
                    "if it is meant, add its network to await.webhook.allow"
                )
        return addresses


class _Stream(httpcore.AsyncNetworkStream):
    """A Trio stream as httpcore wants it. The caller's cancel scope is its only timeout."""

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self._stream = stream
        self._host = host

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        try:
            await self._stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        """Shakes hands.

        Raises:
            Refused: the other side's certificate, or the way it speaks TLS, is not acceptable.
            Unreachable: the connection was lost meanwhile.
        """
        secured = trio.SSLStream(
            self._stream, ssl_context, server_hostname=server_hostname or self._host, https_compatible=True
        )
        shaken = False
        try:
            await secured.do_handshake()
            shaken = True
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                reason = getattr(cause, "verify_message", "") or cause.reason or "TLS error"
                raise Refused(f"no safe connection to {self._host}: {reason}") from error
            raise Unreachable(f"{self._host} ended the connection while it was secured") from error
        finally:
            if not shaken:
                await self.aclose()
        return _Stream(secured, self._host)

    def get_extra_info(self, info: str) -> typing.Any:
        """What httpcore asks: whether TLS was agreed on, and whether an idle connection has something to read."""
        if info == "ssl_object":
            return self._stream if isinstance(self._stream, trio.SSLStream) else None
        if info == "is_readable":
            plain = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
            # An idle connection with something to read has been closed by the other side.
            return plain.socket.is_readable() if isinstance(plain, trio.SocketStream) else False
        return None
