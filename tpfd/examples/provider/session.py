"""The provider's side of ``/pipeline/interactions/stream``: attach, take requests, send answers, attach again.

One connection is four tasks under one nursery: one reads frames onto the desk, one takes what is due off it and sends
it, one pings, one stops the reading when the process is told to end. Whatever ends the connection drops what is still
on the desk: the daemon asks again, with the same ids, whoever attaches next.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import orjson
import trio
from attrs import define, field, frozen
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    open_websocket_url,
)

from tpfd.client.errors import ProblemDetail, ServerRefused, Unreachable
from tpfd.errors import TpfdError
from tpfd.examples.provider.decision import Answer, Manners, Mishap, Request, answer
from tpfd.examples.provider.desk import Desk
from tpfd.examples.provider.log import RequestLog

E = TypeVar("E", bound=BaseException)

STREAM_PATH = "/pipeline/interactions/stream"
ANSWERS_PER_FRAME = 256
LINGER_S = 0.001
"""Answers that become due within this time travel in one frame; without it frames of many hardly form."""
MAX_FRAME_BYTES = 32 * 2**20
RECEIVE_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
PING_EVERY_S = 15.0
PING_TIMEOUT_S = 10.0
FINISH_S = 10.0
"""How long what is in hand may take once the process was told to end."""
BACKOFF_FIRST_S = 0.1
BACKOFF_CAP_S = 2.0
WORTH_REPEATING = frozenset({408, 425, 429})
"""Statuses below 500 that say "later" and not "no"."""


@frozen
class Target:
    """What to attach to.

    Attributes:
        url: the daemon's base address, http or https.
        step: the await step, by id or name.
        pipeline: pipeline id; None when the daemon runs only one.
        tenant: tenant id.
        token: bearer token, None sends none.
        credit: at most so many requests are in hand.
    """

    url: str
    step: str
    pipeline: str | None = None
    tenant: str = "default"
    token: str | None = None
    credit: int = 256

    @property
    def stream_url(self) -> str:
        """The address of the stream, ws or wss."""
        parts = urlsplit(self.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + STREAM_PATH, "", ""))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the handshake."""
        headers = [(b"x-tenant-id", self.tenant.encode())]
        if self.token is not None:
            headers.append((b"authorization", f"Bearer {self.token}".encode()))
        return headers

    def subscribe_message(self) -> dict[str, Any]:
        """The first message of a connection."""
        message: dict[str, Any] = {
            "type": "subscribe",
            "tenantId": self.tenant,
            "stepIds": [self.step],
            "credit": self.credit,
        }
        if self.pipeline is not None:
            message["pipeline"] = self.pipeline
        return message


@define
class Tally:
    """What happened so far."""

    asked_count: int = 0
    approved_count: int = 0
    unapproved_count: int = 0
    duplicate_count: int = 0
    refused_count: int = 0


@define
class Provider:
    """Answers one step's requests until it is told to stop.

    Attributes:
        target: what to attach to.
        manners: how to behave.
        log: where each request is noted before it is answered; None notes nothing.
        dice: decides mishaps and spreads reconnects, nothing else.
        say: tells the person at the terminal.
        stopping: set it to finish what is in hand and return.
    """

    target: Target
    manners: Manners
    log: RequestLog | None
    dice: random.Random
    say: Callable[[str], None]
    stopping: trio.Event = field(factory=trio.Event)
    tally: Tally = field(factory=Tally)
    _down: bool = field(default=False, init=False)

    async def run(self) -> Tally:
        """Attaches, and attaches again after every loss, until `stopping` is set.

        Raises:
            ServerRefused: the daemon will not have us, now or later.
            UnknownRequest: the step asks about something that this provider does not know.
            OutsideError: the log cannot be written.
        """
        attempt = 0
        while not self.stopping.is_set():
            heard_before = self.tally.asked_count
            lost = await self._attach()
            if self.stopping.is_set():
                break
            attempt = 1 if self.tally.asked_count > heard_before else attempt + 1
            if not self._down:
                self.say(f"not attached to {self.target.url}: {lost}; trying again until it is")
                self._down = True
            with trio.move_on_after(backoff_s(attempt, self.dice.random())):
                await self.stopping.wait()
        return self.tally

    async def _attach(self) -> str:
        """One connection, from handshake to loss; returns why it ended."""
        try:
            async with open_websocket_url(
                self.target.stream_url,
                extra_headers=self.target.headers,
                message_queue_size=2,
                max_message_size=MAX_FRAME_BYTES,
                receive_buffer_size=RECEIVE_BYTES,
                connect_timeout=CONNECT_TIMEOUT_S,
                disconnect_timeout=CLOSE_TIMEOUT_S,
            ) as socket:
                return await self._attend(socket)
        except ConnectionRejected as rejected:
            if 400 <= rejected.status_code < 500 and rejected.status_code not in WORTH_REPEATING:
                raise _handshake_refused(rejected) from rejected
            return f"the handshake was answered with {rejected.status_code}"
        except HandshakeError as error:
            return str(error.__cause__ or error or type(error).__name__)

    async def _attend(self, socket: WebSocketConnection) -> str:
        desk = Desk(self.target.credit, self.manners)
        fatal: TpfdError | None = None
        lost = "told to stop"
        try:
            async with trio.open_nursery() as nursery:
                await socket.send_message(orjson.dumps(self.target.subscribe_message()).decode())
                nursery.start_soon(self._read, socket, desk)
                nursery.start_soon(_ping, socket)
                nursery.start_soon(self._stop_taking, desk, nursery.cancel_scope)
                await self._answer(socket, desk)
                nursery.cancel_scope.cancel(reason="everything in hand is answered")
        except* ConnectionClosed as group:
            lost = _why_closed(group)
        except* trio.TooSlowError:
            lost = f"no pong within {PING_TIMEOUT_S:.0f} s"
        except* TpfdError as group:
            fatal = _first(group)
        if fatal is not None:
            raise fatal
        return lost

    async def _read(self, socket: WebSocketConnection, desk: Desk) -> None:
        """Puts what the daemon asks onto the desk; never ends but by cancel or loss."""
        while True:
            messages = _messages(await socket.get_message())
            now_s, now_epoch_ms = trio.current_time(), time.time_ns() // 1_000_000
            for message in messages:
                if message["type"] == "request":
                    self._note_attached()
                    if desk.closed:
                        return
                    self.tally.asked_count += 1
                    mishap = self.manners.mishap(self.dice)
                    await desk.put(Request.from_message(message), mishap, now_s=now_s, now_epoch_ms=now_epoch_ms)
                else:
                    self._take_note(message)

    def _take_note(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "completed":
                self.tally.duplicate_count += bool(message.get("duplicate"))
            case "rejected":
                self.tally.refused_count += 1
                if self.tally.refused_count == 1:
                    self.say(f"an answer was refused: {message.get('code')}: {message.get('detail')}")
            case "error":
                problem = ProblemDetail.from_json(400, message, reason="the daemon does not understand us")
                raise ServerRefused(problem)
            case _:
                self._note_attached()  # such as a confirmation of the subscription

    def _note_attached(self) -> None:
        if self._down:
            self.say(f"attached to {self.target.url} again")
            self._down = False

    async def _answer(self, socket: WebSocketConnection, desk: Desk) -> None:
        """Sends what is due, many answers to a frame, each noted in the log first."""
        while await desk.next_due():
            await trio.sleep(LINGER_S)
            due = desk.take_due(trio.current_time(), ANSWERS_PER_FRAME)
            answers = [(answer(entry.request, self.manners.reject_probability), entry.mishap) for entry in due]
            await self._note([given for given, _ in answers])
            messages = [given.message for given, mishap in answers if mishap is not Mishap.DROP]
            messages += [given.message for given, mishap in answers if mishap is Mishap.DUPLICATE]
            if messages:
                await socket.send_message(orjson.dumps(messages).decode())

    async def _note(self, answers: list[Answer]) -> None:
        rejected = sum(given.outcome == "unapproved" for given in answers)
        self.tally.unapproved_count += rejected
        self.tally.approved_count += len(answers) - rejected
        if self.log is not None:
            at_epoch_ms = time.time_ns() // 1_000_000
            await self.log.write([given.log_line(at_epoch_ms) for given in answers])

    async def _stop_taking(self, desk: Desk, connection: trio.CancelScope) -> None:
        """Once told to stop: takes nothing more, and gives what is in hand a bounded time."""
        await self.stopping.wait()
        desk.close()
        await trio.sleep(FINISH_S)
        connection.cancel(reason=f"told to stop, and {FINISH_S:.0f} s were not enough for what was in hand")


def backoff_s(attempt: int, jitter: float) -> float:
    """Seconds until the next try to attach.

    Args:
        attempt: tries so far without hearing anything, from 1.
        jitter: in [0, 1): spreads providers that lost the same daemon.
    """
    ceiling = BACKOFF_CAP_S if attempt > 10 else min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2 ** (attempt - 1))
    return ceiling * (0.5 + jitter / 2)


async def _ping(socket: WebSocketConnection) -> None:
    """Finds out that the other host is gone although nobody closed the connection."""
    while True:
        await trio.sleep(PING_EVERY_S)
        with trio.fail_after(PING_TIMEOUT_S):
            await socket.ping()


def _why_closed(group: ExceptionGroup[ConnectionClosed]) -> str:
    closed = _first(group)
    reason = closed.reason
    return f"the daemon closed the connection ({reason.code} {reason.reason or reason.name})" if reason else "cut off"


def _handshake_refused(rejected: ConnectionRejected) -> ServerRefused:
    try:
        body = orjson.loads(rejected.body or b"null")
    except orjson.JSONDecodeError:
        body = None
    problem = ProblemDetail.from_json(rejected.status_code, body, reason="the daemon refused to let us attach")
    return ServerRefused(problem)


def _messages(frame: str | bytes) -> list[dict[str, Any]]:
    """The messages of a frame, which carries one or an array of them."""
    try:
        data = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise Unreachable(f"a frame is not JSON ({error}); is this a tpfd daemon?") from error
    messages = data if isinstance(data, list) else [data]
    if not all(isinstance(message, dict) and "type" in message for message in messages):
        raise Unreachable("a frame carries something without a type; is this a tpfd daemon?")
    return messages


def _first(group: BaseExceptionGroup[E]) -> E:
    """The first error of a group, however deep it is nested."""
    error: E | BaseExceptionGroup[E] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
