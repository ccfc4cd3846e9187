"""A link to a broker: a socket of our own, through which the requests of one await step go out.

What a link is given it sends, and what the broker has confirmed is *sent*. If the process dies before that, the link's
lease brings the request back and somebody sends it again. A confirmed request needs no socket any more; but most are
answered within moments, and then nothing has to be written about it. Only one that is still unanswered after LET_GO_MS,
or when the link closes, is *let go*, many by one transaction: from then on it is the broker's, and is not sent again
when a process dies.

A request that cannot be sent for now is tried again, with growing pauses, as long as it is open; one that can never be
sent ends its interaction, and with it its execution, or only its item if the step recovers. The outbox is bounded by
the link's credit, so a broker that is slow slows down whoever asks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

import trio
from attrs import define, field

from tpfd.boundaries import one_pass
from tpfd.core import sockets
from tpfd.core.budget import SHARED
from tpfd.core.records import InteractionId, InteractionRecord, JsonText
from tpfd.core.sockets import LET_GO_PAGE
from tpfd.errors import StoreError, TransportError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime
from tpfd.transports.broker import Confirmed, Outcome, Outgoing, Postponed, Unsendable, Wire
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.sockets import CLOSE_S, POLL_S, Socket, Sockets

log = get_logger("tpfd.links")

LET_GO_MS = 5_000
"""How long a confirmed request of a step with a budget may be unanswered before a write is spent on it."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0

GiveUp = Callable[[InteractionRecord, str], Awaitable[object]]
"""Ends an interaction that can never be sent, told why. Raises StoreError."""


@define(eq=False, kw_only=True)
class LinkSocket(Socket):
    """The socket of a link.

    Attributes:
        confirmed: those of the held that the broker has, as they were handed out, with Trio's time of the confirmation;
            the oldest first.
    """

    confirmed: dict[InteractionId, tuple[InteractionRecord, float]] = field(factory=dict)

    def answered(self, interaction_id: str) -> None:
        """The link is done with it."""
        self.confirmed.pop(InteractionId(interaction_id), None)
        super().answered(interaction_id)

    def confirm(self, record: InteractionRecord) -> None:
        """The broker has it; it may have been answered already."""
        if record.interaction_id in self.held:
            self.confirmed[record.interaction_id] = (record, trio.current_time())

    def unanswered(self, confirmed_before_s: float) -> list[InteractionRecord]:
        """A page of the oldest."""
        page = []
        for record, at_s in itertools.islice(self.confirmed.values(), LET_GO_PAGE):
            if at_s > confirmed_before_s:
                break
            page.append(record)
        return page


@define(eq=False, kw_only=True)
class BrokerLink:
    """The link of one await step.

    Attributes:
        credit: requests that may be with the link: waiting, on their way, or confirmed and not let go.
        let_go_ms: see LET_GO_MS; 0 for a step without a budget: there, what is confirmed makes room for the next.
    """

    runtime: Runtime
    sockets: Sockets
    pipeline_id: str
    step_id: str
    transport: str
    wire: Wire
    envelopes: EnvelopeWriter
    give_up: GiveUp
    credit: int
    let_go_ms: int = LET_GO_MS
    _socket: LinkSocket = field(init=False)
    _failures: Repeating = field(factory=lambda: Repeating(log), init=False)
    _failed_count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._socket = LinkSocket(
            record=self.sockets.row(SHARED, self.pipeline_id, self.transport),
            step_ids=(self.step_id,),
            credit=self.credit,
            write=self._envelope,
        )

    def _envelope(self, record: InteractionRecord, request: JsonText) -> bytes:
        return self.envelopes.request(record, request, self.runtime.now())

    @property
    def name(self) -> str:
        """For logs and readiness."""
        return f"{self.transport}_{self.pipeline_id}_{self.step_id}"

    @property
    def held_count(self) -> int:
        """Requests that the link still has to do with."""
        return len(self._socket.held)

    async def run(self) -> NoReturn:
        """Sends for ever; when it is cancelled, what is unconfirmed is put back and the rest let go."""
        runtime, repeating = self.runtime, Repeating(log)
        register = functools.partial(self.sockets.register, self._socket)
        while not await one_pass(self.name, repeating, runtime.trouble, register):  # noqa: ASYNC110 - a store rings no bell
            await trio.sleep(POLL_S)
        async with self.sockets.serving(self._socket):
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(self.wire.parallel_count):
                        nursery.start_soon(self._send_all)
                    nursery.start_soon(self._let_go_old)
                    await trio.sleep_forever()
            finally:
                with trio.move_on_after(CLOSE_S, shield=True):
                    await self._let_go_rest()

    # ── sending ──

    async def _send_all(self) -> NoReturn:
        while True:
            requests = [one for one in await self._socket.take(self.wire.batch_count) if self._wanted(one)]
            if requests and not await self._send(requests):
                await trio.sleep(self._pause_s())

    def _wanted(self, request: Outgoing) -> bool:
        """Whether it is still to be sent: it was not answered, called off or taken back meanwhile."""
        record = request.record
        return record.interaction_id in self._socket.held and record.deadline_epoch_ms > self.runtime.now()

    async def _send(self, requests: Sequence[Outgoing]) -> bool:
        """Sends some, and notes what became of each; False when some have to be tried again."""
        outcomes: Sequence[Outcome]
        try:
            outcomes = await self.wire.send(requests)
        except TransportError as error:
            outcomes = [Postponed(error.message)] * len(requests)
        again: list[Outgoing] = []
        refused: list[tuple[Outgoing, str]] = []
        reason = ""
        # No checkpoint in here: what the broker has confirmed must not be forgotten.
        for request, outcome in zip(requests, outcomes, strict=True):
            match outcome:
                case Confirmed():
                    self._socket.confirm(request.record)
                case Postponed(message):
                    again.append(request)
                    reason = message
                case Unsendable(message):
                    refused.append((request, message))
        self._socket.freed.ring()
        for request, message in refused:
            if (failure := await self._refuse(request.record, message)) is not None:
                again.append(request)
                reason = failure
        if not again:
            self._worked()
            return True
        self._socket.outbox.extendleft(reversed(again))
        self._socket.filled.ring()
        self._failed_count += 1
        self.runtime.trouble[self.name] = reason
        self._failures.failed("requests_not_sent", link=self.name, count=len(again), message=reason)
        return False

    def _worked(self) -> None:
        if self._failed_count:
            self._failed_count = 0
            self.runtime.trouble.pop(self.name, None)
            self._failures.worked("requests_go_out_again", link=self.name)

    def _pause_s(self) -> float:
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failed_count - 1, 10))
        return longest_s * (0.5 + self.runtime.random.random() / 2)

    async def _refuse(self, record: InteractionRecord, message: str) -> str | None:
        """Ends an interaction that can never be sent; why that did not work, or None."""
        try:
            await self.give_up(record, message)
        except StoreError as error:
            return error.message
        log.error(
            "request_given_up",
            link=self.name,
            interaction_id=record.interaction_id,
            execution_id=record.execution_id,
            message=message,
        )
        return None

    # ── letting go ──

    async def _let_go_old(self) -> NoReturn:
        """Lets go what was confirmed long enough ago, for ever."""
        socket, repeating = self._socket, Repeating(log)
        name = f"let_go_{self.name}"
        while True:
            freed = socket.freed.ticket()
            page = socket.unanswered(trio.current_time() - self.let_go_ms / 1000)
            if page:
                if await one_pass(name, repeating, self.runtime.trouble, functools.partial(self._let_go, page)) is None:
                    await trio.sleep(POLL_S)
            elif self.let_go_ms:
                await trio.sleep(self.let_go_ms / 5000)
            else:
                await freed.wait()

    async def _let_go(self, page: Sequence[InteractionRecord]) -> int:
        runtime = self.runtime
        count = await runtime.store.transact(
            sockets.let_go_reads(page), functools.partial(sockets.let_go, held=page, now=runtime.now())
        )
        for record in page:
            self._socket.answered(record.interaction_id)
        return count

    async def _let_go_rest(self) -> None:
        """At the end: everything that is confirmed."""
        await self._socket.close()
        try:
            while page := self._socket.unanswered(float("inf")):
                await self._let_go(page)
        except StoreError as error:
            # They come back with the lease, and are sent once more.
            log.warning("not_let_go", link=self.name, count=len(self._socket.confirmed), message=error.message)
