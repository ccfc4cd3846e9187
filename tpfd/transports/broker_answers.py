"""Takes in what a broker brings: every message is admitted, or kept as unreadable, before it counts as dealt with.

A message that cannot be used never stops the next ones: it goes to the dead letters, with its bytes, its place and the
reason. One that cannot be dealt with *now*, because the store (or the dead letters) cannot be reached, is tried again
and again; it holds its place meanwhile, and when all places are held nothing more is received.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio
from attrs import define, field

from tpfd.bell import Bell
from tpfd.boundaries import contained, one_pass
from tpfd.core.deadletter import UnreadableAnswer
from tpfd.core.failures import Failure
from tpfd.errors import AdmissionError, OutsideError, ProblemsError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime
from tpfd.transports.broker import AnswerSource, Inbound
from tpfd.transports.broker_envelope import BrokerAnswer, read_answer

log = get_logger("tpfd.answers")

IN_HAND_COUNT = 256
"""Messages of one source that are being admitted at once: as many as the store commits together."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
KEPT_BYTES = 128 * 2**10
"""Of an unreadable message; that much fits into any provider of dead letters."""
ANSWERED = frozenset({"not_found", "timed_out", "late_completion", "conflicting_completion", "contract_changed"})
"""Refusals after which the body is kept with its execution, or as an orphan: there is nothing left to do."""
UNREADABLE = "unreadable"

Complete = Callable[[BrokerAnswer], Awaitable[object]]
"""Admits an answer. Raises TpfdError when it is not admitted."""
Bury = Callable[[UnreadableAnswer], Awaitable[None]]
"""Keeps what could not be read. Raises DispatchError."""


@define(eq=False, kw_only=True)
class AnswerConsumer:
    """Reads one source for ever."""

    runtime: Runtime
    source: AnswerSource
    complete: Complete
    bury: Bury
    _in_hand_count: int = field(default=0, init=False)
    _waiting_count: int = field(default=0, init=False)
    _freed: Bell = field(factory=Bell, init=False)
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)

    async def run(self) -> NoReturn:
        """Receives and admits for ever.

        **Cancellation**: what is in hand comes again; what was admitted meanwhile is then a duplicate.
        """
        repeating = Repeating(log)
        failed_count = 0
        async with self.source.opened(), trio.open_nursery() as hands:
            while True:
                await self._room()
                take = functools.partial(self._receive, hands)
                taken = await one_pass(f"receive_{self.source.name}", repeating, self.runtime.trouble, take)
                failed_count = 0 if taken is not None else failed_count + 1
                if failed_count:
                    await trio.sleep(self._pause_s(failed_count))

    async def _room(self) -> None:
        while self._in_hand_count >= IN_HAND_COUNT:
            await self._freed.ticket().wait()

    async def _receive(self, hands: trio.Nursery) -> int:
        """One receive; the number of messages taken in hand."""
        batch = await self.source.receive(IN_HAND_COUNT - self._in_hand_count)
        self._in_hand_count += len(batch)
        for inbound in batch:
            hands.start_soon(self._deal_with, inbound)
        return len(batch)

    async def _deal_with(self, inbound: Inbound) -> None:
        """Admits or keeps one message, however long that takes."""
        tried_count = 0
        while (failure := await self._tried(inbound)) is not None:
            tried_count += 1
            if tried_count == 1:
                self._waiting_count += 1
            self.runtime.trouble[self._trouble] = failure.message
            self._repeating.failed("answer_waits", source=self.source.name, code=failure.code, message=failure.message)
            await trio.sleep(self._pause_s(tried_count))
        self.source.done(inbound)
        if tried_count:
            self._waiting_count -= 1
            if not self._waiting_count:
                self.runtime.trouble.pop(self._trouble, None)
                self._repeating.worked("answers_flow_again", source=self.source.name)
        self._in_hand_count -= 1
        self._freed.ring()

    async def _tried(self, inbound: Inbound) -> Failure | None:
        """One try; why it has to be repeated, or None when the message is dealt with."""
        try:
            answer = read_answer(inbound.body, self.runtime.settings.max_payload_bytes)
        except (AdmissionError, ProblemsError) as error:
            return await self._kept(inbound, error.code, error.message)
        outcome = await contained(functools.partial(self.complete, answer))
        if not isinstance(outcome, Failure):
            return None
        if isinstance(outcome.error, OutsideError) and outcome.retryable:
            return outcome
        if outcome.code in ANSWERED:
            log.info("answer_not_taken", position=inbound.position, code=outcome.code, message=outcome.message)
            return None
        return await self._kept(inbound, outcome.code, outcome.message)

    async def _kept(self, inbound: Inbound, reason: str, message: str) -> Failure | None:
        body = inbound.body or b""
        letter = UnreadableAnswer(
            envelope_id=f"{self.source.name}:{inbound.position}",
            transport=self.source.name,
            position=inbound.position,
            reason=reason,
            message=message,
            size_bytes=len(body),
            body_base64=base64.b64encode(body[:KEPT_BYTES]).decode(),
            received_at_epoch_ms=self.runtime.now(),
        )
        outcome = await contained(functools.partial(self.bury, letter))
        if isinstance(outcome, Failure):
            return outcome
        self.runtime.metrics.completions_dropped.add(UNREADABLE)
        log.warning("answer_unreadable", source=self.source.name, position=inbound.position, code=reason,
                    message=message, size_bytes=len(body))  # fmt: skip
        return None

    @property
    def _trouble(self) -> str:
        return f"admit_{self.source.name}"

    def _pause_s(self, tried_count: int) -> float:
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tried_count - 1, 10))
        return longest_s * (0.5 + self.runtime.random.random() / 2)
