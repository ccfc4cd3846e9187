"""One connection of the provider to a daemon, from the subscription to its end.

Four tasks under one nursery: one reads frames, one sends the answers that are due, one pings, and one winds it up when
the process is told to end. Whatever else ends the connection drops what is still in hand: the daemon asks again, with
the same ids, whoever attaches next.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import trio
from attrs import define, field, frozen
from trio_websocket import ConnectionClosed, WebSocketConnection

from tpfd.client.errors import ProblemDetail, ServerRefused, Unreachable, first_of
from tpfd.client.sockets import why_closed
from tpfd.errors import TpfdError
from tpfd.examples.provider.books import Books, now_epoch_ms
from tpfd.examples.provider.decision import Request
from tpfd.examples.provider.desk import Desk

ANSWERS_PER_FRAME = 256
LINGER_S = 0.001
"""Answers that become due within this time travel in one frame; without it frames of many hardly form."""
PING_EVERY_S = 15.0
PING_TIMEOUT_S = 10.0
FINISH_S = 10.0
"""How long what is in hand may take once the process was told to end."""
FINAL_CLOSE_CODES = frozenset({1003, 1007, 1008, 1009})
"""The daemon will not have us now or later: it does not understand or does not want what we say."""


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
class Attachment:
    """One connection.

    Attributes:
        socket: the open WebSocket.
        target: what is subscribed to.
        books: what to answer, and its record.
        dice: decides mishaps.
        say: tells the person at the terminal.
    """

    socket: WebSocketConnection
    target: Target
    books: Books
    dice: random.Random
    say: Callable[[str], None]
    _desk: Desk = field(init=False)
    _complaint: ProblemDetail | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._desk = Desk(self.target.credit, self.books.manners)

    async def run(self, stopping: trio.Event) -> str:
        """Subscribes and answers until the connection is lost or `stopping` is set.

        Returns:
            Why it ended.

        Raises:
            ServerRefused: the daemon will not have us, now or later.
            UnknownRequest: the step asks about something that this provider does not know.
            OutsideError: the log cannot be written, or this is not a tpfd daemon.
        """
        fatal: TpfdError | None = None
        closed: ConnectionClosed | None = None
        ended = "told to stop"
        try:
            async with trio.open_nursery() as nursery:
                await self.socket.send_message(orjson.dumps(self.target.subscribe_message()).decode())
                nursery.start_soon(self._read)
                nursery.start_soon(self._ping)
                nursery.start_soon(self._wind_up, stopping, nursery.cancel_scope)
                await self._answer()
                nursery.cancel_scope.cancel(reason="everything in hand is answered")
        except* ConnectionClosed as group:
            closed = first_of(group)
        except* trio.TooSlowError:
            ended = f"no pong within {PING_TIMEOUT_S:.0f} s"
        except* TpfdError as group:
            fatal = first_of(group)
        if fatal is not None:
            raise fatal
        if closed is not None:
            ended = why_closed(closed)
            if closed.reason is not None and closed.reason.code in FINAL_CLOSE_CODES:
                raise ServerRefused(self._complaint or ProblemDetail(400, "refused", detail=ended)) from closed
        return ended

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Takes what the daemon sends; never ends but by cancel or loss."""
        while True:
            messages = _messages(await self.socket.get_message())
            now_s, at_epoch_ms = trio.current_time(), now_epoch_ms()
            self._desk.settle(self._acknowledged(messages, now_s))
            for message in messages:
                if message["type"] == "request" and not self._desk.closed:
                    self.books.tally.asked_count += 1
                    mishap = self.books.manners.mishap(self.dice)
                    request = Request.from_message(message)
                    await self._desk.put(request, mishap, now_s=now_s, now_epoch_ms=at_epoch_ms)

    def _acknowledged(self, messages: list[dict[str, Any]], now_s: float) -> list[str]:
        """The interactions that need no answer any more, by what a frame says."""
        settled = []
        for message in messages:
            match message["type"]:
                case "completed":
                    self.books.tally.duplicate_count += bool(message.get("duplicate"))
                    settled.append(str(message.get("interactionId")))
                case "rejected" if _is_passing(message):
                    self.books.tally.repeated_count += 1
                    if self.books.tally.repeated_count == 1:
                        self.say(f"an answer will be repeated: {message.get('code')}: {message.get('detail')}")
                    self._desk.put_back(str(message.get("interactionId")), now_s)
                case "rejected":
                    self.books.tally.refused_count += 1
                    if self.books.tally.refused_count == 1:
                        self.say(f"an answer was refused: {message.get('code')}: {message.get('detail')}")
                    settled.append(str(message.get("interactionId")))
                case "error":
                    self._complaint = ProblemDetail.from_json(400, message, reason="the daemon refused the provider")
        return settled

    # --- out --------------------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Sends what is due, many answers to a frame, each noted in the log first; ends when the desk is done."""
        while await self._desk.next_due():
            await trio.sleep(LINGER_S)
            due = self._desk.take_due(trio.current_time(), ANSWERS_PER_FRAME)
            messages = [given.message for given in await self.books.answers(due)]
            for start in range(0, len(messages), ANSWERS_PER_FRAME):
                frame = orjson.dumps(messages[start : start + ANSWERS_PER_FRAME]).decode()
                await self.socket.send_message(frame)

    # --- life -------------------------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        """Finds out that the other host is gone although nobody closed the connection."""
        while True:
            await trio.sleep(PING_EVERY_S)
            with trio.fail_after(PING_TIMEOUT_S):
                await self.socket.ping()

    async def _wind_up(self, stopping: trio.Event, connection: trio.CancelScope) -> None:
        """Once told to stop: takes nothing more, and gives what is in hand a bounded time."""
        await stopping.wait()
        self._desk.close()
        await trio.sleep(FINISH_S)
        connection.cancel(reason=f"told to stop, and {FINISH_S:.0f} s were not enough for what was in hand")


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


def _is_passing(rejected: dict[str, Any]) -> bool:
    """Whether the daemon may take the same answer later: its store was busy or down, the answer itself is good."""
    status = rejected.get("status")
    return isinstance(status, int) and (status == 429 or status >= 500)
