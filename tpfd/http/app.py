"""The application behind the connections: route, authorise, read the body, call the handler, map errors."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

import orjson
import trio

from tpfd.errors import TpfdError
from tpfd.http import (
    routes_control_plane,
    routes_executions,
    routes_interactions,
    routes_operations,
    routes_service,
)
from tpfd.http.auth import Access, Caller
from tpfd.http.bodies import require_json
from tpfd.http.connection import SocketSession
from tpfd.http.guard import outcome
from tpfd.http.messages import Request, Response
from tpfd.http.problems import RequestRefused, error_message, problem_response, status_of
from tpfd.http.routing import Call, Edge, Route, RouteTable, SocketHandler
from tpfd.http.websocket import (
    INTERNAL_ERROR,
    NORMAL,
    POLICY_VIOLATION,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    FrameRefused,
    WebSocket,
)

ROUTES: tuple[Route, ...] = (
    *routes_executions.ROUTES,
    *routes_interactions.ROUTES,
    *routes_control_plane.ROUTES,
    *routes_operations.ROUTES,
    *routes_service.ROUTES,
)
_NOBODY = Caller("nobody", frozenset(), None)


class App:
    """Answers every request of every connection."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._table = RouteTable(ROUTES)

    async def respond(self, request: Request) -> Response:
        """The answer to a request; errors are answers too."""
        template = "unknown"
        try:
            route, params = self._table.find(request.method, request.path)
            template = route.template
            call = self._call(route, params, request)
            if route.handler is None:
                raise RequestRefused(
                    426, "websocket_only", "this path speaks WebSocket", headers=(("upgrade", "websocket"),)
                )
            if request.has_body:
                require_json(request)
                call.body = await request.read_body()
        except TpfdError as refused:
            response = problem_response(refused)
        else:
            response = await self._carry_out(route.handler(call), f"{request.method} {template}")
        self._edge.metrics.http_answers.add(template, str(response.status))
        return response

    async def _carry_out(self, work: Awaitable[Response], what: str) -> Response:
        answer: Response | TpfdError = RequestRefused(
            503,
            "request_timeout",
            "not finished in time; whether it was carried out is not known: ask again with the same key",
            headers=(("retry-after", "1"),),
        )
        with trio.move_on_after(self._edge.settings.request_timeout_s):
            answer = await outcome(work, what)
        return answer if isinstance(answer, Response) else problem_response(answer)

    def open_socket(self, request: Request) -> SocketSession | Response:
        """What to run on the WebSocket that a request asks for, or why it is refused."""
        try:
            route, params = self._table.find(request.method, request.path)
            call = self._call(route, params, request)
            if route.socket is None:
                raise RequestRefused(400, "no_websocket", "this path does not speak WebSocket")
        except TpfdError as refused:
            return problem_response(refused)
        return partial(self._run_socket, route, route.socket, call)

    async def _run_socket(self, route: Route, handler: SocketHandler, call: Call, socket: WebSocket) -> None:
        drain, sockets = self._edge.drain, self._edge.metrics.sockets
        ended: TpfdError | int | None = SERVICE_RESTART
        scope = trio.CancelScope()
        drain.cuts(scope)
        sockets.move(1, route.template)
        try:
            with scope:
                ended = await outcome(handler(call, socket), f"WebSocket {route.template}")
        finally:
            drain.spares(scope)
            sockets.move(-1, route.template)
        if isinstance(ended, TpfdError):
            last_words = orjson.dumps(error_message(ended)).decode()
            await socket.close(_close_code(ended), ended.code, last_words=last_words)
        elif ended is None:
            await socket.close(NORMAL)
        else:
            await socket.close(ended, "the daemon restarts")

    def _call(self, route: Route, params: dict[str, str], request: Request) -> Call:
        authority = self._edge.authority
        if route.access is Access.PUBLIC:
            caller = _NOBODY
        else:
            caller = authority.caller(request)
            authority.require(caller, route.access)
        return Call(edge=self._edge, request=request, params=params, query=request.query(), caller=caller)


def _close_code(error: TpfdError) -> int:
    if isinstance(error, FrameRefused):
        return error.close_code
    match status_of(error):
        case 500:
            return INTERNAL_ERROR
        case 503:
            return TRY_AGAIN_LATER
        case _:
            return POLICY_VIOLATION
