"""The provider behind a message broker: requests come from one place, answers go to another, on the line of a broker.

A request counts as dealt with when its answer is sent, so what a provider was asked that died, the next one is asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import orjson
import trio
from attrs import define, field, frozen

from tpfd.errors import OutsideError, TpfdError
from tpfd.examples.provider.books import Books, Tally, now_epoch_ms
from tpfd.examples.provider.decision import Manners, Request, UnknownRequest
from tpfd.examples.provider.desk import Desk
from tpfd.examples.provider.log import RequestLog

ANSWERS_AT_ONCE = 40
LINGER_S = 0.001
"""Answers that become due within this time travel together."""
AGAIN_S = 1.0
"""Pause after the broker could not be reached."""
FINISH_S = 10.0
"""How long what is in hand may take once the process was told to end."""


@frozen
class Asked:
    """One message with a request.

    Attributes:
        mark: what the line needs to know it again.
    """

    body: bytes
    mark: object


class Line(Protocol):
    """How requests come and answers go."""

    @property
    def name(self) -> str:
        """Where requests come from, for people."""

    @property
    def reader_count(self) -> int:
        """Receives that may be open at once."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Works for as long as the block lasts."""

    async def receive(self, limit: int) -> Sequence[Asked]:
        """Waits a while for requests. Raises OutsideError."""

    def done(self, mark: object) -> None:
        """This request need not come again."""

    async def answer(self, bodies: Sequence[bytes]) -> Sequence[str | None]:
        """Sends answers; for each, why it was not sent, or None when it was. Raises OutsideError: none was."""


@define
class BrokerProvider:
    """Answers the requests of a line until it is told to stop.

    Attributes:
        line: where it is asked.
        step: the await step that may ask, by id.
        places: requests in hand at most.
        manners: how to behave.
        log: where each request is noted before it is answered; None notes nothing.
        dice: decides mishaps.
        say: tells the person at the terminal.
        stopping: set it to finish what is in hand and return.
    """

    line: Line
    step: str
    places: int
    manners: Manners
    log: RequestLog | None
    dice: random.Random
    say: Callable[[str], None]
    stopping: trio.Event = field(factory=trio.Event)
    _books: Books = field(init=False)
    _desk: Desk = field(init=False)
    _marks: dict[str, list[object]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._books = Books(self.manners, self.log)
        self._desk = Desk(self.places, self.manners)

    @property
    def tally(self) -> Tally:
        """What happened so far."""
        return self._books.tally

    async def run(self) -> Tally:
        """Answers until `stopping` is set.

        Raises:
            OutsideError: the log cannot be written.
        """
        fatal: TpfdError | None = None
        try:
            async with self.line.opened(), trio.open_nursery() as nursery:
                self.say(f"listening on {self.line.name}, for step {self.step}")
                readers = trio.CancelScope()
                nursery.start_soon(self._read_all, readers)
                nursery.start_soon(self._wind_up, readers, nursery.cancel_scope)
                await self._answer()
                nursery.cancel_scope.cancel(reason="everything in hand is answered")
        except* TpfdError as group:
            fatal = next(error for error in group.exceptions if isinstance(error, TpfdError))
        if fatal is not None:
            raise fatal
        return self.tally

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _read_all(self, readers: trio.CancelScope) -> None:
        with readers:
            async with trio.open_nursery() as nursery:
                for _ in range(self.line.reader_count):
                    nursery.start_soon(self._read)

    async def _read(self) -> None:
        failed = False
        while True:
            try:
                messages = await self.line.receive(self.places)
            except OutsideError as error:
                if not failed:
                    self.say(f"cannot be asked: {error.message}; trying until it works")
                failed = True
                await trio.sleep(AGAIN_S)
                continue
            failed = False
            for message in messages:
                await self._take(message)

    async def _take(self, message: Asked) -> None:
        try:
            request = self._request(message.body)
        except UnknownRequest as unknown:
            self.tally.refused_count += 1
            self.say(f"a message is passed over: {unknown.message}")
            self.line.done(message.mark)
            return
        self.tally.asked_count += 1
        self._marks.setdefault(request.interaction_id, []).append(message.mark)
        mishap = self.manners.mishap(self.dice)
        await self._desk.put(request, mishap, now_s=trio.current_time(), now_epoch_ms=now_epoch_ms())

    def _request(self, body: bytes) -> Request:
        try:
            envelope = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise UnknownRequest(f"it is not JSON: {error}") from error
        if not isinstance(envelope, dict) or envelope.get("stepId") != self.step:
            raise UnknownRequest(f"only step {self.step} is answered here")
        return Request.from_message(envelope)

    # --- out --------------------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Sends what is due, each noted in the log first; ends when the desk is done."""
        while await self._desk.next_due():
            await trio.sleep(LINGER_S)
            due = self._desk.take_due(trio.current_time(), ANSWERS_AT_ONCE)
            answers = await self._books.answers(due)
            bodies = [orjson.dumps(given.message) for given in answers]
            try:
                faults = await self.line.answer(bodies)
            except OutsideError as error:
                faults = [error.message] * len(bodies)
            unsent = {
                given.request.interaction_id: fault
                for given, fault in zip(answers, faults, strict=True)
                if fault is not None
            }
            for entry in due:
                interaction = entry.request.interaction_id
                if interaction in unsent:
                    self._repeat(interaction, unsent[interaction])
                else:
                    self._settle(interaction)
            if unsent:
                await trio.sleep(AGAIN_S)

    def _settle(self, interaction: str) -> None:
        self._desk.settle([interaction])
        for mark in self._marks.pop(interaction, ()):
            self.line.done(mark)

    def _repeat(self, interaction: str, why: str | None) -> None:
        self.tally.repeated_count += 1
        if self.tally.repeated_count == 1:
            self.say(f"an answer will be repeated: {why}")
        self._desk.put_back(interaction, trio.current_time())

    async def _wind_up(self, readers: trio.CancelScope, everything: trio.CancelScope) -> None:
        """Once told to stop: takes nothing more, and gives what is in hand a bounded time."""
        await self.stopping.wait()
        readers.cancel(reason="told to stop")
        self._desk.close()
        await trio.sleep(FINISH_S)
        everything.cancel(reason=f"told to stop, and {FINISH_S:.0f} s were not enough for what was in hand")
