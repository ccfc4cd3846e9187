"""The fact feed over WebSocket: facts as they happen, going on where it stopped after every loss."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import trio
from attrs import define
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, open_websocket_url

from tpfd.client.errors import Unreachable
from tpfd.client.sockets import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    MAX_FRAME_BYTES,
    backoff_s,
    handshake_refused,
    is_final,
    socket_headers,
    socket_url,
    why_closed,
)

EVENTS_PATH = "/pipeline/events"

Fact = dict[str, Any]
"""``{seq, type, atEpochMs, executionId, pipelineId, key, data}``."""


@define
class Feed:
    """A feed to follow.

    Attributes:
        url: the daemon's base address.
        tenant: tenant id; None is the daemon's default tenant.
        token: bearer token, None sends none.
        execution_id: only facts of this execution.
        pipeline: only facts of this pipeline.
        after: only facts with a higher sequence number; moves on with every frame.
        say: is told when the connection is lost.
        dice: spreads reconnects.
    """

    url: str
    tenant: str | None
    token: str | None
    execution_id: str | None
    pipeline: str | None
    after: int
    say: Callable[[str], None]
    dice: random.Random

    async def follow(self, take: Callable[[list[Fact]], Awaitable[bool]]) -> None:
        """Hands facts on, in order and each once, until ``take`` says that it has seen enough.

        Args:
            take: gets the facts of one frame; True ends the feed.

        Raises:
            Unreachable: the daemon was not there at the start. Later losses are bridged.
            ServerRefused: the daemon will not give us the feed.
        """
        attempt = 0
        heard = False
        while True:
            after_before = self.after
            lost = await self._connect(take)
            if lost is None:
                return
            heard = heard or self.after > after_before
            attempt = 1 if self.after > after_before else attempt + 1
            if not heard and attempt == 1:
                raise Unreachable(f"cannot follow {self.url}: {lost}")
            if attempt == 1:
                self.say(f"{lost}; trying until it is back")
            await trio.sleep(backoff_s(attempt, self.dice.random()))

    async def _connect(self, take: Callable[[list[Fact]], Awaitable[bool]]) -> str | None:
        """One connection; why it was lost, or None when ``take`` has seen enough."""
        query = {"after": str(self.after)}
        if self.execution_id is not None:
            query["executionId"] = self.execution_id
        if self.pipeline is not None:
            query["pipeline"] = self.pipeline
        try:
            async with open_websocket_url(
                socket_url(self.url, EVENTS_PATH, query),
                extra_headers=socket_headers(self.tenant, self.token),
                max_message_size=MAX_FRAME_BYTES,
                connect_timeout=CONNECT_TIMEOUT_S,
                disconnect_timeout=CLOSE_TIMEOUT_S,
            ) as socket:
                while True:
                    frame = orjson.loads(await socket.get_message())
                    facts = frame if isinstance(frame, list) else [frame]
                    self.after = max(self.after, *(fact["seq"] for fact in facts))
                    if await take(facts):
                        return None
        except ConnectionRejected as rejected:
            if is_final(rejected):
                raise handshake_refused(rejected) from rejected
            return f"the handshake was answered with {rejected.status_code}"
        except ConnectionClosed as closed:
            return why_closed(closed)
        except HandshakeError as error:
            return str(error.__cause__ or error or type(error).__name__)
