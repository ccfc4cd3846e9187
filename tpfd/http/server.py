"""Opens the port, takes connections, and lets them finish when the daemon drains."""

from __future__ import annotations

import errno
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import trio

from tpfd.errors import ConfigError, Problem
from tpfd.http.app import ROUTES, App
from tpfd.http.auth import Authority
from tpfd.http.connection import Connection
from tpfd.http.drain import Drain
from tpfd.http.openapi import document
from tpfd.http.problems import RequestRefused
from tpfd.http.routing import Edge
from tpfd.http.service import Service
from tpfd.http.settings import HttpSettings, TlsFiles
from tpfd.metrics import Metrics

BACKLOG = 1024
REFUSED_AT_ONCE = 64
"""Connections over the limit that are told so; more than these are just closed."""

Listeners = Sequence[trio.SocketListener | trio.SSLListener[trio.SocketStream]]


async def serve(
    service: Service,
    settings: HttpSettings,
    metrics: Metrics,
    *,
    input_schemas: Mapping[str, Mapping[str, object]],
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serves HTTP and WebSocket until it is cancelled.

    Args:
        service: what answers.
        settings: addresses, limits, credentials.
        metrics: where answers and connections are counted; also what ``/q/metrics`` shows.
        input_schemas: pipeline id to the JSON schema of its input, for the OpenAPI document.
        task_status: started with the address that is listened on, as ``host:port``.

    Raises:
        ConfigError: the address cannot be listened on, or the TLS files cannot be used.

    **Cancellation**: is the drain. Nothing is accepted any more, long polls are answered, WebSockets are closed with
    1012, and what is being carried out has `drain_grace_ms` to be answered; then connections are closed as they are.
    """
    tls = None if settings.tls is None else _tls_context(settings.tls)
    listeners = await _listen(settings.host, settings.port, tls)
    edge = Edge(
        service=service,
        settings=settings,
        authority=Authority(
            settings.tokens, settings.host, settings.default_tenant, settings.tenant_required
        ),
        drain=Drain(),
        metrics=metrics,
        openapi=document(ROUTES, input_schemas),
    )
    door = _Door(edge)
    async with trio.open_nursery() as nursery:
        try:
            connections = await nursery.start(_hold_connections, edge.drain, settings.drain_grace_ms / 1000)
            task_status.started(_address(listeners[0]))
            await trio.serve_listeners(door.admit, list(listeners), handler_nursery=connections)
        finally:
            edge.drain.begin()


async def _hold_connections(drain: Drain, grace_s: float, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Keeps a nursery for connections that outlives the cancellation of the server by the grace."""
    with trio.CancelScope(shield=True) as scope:
        async with trio.open_nursery() as connections:
            task_status.started(connections)
            await drain.wait()
            scope.deadline = trio.current_time() + grace_s


class _Door:
    """Counts who is in, and turns away who would be too many."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._app = App(edge)
        self._open_count = 0
        self._refused_count = 0
        self._sockets: Counter[str] = Counter()

    async def admit(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        """Serves one accepted connection and closes it, whatever happens."""
        try:
            if self._open_count >= self._edge.settings.max_connections:
                await self._turn_away(stream)
                return
            with self._counted():
                await self._serve(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        settings = self._edge.settings
        if isinstance(stream, trio.SSLStream):
            with trio.move_on_after(settings.header_timeout_s) as scope:
                try:
                    await stream.do_handshake()
                except trio.BrokenResourceError:
                    return
            if scope.cancelled_caught:
                return
        await self._connection(stream).run()

    async def _turn_away(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._edge.metrics.http_refused.add()
        if self._refused_count >= REFUSED_AT_ONCE or not isinstance(stream, trio.SocketStream):
            return
        self._refused_count += 1
        try:
            limit = self._edge.settings.max_connections
            await self._connection(stream).refuse(
                RequestRefused(
                    503, "too_many_connections", f"{limit} connections are open", headers=(("retry-after", "1"),)
                )
            )
        finally:
            self._refused_count -= 1

    def _connection(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> Connection:
        return Connection(
            stream, _peer(stream), self._app, self._edge.settings, self._edge.drain, self._sockets
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._open_count += 1
        self._edge.metrics.http_connections.set(self._open_count)
        try:
            yield
        finally:
            self._open_count -= 1
            self._edge.metrics.http_connections.set(self._open_count)


async def _listen(host: str, port: int, tls: ssl.SSLContext | None) -> Listeners:
    try:
        plain = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:  # also what the resolver raises
        raise ConfigError([Problem("$.http.bind", _bind_message(host, port, error))]) from error
    if tls is None:
        return plain
    return [trio.SSLListener(listener, tls, https_compatible=True) for listener in plain]


def _bind_message(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            advice = "another program listens there: stop it, or choose another port"
        case errno.EACCES | errno.EPERM:
            advice = "ports below 1024 need a privilege (CAP_NET_BIND_SERVICE): choose a higher one"
        case errno.EADDRNOTAVAIL:
            advice = "this host has no such address: choose one of its own, or 0.0.0.0 for all"
        case _:
            advice = f"{error.strerror or error}: check the address"
    return f"cannot listen on {host}:{port}: {advice}"


def _tls_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for path, name in ((files.cert, "cert"), (files.key, "key")):
        if not path.is_file():
            raise ConfigError([Problem(f"$.http.tls.{name}", f"there is no file {path}")])
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        message = f"{files.cert} and {files.key} cannot be used as certificate chain and unencrypted key (PEM): {error}"
        raise ConfigError([Problem("$.http.tls", message)]) from error
    return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


def _address(listener: trio.SocketListener | trio.SSLListener[trio.SocketStream]) -> str:
    plain = listener.transport_listener if isinstance(listener, trio.SSLListener) else listener
    assert isinstance(plain, trio.SocketListener)
    name = plain.socket.getsockname()
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def _peer(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> str:
    """The client's address."""
    try:
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        return str(transport.socket.getpeername()[0])
    except OSError:
        return "gone"  # before it was served: the first read will tell
