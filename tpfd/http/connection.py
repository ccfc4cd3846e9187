"""One client connection: reads requests, sends answers, switches to WebSocket.

The bytes are parsed by h11 (strict: contradicting lengths, odd line ends and the like are refused) and moved by plain
Trio streams, so that every wait here is an ordinary cancellable wait under a deadline. What a client may cost:

* its request's head: `MAX_HEAD_BYTES` and a read, within the header timeout, counted from its first byte,
* its body: the size limit, checked against Content-Length before anything is read and again while reading, within the
  request timeout, counted from the same moment however slowly it trickles,
* our answer: as long again for taking it,
* between two requests: nothing but the connection, for `KEEP_ALIVE_S`.

A client that disconnects while its request is carried out is noticed when the answer is sent: the work is not undone,
just as it is not when the answer is lost on its way.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Protocol

import h11
import trio
from wsproto.utilities import generate_accept_token

from tpfd.errors import MalformedError, TooLarge, TpfdError
from tpfd.http.drain import Drain
from tpfd.http.messages import Request, Response
from tpfd.http.problems import RequestRefused, problem_response
from tpfd.http.settings import HttpSettings
from tpfd.http.websocket import READ_BYTES, WebSocket

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
KEEP_ALIVE_S = 75.0
LINGER_S = 2.0


@functools.lru_cache(maxsize=1)
def _date(epoch_s: int) -> str:
    """The Date header of all answers of a second."""
    return formatdate(epoch_s, usegmt=True)


SocketSession = Callable[[WebSocket], Awaitable[None]]


class Application(Protocol):
    """What answers the requests of a connection."""

    async def respond(self, request: Request) -> Response:
        """Never raises but `ClientGone`."""

    def open_socket(self, request: Request) -> SocketSession | Response:
        """What to run on the WebSocket that the request asks for, or why it is refused."""


class ClientGone(Exception):
    """The connection cannot be used any more; there is nobody to tell."""


class Connection:
    """Serves one accepted connection until either side ends it. The caller closes the stream.

    Args:
        stream: the connection; TLS hands are shaken.
        peer: the client's address.
        app: what answers.
        settings: limits and times.
        drain: ends what only waits.
        sockets: open WebSockets by client address, shared by all connections.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        peer: str,
        app: Application,
        settings: HttpSettings,
        drain: Drain,
        sockets: Counter[str],
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._app = app
        self._settings = settings
        self._drain = drain
        self._sockets = sockets
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request_deadline = 0.0

    async def run(self) -> None:
        """Returns when the connection is finished."""
        try:
            first_byte_within_s = self._settings.header_timeout_s
            while await self._exchange(first_byte_within_s):
                self._http.start_next_cycle()
                first_byte_within_s = KEEP_ALIVE_S
        except ClientGone:
            return

    async def refuse(self, refusal: RequestRefused) -> None:
        """Answers without having read anything, and is finished."""
        with contextlib.suppress(ClientGone):
            await self._send(problem_response(refusal), last=True)

    async def _exchange(self, first_byte_within_s: float) -> bool:
        """One request and its answer; whether another one may follow."""
        try:
            head = await self._read_head(first_byte_within_s)
            if head is None:
                return False
            request = self._request(head)
        except RequestRefused as refused:
            return await self._send(problem_response(refused), last=True)
        if _wants_websocket(request):
            return await self._upgrade(request)
        response = await self._app.respond(request)
        return await self._send(response, head_only=request.method == "HEAD")

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read_head(self, first_byte_within_s: float) -> h11.Request | None:
        """The next request's head; None when the connection ends before one begins."""
        began = bool(self._http.trailing_data[0])
        now = trio.current_time()
        scope = trio.CancelScope(deadline=now + (self._settings.header_timeout_s if began else first_byte_within_s))
        self._request_deadline = now + self._settings.request_timeout_s
        if not began:
            self._drain.cuts(scope)
        try:
            with scope:
                while (event := self._next_event()) is h11.NEED_DATA:
                    data = await self._receive()
                    if not began and data:
                        began = True
                        self._drain.spares(scope)
                        now = trio.current_time()
                        scope.deadline = min(scope.deadline, now + self._settings.header_timeout_s)
                        self._request_deadline = now + self._settings.request_timeout_s
                    self._http.receive_data(data)
                return event if isinstance(event, h11.Request) else None
        finally:
            self._drain.spares(scope)
        if began:
            raise RequestRefused(408, "request_too_slow", "the head of the request did not arrive in time")
        return None

    async def _read_body(self) -> bytes:
        limit = self._settings.max_body_bytes
        chunks: list[bytes] = []
        size = 0
        while True:
            event = self._next_event()
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                await self._receive_body_part()
            else:
                return b"".join(chunks)

    async def _receive_body_part(self) -> None:
        with trio.CancelScope(deadline=self._request_deadline):
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            data = await self._receive()
            if not data:
                raise ClientGone
            self._http.receive_data(data)
            return
        raise RequestRefused(408, "request_too_slow", "the body of the request did not arrive in time")

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            raise RequestRefused(status, "bad_request", f"not HTTP/1.1 as it should be: {error}") from error

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ClientGone from error

    def _request(self, head: h11.Request) -> Request:
        if len(head.headers) > MAX_HEADERS:
            raise RequestRefused(431, "too_many_headers", f"a request has at most {MAX_HEADERS} headers")
        if head.http_version not in {b"1.1", b"1.0"}:
            raise RequestRefused(505, "http_version", "only HTTP/1.1 is spoken here")
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = value if name not in headers else f"{headers[name]}, {value}"
        path, _, query = head.target.decode("latin-1").partition("?")
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers and "content-length" in headers:
            # Whoever stands between might have taken the other one and see another request in the body.
            raise RequestRefused(400, "two_lengths", "Content-Length and Transfer-Encoding exclude each other")
        return Request(
            method=head.method.decode("latin-1"),
            path=path,
            query_string=query,
            headers=headers,
            peer=self._peer,
            read_body=self._body_reader(length),
            has_body=length != "0" or "transfer-encoding" in headers,
        )

    def _body_reader(self, content_length: str) -> Callable[[], Awaitable[bytes]]:
        if int(content_length) <= self._settings.max_body_bytes:  # h11 has seen to it that it is a number
            return self._read_body

        async def refuse() -> bytes:
            raise _too_large(self._settings.max_body_bytes)

        return refuse

    # --- answering --------------------------------------------------------------------------------------------------

    async def _send(self, response: Response, *, head_only: bool = False, last: bool = False) -> bool:
        """Sends an answer; whether another request may follow on this connection.

        Args:
            response: the answer.
            head_only: the request was a HEAD.
            last: what the client sends cannot be trusted to begin another request.
        """
        self._skip_what_is_here()
        whole = self._http.their_state not in {h11.IDLE, h11.SEND_BODY, h11.ERROR}
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            ("date", _date(int(time()))),
            *response.headers,
        ]
        if last or not whole or self._drain.begun:
            headers.append(("connection", "close"))
        reason = HTTPStatus(response.status).phrase
        parts = [self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""]
        if response.body and not head_only:
            parts.append(self._http.send(h11.Data(data=response.body)) or b"")
        parts.append(self._http.send(h11.EndOfMessage()) or b"")
        await self._write(b"".join(parts))
        if not whole:
            await self._linger()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _write(self, data: bytes) -> None:
        with trio.move_on_after(self._settings.request_timeout_s):
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ClientGone from error
            return
        raise ClientGone

    def _skip_what_is_here(self) -> None:
        """Passes over a body that nobody wanted, as far as it has arrived, so that the connection can be kept."""
        while self._http.their_state is h11.SEND_BODY:
            try:
                if self._http.next_event() is h11.NEED_DATA:
                    return
            except h11.RemoteProtocolError:
                return

    async def _linger(self) -> None:
        """Lets a client that is still sending read our answer: closing now would reset the connection under it."""
        with trio.move_on_after(LINGER_S):
            try:
                if isinstance(self._stream, trio.SocketStream):
                    await self._stream.send_eof()
                while await self._stream.receive_some(READ_BYTES):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    # --- WebSocket --------------------------------------------------------------------------------------------------

    async def _upgrade(self, request: Request) -> bool:
        try:
            key = await self._websocket_key(request)
        except TpfdError as refused:
            return await self._send(problem_response(refused))
        if self._sockets[self._peer] >= self._settings.max_sockets_per_client:
            message = f"{self._peer} has {self._settings.max_sockets_per_client} WebSockets open already"
            refusal = RequestRefused(429, "too_many_sockets", message, headers=(("retry-after", "10"),))
            return await self._send(problem_response(refusal))
        session = self._app.open_socket(request)
        if isinstance(session, Response):
            return await self._send(session)
        headers = [
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-accept", generate_accept_token(key).decode("ascii")),
        ]
        switch = h11.InformationalResponse(status_code=101, headers=headers, reason="Switching Protocols")
        await self._write(self._http.send(switch) or b"")
        socket = WebSocket(
            self._stream,
            self._http.trailing_data[0],
            max_message_chars=self._settings.max_body_bytes,
            send_timeout_s=self._settings.request_timeout_s,
        )
        self._sockets[self._peer] += 1
        try:
            await session(socket)
        finally:
            self._sockets[self._peer] -= 1
            if not self._sockets[self._peer]:
                del self._sockets[self._peer]
        return False

    async def _websocket_key(self, request: Request) -> bytes:
        """The client's key. Source: RFC 6455, section 4.2.1."""
        if request.has_body:
            raise MalformedError("a WebSocket handshake has no body", code="bad_handshake")
        await self._read_body()
        if request.method != "GET":
            raise MalformedError("a WebSocket handshake is a GET", code="bad_handshake")
        if request.header("sec-websocket-version") != "13":
            headers = (("sec-websocket-version", "13"),)
            raise RequestRefused(426, "websocket_version", "only WebSocket version 13 is spoken", headers=headers)
        key = request.header("sec-websocket-key") or ""
        try:
            decoded = base64.b64decode(key, validate=True)
        except binascii.Error:
            decoded = b""
        if len(decoded) != 16:
            raise MalformedError("sec-websocket-key is not 16 bytes in base64", code="bad_handshake")
        return key.encode("ascii")


def _wants_websocket(request: Request) -> bool:
    return request.headers.get("upgrade", "").lower() == "websocket" and "upgrade" in {
        token.strip().lower() for token in request.headers.get("connection", "").split(",")
    }


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a request body has at most {limit} bytes")
