"""The provider's life: attach, and after every loss attach again, until it is told to stop."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio
from attrs import define, field
from trio_websocket import WebSocketConnection

from tpfd.client.sockets import Address, NotConnected, backoff_s, converse
from tpfd.examples.provider.attachment import Attachment, Target
from tpfd.examples.provider.books import Books, Tally
from tpfd.examples.provider.decision import Manners
from tpfd.examples.provider.log import RequestLog

STREAM_PATH = "/pipeline/interactions/stream"


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
    _books: Books = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._books = Books(self.manners, self.log)

    @property
    def tally(self) -> Tally:
        """What happened so far."""
        return self._books.tally

    async def run(self) -> Tally:
        """Attaches, and attaches again after every loss, until `stopping` is set.

        Raises:
            ServerRefused: the daemon will not have us, now or later.
            UnknownRequest: the step asks about something that this provider does not know.
            OutsideError: the log cannot be written, or this is not a tpfd daemon.
        """
        attempt = 0
        while not self.stopping.is_set():
            asked_before = self.tally.asked_count
            lost = await self._attach()
            if self.stopping.is_set():
                break
            attempt = 1 if self.tally.asked_count > asked_before else attempt + 1
            if attempt == 1:
                self.say(f"not connected to {self.target.url}: {lost}; trying until it is there")
            with trio.move_on_after(backoff_s(attempt, self.dice.random())):
                await self.stopping.wait()
        return self.tally

    async def _attach(self) -> str:
        """One connection, from handshake to loss; returns why it ended."""
        target = self.target
        try:
            return await converse(Address(target.url, STREAM_PATH, {}, target.tenant, target.token), self._attend)
        except NotConnected as error:
            return error.message

    async def _attend(self, socket: WebSocketConnection) -> str:
        self.say(f"connected to {self.target.url}, asking for step {self.target.step}")
        attachment = Attachment(
            socket=socket,
            target=self.target,
            books=self._books,
            dice=self.dice,
            say=self.say,
        )
        return await attachment.run(self.stopping)
