"""The provider as a web service: asked by webhook, it says 202 at once and sends its answer later, to the callback.

What it checks is what any receiver of webhooks should: that the signature is made with the shared secret, over these
very bytes, not long ago. What it refuses is refused for good (4xx); when its desk is full it says 429, and when.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable

import httpx
import orjson
import trio
from attrs import define, field, frozen

from tpfd.core import signing
from tpfd.errors import OutsideError, TpfdError
from tpfd.examples.provider.books import Books, Tally, now_epoch_ms
from tpfd.examples.provider.decision import Answer, Manners, Request, UnknownRequest
from tpfd.examples.provider.desk import Desk
from tpfd.examples.provider.log import RequestLog
from tpfd.http import messages
from tpfd.http.bodies import require_json
from tpfd.http.connection import Connection, SocketSession
from tpfd.http.drain import Drain
from tpfd.http.messages import Response, json_response
from tpfd.http.problems import RequestRefused, problem_response
from tpfd.http.settings import HttpSettings

SKEW_MS = 120_000
"""Largest difference between the signed time and ours."""
POSTS_AT_ONCE = 32
POST_TIMEOUT_S = 30.0
LIMITS = httpx.Limits(max_connections=POSTS_AT_ONCE, max_keepalive_connections=POSTS_AT_ONCE)
FINISH_S = 10.0
"""How long what is in hand may take once the process was told to end."""


@frozen(kw_only=True)
class Service:
    """What to offer.

    Attributes:
        host: address to listen on.
        port: 0 lets the system choose.
        step: the await step that may ask, by id.
        secret: signs the requests; None takes unsigned ones, too.
        token: bearer token for the answers; None sends none.
        places: requests in hand at most.
    """

    host: str
    port: int
    step: str
    secret: bytes | None = None
    token: str | None = None
    places: int = 256


@define
class WebhookProvider:
    """Answers one step's webhooks until it is told to stop.

    Attributes:
        service: what to offer.
        manners: how to behave.
        log: where each request is noted before it is answered; None notes nothing.
        dice: decides mishaps.
        say: tells the person at the terminal.
        stopping: set it to finish what is in hand and return.
    """

    service: Service
    manners: Manners
    log: RequestLog | None
    dice: random.Random
    say: Callable[[str], None]
    stopping: trio.Event = field(factory=trio.Event)
    _books: Books = field(init=False)
    _desk: Desk = field(init=False)
    _settings: HttpSettings = field(factory=HttpSettings, init=False)
    _drain: Drain = field(factory=Drain, init=False)

    def __attrs_post_init__(self) -> None:
        self._books = Books(self.manners, self.log)
        self._desk = Desk(self.service.places, self.manners)

    @property
    def tally(self) -> Tally:
        """What happened so far."""
        return self._books.tally

    async def run(self) -> Tally:
        """Listens and answers until `stopping` is set.

        Raises:
            OutsideError: the address cannot be listened on, or the log cannot be written.
        """
        try:
            listeners = await trio.open_tcp_listeners(self.service.port, host=self.service.host)
        except OSError as error:
            where = f"{self.service.host}:{self.service.port}"
            raise OutsideError(f"cannot listen on {where}: {error.strerror or error}", retryable=False) from error
        fatal: TpfdError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, self._admit, listeners)
                nursery.start_soon(self._wind_up, nursery.cancel_scope)
                host, port, *_ = listeners[0].socket.getsockname()
                self.say(f"listening on http://{host}:{port}, for step {self.service.step}")
                await self._answer()
                nursery.cancel_scope.cancel(reason="everything in hand is answered")
        except* TpfdError as group:
            fatal = next(error for error in group.exceptions if isinstance(error, TpfdError))
        if fatal is not None:
            raise fatal
        return self.tally

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _admit(self, stream: trio.SocketStream) -> None:
        try:
            await Connection(stream, "client", self, self._settings, self._drain, Counter()).run()
        finally:
            await trio.aclose_forcefully(stream)

    def open_socket(self, request: messages.Request) -> SocketSession | Response:
        """There are no WebSockets here."""
        return problem_response(RequestRefused(404, "no_sockets", f"{request.path} speaks no WebSocket"))

    async def respond(self, request: messages.Request) -> Response:
        """Takes one request."""
        try:
            asked = await self._read(request)
        except UnknownRequest as unknown:
            return problem_response(RequestRefused(422, unknown.code, unknown.message))
        except TpfdError as error:
            return problem_response(error)
        if self._desk.closed or len(self._desk) >= self._desk.places:
            retry = (("retry-after", "1"),)
            return problem_response(RequestRefused(429, "busy", "there is no place for another one", headers=retry))
        self.tally.asked_count += 1
        mishap = self.manners.mishap(self.dice)
        await self._desk.put(asked, mishap, now_s=trio.current_time(), now_epoch_ms=now_epoch_ms())
        return json_response(202, {"interactionId": asked.interaction_id})

    async def _read(self, request: messages.Request) -> Request:
        """The payment that is asked about.

        Raises:
            UnknownRequest: it is no request for this provider.
            RequestRefused: it is not signed as it should be.
            MalformedError, TooLarge: the body cannot be read.
        """
        if request.method != "POST":
            raise RequestRefused(405, "method", "POST a dispatch envelope", headers=(("allow", "POST"),))
        require_json(request)
        body = await request.read_body()
        if self.service.secret is not None and (fault := unsigned(request, body, self.service.secret, now_epoch_ms())):
            raise RequestRefused(401, "not_signed", fault)
        try:
            envelope = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestRefused(400, "malformed", f"not JSON: {error}") from error
        if not isinstance(envelope, dict) or envelope.get("stepId") != self.service.step:
            raise UnknownRequest(f"only step {self.service.step} is answered here")
        asked = Request.from_message(envelope)
        if asked.completion_url is None:
            raise UnknownRequest("the request has no callback with a completionUrl: where should the answer go?")
        return asked

    # --- out --------------------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Sends what is due, each noted in the log first; ends when the desk is done."""
        headers = {} if self.service.token is None else {"authorization": f"Bearer {self.service.token}"}
        async with (
            httpx.AsyncClient(trust_env=False, timeout=POST_TIMEOUT_S, headers=headers, limits=LIMITS) as client,
            trio.open_nursery() as nursery,
        ):
            answer_send, answer_recv = trio.open_memory_channel[Answer](0)
            async with answer_send:
                for _ in range(POSTS_AT_ONCE):
                    nursery.start_soon(self._post_all, client, answer_recv)
                while await self._desk.next_due():
                    due = self._desk.take_due(trio.current_time(), POSTS_AT_ONCE)
                    for answer in await self._books.answers(due):
                        await answer_send.send(answer)

    async def _post_all(self, client: httpx.AsyncClient, answer_recv: trio.MemoryReceiveChannel[Answer]) -> None:
        async for answer in answer_recv:
            await self._post(client, answer)

    async def _post(self, client: httpx.AsyncClient, answer: Answer) -> None:
        """Sends one answer; what the daemon cannot take now is due again."""
        tally, interaction = self.tally, answer.request.interaction_id
        assert answer.request.completion_url is not None
        try:
            response = await client.post(answer.request.completion_url, json=answer.message)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            self._repeat(interaction, str(error) or type(error).__name__)
            return
        if response.is_success:
            tally.duplicate_count += b'"duplicate":true' in response.content
            self._desk.settle([interaction])
        elif response.status_code == 429 or response.status_code >= 500:
            self._repeat(interaction, f"status {response.status_code}")
        else:
            tally.refused_count += 1
            if tally.refused_count == 1:
                self.say(f"an answer was refused: status {response.status_code}: {response.text[:200]}")
            self._desk.settle([interaction])

    def _repeat(self, interaction: str, why: str) -> None:
        self.tally.repeated_count += 1
        if self.tally.repeated_count == 1:
            self.say(f"an answer will be repeated: {why}")
        self._desk.put_back(interaction, trio.current_time())

    async def _wind_up(self, everything: trio.CancelScope) -> None:
        """Once told to stop: takes nothing more, and gives what is in hand a bounded time."""
        await self.stopping.wait()
        self._desk.close()
        await trio.sleep(FINISH_S)
        everything.cancel(reason=f"told to stop, and {FINISH_S:.0f} s were not enough for what was in hand")


def unsigned(request: messages.Request, body: bytes, secret: bytes, now_ms: int) -> str | None:
    """Why a request does not count as signed; None when it does.

    Args:
        body: the exact bytes.
        now_ms: epoch milliseconds.
    """
    timestamp = request.header("x-tpf-webhook-timestamp") or ""
    nonce = request.header("x-tpf-webhook-nonce") or ""
    try:
        signed_at = dt.datetime.fromisoformat(timestamp)
    except ValueError:
        return "x-tpf-webhook-timestamp is missing or no ISO instant"
    if signed_at.tzinfo is None or abs(signed_at.timestamp() * 1000 - now_ms) > SKEW_MS:
        return "x-tpf-webhook-timestamp is too far from our time"
    path = request.path + (f"?{request.query_string}" if request.query_string else "")
    expected = signing.signature(
        secret, method=request.method, path=path, timestamp=timestamp, nonce=nonce, body=body
    )
    if not nonce or not signing.matches(expected, request.header("x-tpf-webhook-signature") or ""):
        return "x-tpf-webhook-signature does not belong to this request"
    return None
