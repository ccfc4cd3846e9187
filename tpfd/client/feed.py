"""The fact feed over WebSocket: facts as they happen, going on where it stopped after every loss."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import trio
from attrs import define
from trio_websocket import ConnectionClosed, WebSocketConnection

from tpfd.client.sockets import Address, NotConnected, backoff_s, converse, why_closed

EVENTS_PATH = "/pipeline/events"
FEED_STARTED = "FeedStarted"
"""Type of the first message of a feed that begins now; its ``seq`` is where."""

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
        after: only facts with a higher sequence number; moves on with every frame. None: only those that come now.
        say: is told when the connection is lost.
        dice: spreads reconnects.
    """

    url: str
    tenant: str | None
    token: str | None
    execution_id: str | None
    pipeline: str | None
    after: int | None
    say: Callable[[str], None]
    dice: random.Random

    async def follow(self, take: Callable[[list[Fact]], Awaitable[bool]]) -> None:
        """Hands facts on, in order and each once, until ``take`` says that it has seen enough.

        Args:
            take: gets the facts of one frame; True ends the feed.

        Raises:
            NotConnected: the daemon was not there at the start. Later losses are bridged.
            ServerRefused: the daemon will not give us the feed.
        """
        attempt = 0
        connected = False

        async def talk(socket: WebSocketConnection) -> str | None:
            nonlocal attempt, connected
            attempt, connected = 0, True
            return await self._pass_on(socket, take)

        while True:
            try:
                lost = await converse(self._address(), talk)
            except NotConnected as error:
                if not connected:
                    raise
                lost = error.message
            if lost is None:
                return
            attempt += 1
            if attempt == 1:
                self.say(f"{lost}; trying until it is back")
            await trio.sleep(backoff_s(attempt, self.dice.random()))

    def _address(self) -> Address:
        query = {"after": "now" if self.after is None else str(self.after)}
        if self.execution_id is not None:
            query["executionId"] = self.execution_id
        if self.pipeline is not None:
            query["pipeline"] = self.pipeline
        return Address(self.url, EVENTS_PATH, query, self.tenant, self.token)

    async def _pass_on(
        self, socket: WebSocketConnection, take: Callable[[list[Fact]], Awaitable[bool]]
    ) -> str | None:
        """Why the connection was lost, or None when ``take`` has seen enough."""
        while True:
            try:
                frame = orjson.loads(await socket.get_message())
            except ConnectionClosed as closed:
                return why_closed(closed)
            facts = frame if isinstance(frame, list) else [frame]
            self.after = max(self.after or 0, *(fact["seq"] for fact in facts))
            if facts[0]["type"] != FEED_STARTED and await take(facts):
                return None
