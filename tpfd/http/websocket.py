"""One WebSocket on a server: bounded messages in, whole messages out, a peer that is gone is noticed.

Extensions are never agreed to: a few bytes of a compressed message may unpack into gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from tpfd.errors import AdmissionError

READ_BYTES = 64 * 1024
PING_AFTER_S = 20.0
PONG_WITHIN_S = 20.0
CLOSE_WITHIN_S = 1.0

# RFC 6455, section 7.4.1, and 1012 to 1013 of the IANA registry.
NORMAL = 1000
UNSUPPORTED_DATA = 1003
INVALID_PAYLOAD = 1007
POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
INTERNAL_ERROR = 1011
SERVICE_RESTART = 1012
TRY_AGAIN_LATER = 1013


class FrameRefused(AdmissionError):
    """The peer sent something that ends the connection.

    Attributes:
        close_code: what to close with.
    """

    def __init__(self, close_code: int, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.close_code = close_code


class WebSocket:
    """An open WebSocket. One task receives; several may send.

    Args:
        stream: the connection, after the 101 answer was sent.
        early: what the client sent right behind its request.
        max_message_chars: a longer message is refused while it arrives.
        send_timeout_s: a peer that does not take a message in this time is given up.
    """

    def __init__(
        self, stream: trio.abc.Stream, early: bytes, *, max_message_chars: int, send_timeout_s: float
    ) -> None:
        self._stream = stream
        self._frames = Connection(ConnectionType.SERVER, extensions=[], trailing_data=early)
        self._events: Iterator[Event] = self._frames.events()
        self._max_message_chars = max_message_chars
        self._send_timeout_s = send_timeout_s
        self._send_lock = trio.Lock()
        self._out_of_step = False  # part of a frame was written: nothing can follow
        self._unreadable = False  # the peer broke the protocol: what follows means nothing

    async def receive(self) -> str:
        """The next message.

        Raises:
            trio.EndOfChannel: the peer closed, or is gone.
            FrameRefused: binary, too long, or against the protocol; then `close` with its code.

        **Cancellation**: a message that was only read in part is lost.
        """
        parts: list[str] = []
        size = 0
        while True:
            event = await self._next_event()
            match event:
                case TextMessage():
                    size += len(event.data)
                    if size > self._max_message_chars:
                        raise FrameRefused(
                            MESSAGE_TOO_BIG,
                            "message_too_big",
                            f"a message has at most {self._max_message_chars} characters",
                        )
                    if event.data:
                        parts.append(event.data)
                    if event.message_finished:
                        return "".join(parts)
                case BytesMessage():
                    raise FrameRefused(UNSUPPORTED_DATA, "binary_message", "messages are JSON in text frames")
                case Ping():
                    await self._answer(event.response())
                case CloseConnection():
                    if self._frames.state is ConnectionState.REMOTE_CLOSING:
                        await self._answer(event.response())
                        raise trio.EndOfChannel
                    self._unreadable = True
                    raise FrameRefused(event.code, "broken_frame", event.reason or "a frame breaks the protocol")

    async def send(self, text: str) -> None:
        """Sends one message.

        Raises:
            trio.BrokenResourceError: the peer is gone, is closing, or did not read for too long.
        """
        await self._transmit(TextMessage(data=text))

    async def close(self, code: int, reason: str = "", *, last_words: str | None = None) -> None:
        """Says good-bye and waits a moment for the answer, so that the peer gets to read ours. Never raises.

        Args:
            code: why; see the constants of this module.
            reason: the same for people.
            last_words: a message to send before.
        """
        with trio.move_on_after(CLOSE_WITHIN_S):
            try:
                if last_words is not None:
                    await self._transmit(TextMessage(data=last_words))
                await self._transmit(CloseConnection(code=code, reason=reason))
                while data := await self._stream.receive_some(READ_BYTES):
                    if self._unreadable:
                        continue
                    self._frames.receive_data(bytes(data))
                    if any(isinstance(event, CloseConnection) for event in self._frames.events()):
                        return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _next_event(self) -> Event:
        while (event := next(self._events, None)) is None:
            data = await self._read()
            if not data:
                raise trio.EndOfChannel
            self._frames.receive_data(data)
            self._events = self._frames.events()
        return event

    async def _read(self) -> bytes:
        """Some bytes; none when the peer closed or has been silent to a ping."""
        try:
            with trio.move_on_after(PING_AFTER_S):
                return bytes(await self._stream.receive_some(READ_BYTES))
            await self._transmit(Ping())
            with trio.move_on_after(PONG_WITHIN_S):
                return bytes(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""
        return b""

    async def _answer(self, event: Event) -> None:
        try:
            await self._transmit(event)
        except trio.BrokenResourceError:
            raise trio.EndOfChannel from None

    async def _transmit(self, event: Event) -> None:
        async with self._send_lock:
            if self._out_of_step:
                raise trio.BrokenResourceError("an earlier message was cut off")
            try:
                data = self._frames.send(event)
            except LocalProtocolError as error:
                raise trio.BrokenResourceError("the WebSocket is closing") from error
            self._out_of_step = True
            with trio.move_on_after(self._send_timeout_s):
                await self._stream.send_all(data)
                self._out_of_step = False
            if self._out_of_step:
                raise trio.BrokenResourceError("the peer does not read")
