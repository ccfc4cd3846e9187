"""The route table: which handler answers which method and path, and what it asks of its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import unquote

from attrs import define, field, frozen

from tpfd.core.records import TenantId
from tpfd.errors import NotFound
from tpfd.http.auth import Access, Authority, Caller
from tpfd.http.drain import Drain
from tpfd.http.messages import Query, Request, Response
from tpfd.http.problems import RequestRefused
from tpfd.http.service import Service
from tpfd.http.settings import HttpSettings
from tpfd.http.websocket import WebSocket
from tpfd.metrics import Metrics


@frozen(eq=False)
class Edge:
    """What every handler may use."""

    service: Service
    settings: HttpSettings
    authority: Authority
    drain: Drain
    metrics: Metrics
    openapi: bytes  # the OpenAPI document


@define(eq=False)
class Call:
    """One request on its way through a handler.

    Attributes:
        params: path parameters, decoded.
        body: the whole body; empty when there was none.
    """

    edge: Edge
    request: Request
    params: Mapping[str, str]
    query: Query
    caller: Caller
    body: bytes = b""

    @property
    def service(self) -> Service:
        return self.edge.service

    @property
    def tenant(self) -> TenantId:
        """The tenant to act for, from path, header and token. Raises as `Authority.tenant`."""
        return self.tenant_with(None)

    def tenant_with(self, named: str | None) -> TenantId:
        """As `tenant`, where the body or a message may name it too."""
        return self.edge.authority.tenant(
            self.caller, self.params.get("tenant"), self.request.header("x-tenant-id"), named
        )


Handler = Callable[[Call], Awaitable[Response]]
SocketHandler = Callable[[Call, WebSocket], Awaitable[None]]


@frozen(kw_only=True)
class Operation:
    """What the OpenAPI document says about a route.

    Attributes:
        query: query parameter to its description.
        body: name of the request's schema; None: it takes no body.
        answers: status to (description, name of the schema or None). Problems are added by themselves.
    """

    summary: str
    query: Mapping[str, str] = field(factory=dict)
    body: str | None = None
    answers: Mapping[int, tuple[str, str | None]]


@frozen(kw_only=True)
class Route:
    """One method of one path. Exactly one of `handler` and `socket` is set.

    Attributes:
        template: path with ``{name}`` where a whole segment is a parameter.
        socket: the route speaks WebSocket.
    """

    method: str
    template: str
    access: Access
    operation: Operation
    handler: Handler | None = None
    socket: SocketHandler | None = None


class RouteTable:
    """Finds the route of a request: a fixed path by one look-up, others by their segments."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._fixed: dict[str, dict[str, Route]] = {}
        self._patterns: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        for route in self.routes:
            if "{" in route.template:
                segments = tuple(route.template.split("/"))
                methods = self._patterns.setdefault(len(segments), {}).setdefault(segments, {})
            else:
                methods = self._fixed.setdefault(route.template, {})
            if route.method in methods:
                raise ValueError(f"two routes for {route.method} {route.template}")
            methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and its path parameters.

        Args:
            method: HTTP method; HEAD finds GET.
            path: still percent-encoded.

        Raises:
            NotFound: no such path.
            RequestRefused: 405 with ``Allow``.
        """
        methods = self._fixed.get(path)
        params: dict[str, str] = {}
        if methods is None:
            methods, params = self._match(path)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
            raise RequestRefused(
                405, "method_not_allowed", f"{path} takes {allowed}", headers=(("allow", allowed),)
            )
        return route, params

    def _match(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        segments = path.split("/")
        for pattern, methods in self._patterns.get(len(segments), {}).items():
            if all(want == have or want[:1] == "{" for want, have in zip(pattern, segments, strict=True)):
                return methods, {
                    want[1:-1]: _decoded(have) for want, have in zip(pattern, segments, strict=True) if want[:1] == "{"
                }
        raise NotFound("there is nothing at this path", code="no_such_path")


def _decoded(segment: str) -> str:
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        raise NotFound("there is nothing at this path", code="no_such_path")
    return text
