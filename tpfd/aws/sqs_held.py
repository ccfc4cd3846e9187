"""What a process holds of a queue: kept hidden while it is worked on, then deleted or shown again, in batches.

One keeper does it for all messages of a queue. Whoever works on one only says what became of it and never waits for the
service. What a process that died held comes back by itself when its visibility runs out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, NoReturn

import trio
from attrs import define, field

from tpfd.aws.sqs_batches import BATCH_COUNT
from tpfd.aws.sqs_queue import Message, SqsQueue
from tpfd.bell import Bell
from tpfd.boundaries import one_pass
from tpfd.errors import OutsideError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating

log = get_logger("tpfd.sqs")

GATHER_S = 0.03
"""Pause before messages are deleted, so that more of them go in one request."""
AGAIN_S = 1.0
"""Pause after a request that failed; each was repeated with backoff before."""
LAST_WORD_S = 3.0
"""Time that the keeper has, when it is cancelled, to delete and to show what has still to be."""
EXTENDED_PER_VISIBILITY = 3
"""How often the visibility of a held message is extended before it would run out."""


@define(eq=False, kw_only=True)
class HeldMessages:
    """The messages of one queue that this process holds.

    Bounded by whoever receives: no message is received without a place for it.

    Attributes:
        name: of the queue's use, for logs and readiness.
        visibility_s: how long a message stays hidden unless that is extended.
        trouble: what readiness shows.
        longest_s: a message that was received longer ago is not extended any more: somebody else is to try.
    """

    name: str
    queue: SqsQueue
    visibility_s: int
    trouble: dict[str, str]
    longest_s: float = inf
    _held: dict[str, tuple[Message, float]] = field(factory=dict, init=False)
    _done: dict[str, Message] = field(factory=dict, init=False)
    _shown: dict[str, tuple[Message, int]] = field(factory=dict, init=False)
    _bell: Bell = field(factory=Bell, init=False)
    _settling: Repeating = field(factory=lambda: Repeating(log), init=False)
    _extending: Repeating = field(factory=lambda: Repeating(log), init=False)

    @property
    def held_count(self) -> int:
        """Messages that are worked on."""
        return len(self._held)

    async def receive(self, limit: int, wait_s: int) -> list[Message]:
        """Receives messages and holds them from then on. Raises AwsFailure. See `SqsQueue.receive`."""
        messages = await self.queue.receive(limit, wait_s=wait_s, visibility_s=self.visibility_s)
        received_at = trio.current_time()
        self._held.update((message.receipt, (message, received_at)) for message in messages)
        return messages

    def done(self, message: Message) -> None:
        """It has had its effect, or needs none: it is deleted soon."""
        if self._held.pop(message.receipt, None) is not None:
            self._done[message.receipt] = message
            self._bell.ring()

    def show(self, message: Message, after_s: int = 0) -> None:
        """It is for somebody else, or for later: it is shown again after so many seconds."""
        if self._held.pop(message.receipt, None) is not None:
            self._shown[message.receipt] = (message, after_s)
            self._bell.ring()

    async def run(self) -> NoReturn:
        """Keeps what is held, for ever.

        **Cancellation**: what is done is deleted, and everything else shown again, within LAST_WORD_S.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_hidden)
                nursery.start_soon(self._keep_settled)
        finally:
            for message, _ in tuple(self._held.values()):
                self.show(message)
            with trio.move_on_after(LAST_WORD_S, shield=True):
                await self._settle_pass()
        raise AssertionError("its tasks never end")

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Runs the keeper for the length of a block. A cancel reaches the block first: what its last receive brings is
        shown again.
        """
        keeping = trio.CancelScope(shield=True)

        async def keep() -> None:
            with keeping:
                await self.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
            try:
                yield
            finally:
                keeping.cancel("nothing more is received")

    async def _keep_hidden(self) -> NoReturn:
        while True:
            await trio.sleep(self.visibility_s / EXTENDED_PER_VISIBILITY)
            await one_pass(f"{self.name}_extend", self._extending, self.trouble, self._extend)

    async def _keep_settled(self) -> NoReturn:
        while True:
            ticket = self._bell.ticket()
            if not (self._done or self._shown):
                await ticket.wait()
            await trio.sleep(GATHER_S)
            if not await self._settle_pass():
                await trio.sleep(AGAIN_S)

    async def _settle_pass(self) -> bool:
        return bool(await one_pass(f"{self.name}_settle", self._settling, self.trouble, self._settle))

    async def _settle(self) -> bool:
        """Deletes and shows what is to be. What fails stays to be done, and comes back if that takes too long."""
        shown = dict(self._shown.values())
        async with trio.open_nursery() as nursery:
            for page in _pages(tuple(self._done.values())):
                nursery.start_soon(self._delete, page)
            for page in _pages(tuple(shown)):
                nursery.start_soon(self._show, {message: shown[message] for message in page})
        return True

    async def _delete(self, page: Sequence[Message]) -> None:
        left = await self.queue.delete(page)
        _forget(self._done, page, but=left)
        _complain(left, "deleted")

    async def _show(self, page: dict[Message, int]) -> None:
        left = await self.queue.hide(page)
        _forget(self._shown, page, but=left)
        _complain(left, "shown again")

    async def _extend(self) -> None:
        since = trio.current_time() - self.longest_s
        async with trio.open_nursery() as nursery:
            for page in _pages([message for message, received_at in self._held.values() if received_at >= since]):
                nursery.start_soon(self._hide, page)

    async def _hide(self, page: Sequence[Message]) -> None:
        _complain(await self.queue.hide(dict.fromkeys(page, self.visibility_s)), "kept hidden")


def _complain(left: Sequence[Message], wanted: str) -> None:
    if left:
        raise OutsideError(f"{len(left)} messages could not be {wanted} for now")


def _pages(messages: Sequence[Message]) -> Iterable[Sequence[Message]]:
    return (messages[first : first + BATCH_COUNT] for first in range(0, len(messages), BATCH_COUNT))


def _forget(of: dict[str, Any], messages: Iterable[Message], but: Iterable[Message]) -> None:
    kept = {message.receipt for message in but}
    for message in messages:
        if message.receipt not in kept:
            of.pop(message.receipt, None)
