"""Work over hints, where processes on several hosts share a store: who made something due tells the others.

Every hint takes the same road, also one for work that this process could do itself: so work spreads over the hosts, and
a message is in flight for every transition until it is committed. Hints decide only how soon something happens. What is
lost, never sent or too far ahead is found by the claim loop's look at the due index, which is then a sweep: rare, and
only for what hints have left lying.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NoReturn

import trio
from attrs import define, field

from tpfd.bell import Bell
from tpfd.boundaries import one_pass
from tpfd.core.hinting import Hint, Hinted, claim_hinted, delay_ms, hint_reads
from tpfd.core.records import ExecutionRecord
from tpfd.dispatch.protocol import Delivery, WorkQueue
from tpfd.engine.claims import ClaimLoop
from tpfd.errors import DispatchError, StoreError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

log = get_logger("tpfd.hints")

MAX_WAITING = 10_000
"""Hints that wait to be sent; each is some 300 bytes. What is over that is left to the sweep."""
SEND_PAGE = 40
LAST_WORD_S = 3.0
"""Time that hints have which are still to be sent at the end."""
RECEIVE_LIMIT = 10
BACK_OFF_S = 30.0
STORE_AWAY_MS = 5_000
"""After so long somebody looks again at hints that could not be followed because the store was away."""


@define(eq=False, kw_only=True)
class HintSender:
    """Sends hints of what this process makes due."""

    runtime: Runtime
    queue: WorkQueue
    _waiting: dict[Hint, int] = field(factory=dict, init=False)  # with the epoch ms at which it is due
    _bell: Bell = field(factory=Bell, init=False)
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)
    _overflow: Repeating = field(factory=lambda: Repeating(log), init=False)

    def offer(self, record: ExecutionRecord) -> None:
        """Takes note of an execution as it was just committed. Never waits, never fails."""
        now = self.runtime.now()
        delay = delay_ms(record, now)
        if delay is None:
            return
        hint = Hint(record.tenant_id, record.execution_id)
        if delay > self.queue.longest_delay_ms:
            self.runtime.metrics.work_hints.add("too_far_ahead")
        elif len(self._waiting) >= MAX_WAITING and hint not in self._waiting:
            self.runtime.metrics.work_hints.add("overflow")
            self._overflow.failed("work_hints_overflow", waiting=MAX_WAITING)
        else:
            self._waiting[hint] = now + delay
            self._bell.ring()

    async def run(self) -> NoReturn:
        """Sends for ever.

        **Cancellation**: what still waits is sent within LAST_WORD_S.
        """
        failures = 0
        try:
            while True:
                ticket = self._bell.ticket()
                if not self._waiting:
                    await ticket.wait()
                failures = 0 if await self._pass() else failures + 1
                if failures:
                    await trio.sleep(min(BACK_OFF_S, 0.25 * 2**failures))
        finally:
            with trio.move_on_after(LAST_WORD_S, shield=True):
                while self._waiting and await self._pass():
                    pass

    async def _pass(self) -> bool:
        """Sends a page; whether that worked.

        What could not be sent waits on. The sweep finds earlier what it was about, but only a send that works shows
        that the queue is back: a process that is not ready gets no new work that it could try with.
        """
        page = {hint: self._waiting.pop(hint) for hint in list(islice(self._waiting, SEND_PAGE))}
        send = functools.partial(self._send, page)
        sent: bool | None = False
        try:
            sent = await one_pass("work_hints", self._repeating, self.runtime.trouble, send)
        finally:
            if not sent:  # also when it was cancelled: there is a last word
                self._waiting = {**page, **self._waiting}
        return bool(sent)

    async def _send(self, page: Mapping[Hint, int]) -> bool:
        now = self.runtime.now()
        reasons = await self.queue.send([(hint, max(0, due - now)) for hint, due in page.items()])
        self.runtime.metrics.work_hints.add("sent", count=len(page) - len(reasons))
        self.runtime.metrics.work_hints.add("unsent", count=len(reasons))
        if reasons:
            raise DispatchError(f"{len(reasons)} of {len(page)} work hints not sent, left to the sweep: {reasons[0]}")
        return True


@define(eq=False, kw_only=True)
class HintPoller:
    """Receives hints, as many as there are free places, and has the claim loop's places filled with what they name.

    Attributes:
        draining: set when no more work is to be taken.
    """

    runtime: Runtime
    queue: WorkQueue
    claims: ClaimLoop
    draining: trio.Event
    _ended: trio.Event = field(factory=trio.Event, init=False)
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)

    async def idle(self) -> None:
        """Waits until nothing is being received; after a drain began."""
        await self._ended.wait()

    async def run(self, work: trio.Nursery) -> None:
        """Receives until the drain. Runs in `work` itself: a receive that is open then is waited out, and handed back.

        Args:
            work: runs the attempts.
        """
        failures = 0
        try:
            while not self.draining.is_set():
                await self.claims.free()
                taken = await one_pass(
                    "work_queue", self._repeating, self.runtime.trouble, functools.partial(self._pass, work)
                )
                failures = 0 if taken is not None else failures + 1
                if failures:
                    with trio.move_on_after(min(BACK_OFF_S, 0.25 * 2**failures)):
                        await self.draining.wait()
        finally:
            self._ended.set()

    async def _pass(self, work: trio.Nursery) -> int:
        """One receive with what it leads to; the number of executions claimed."""
        deliveries = await self.queue.receive(min(RECEIVE_LIMIT, self.claims.free_count))
        if self.draining.is_set():
            for delivery in deliveries:
                self.queue.show(delivery, 0)
            return 0
        return await self._follow(work, deliveries)

    async def _follow(self, work: trio.Nursery, deliveries: Sequence[Delivery]) -> int:
        by_hint: dict[Hint, Delivery] = {}
        for delivery in deliveries:
            if by_hint.setdefault(delivery.hint, delivery) is not delivery:
                self._settle(delivery, "repeated")
        # The claim loop may have filled places while we waited.
        hints = list(by_hint)[: self.claims.free_count]
        for hint in list(by_hint)[len(hints) :]:
            self.queue.show(by_hint[hint], 0)
        if not hints:
            return 0
        sent_at = trio.current_time()
        with self.claims.keeping(len(hints)):
            try:
                done = await self._claim(hints)
            except StoreError:
                for hint in hints:
                    self.queue.show(by_hint[hint], STORE_AWAY_MS)
                raise
            for record in done.claimed.records:
                delivery = by_hint.pop(Hint(record.tenant_id, record.execution_id))
                self.runtime.metrics.work_hints.add("claimed")
                self.claims.start(work, record, sent_at, functools.partial(self._attempt, delivery))
        for record in done.claimed.ended:
            self.claims.tell_ended(record)
        for hint in hints:
            if (found := by_hint.get(hint)) is None:
                continue
            if (later_ms := done.later_ms.get(hint)) is not None:
                self.runtime.metrics.work_hints.add("later")
                self.queue.show(found, later_ms)
            else:
                self._settle(found, "nothing_to_do")
        return len(done.claimed.records)

    async def _claim(self, hints: Sequence[Hint]) -> Hinted:
        runtime = self.runtime
        return await runtime.store.transact(
            hint_reads(hints),
            functools.partial(
                claim_hinted,
                hints=hints,
                contracts=runtime.contracts,
                owner=runtime.node,
                now=runtime.now(),
                policy=runtime.policy,
            ),
        )

    async def _attempt(self, delivery: Delivery, record: ExecutionRecord, sent_at: float) -> None:
        """Runs an attempt with its hint in flight: a process that dies in it leaves the hint to come back."""
        await self.claims.run_attempt(record, sent_at)
        self._settle(delivery, "done")

    def _settle(self, delivery: Delivery, outcome: str) -> None:
        self.runtime.metrics.work_hints.add(outcome)
        self.queue.done(delivery)
