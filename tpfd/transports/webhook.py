"""Webhooks: requests that we send ourselves, one HTTP request for each.

A sender per webhook step pulls waiting requests out of the store's queue, takes them under a dispatch lease, sends them
and notes what became of each: *sent*, *later* (with backoff, not before the other's Retry-After), or *never*, which
fails the execution, or only rejects the item if the step recovers. If this process dies in between, the lease runs out,
the sweep puts the request back into the queue and somebody sends it again, with the same ids. The answer comes to the
HTTP interface like any other completion; it may well be there before the request call returns.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio
from attrs import define, field

from tpfd import payloads
from tpfd.bell import Bell, wait_for
from tpfd.boundaries import one_pass
from tpfd.core import sending
from tpfd.core.awaits import question_of
from tpfd.core.kinds import EXECUTION, INTERACTION, INTERACTION_HELD, send_partition
from tpfd.core.records import ExecutionRecord, InteractionRecord
from tpfd.core.sending import SEND_PAGE
from tpfd.core.transact import Key, Read
from tpfd.errors import StoreError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.webhook_message import WebhookMessage, write_message
from tpfd.transports.webhook_replies import Never, NotNow, Reply, Taken
from tpfd.transports.webhook_target import WebhookTarget

log = get_logger("tpfd.webhook")

POLL_S = 1.0
"""How often a sender looks into the queue without being told."""
MAX_CONCURRENCY = 64
"""Requests of one step that are on their way at once, whatever the step allows."""
LEASE_MARGIN_MS = 5_000
"""Time to note what became of a request, after it has timed out."""
STEADY_COUNT = 20
"""Requests taken in a row after which the other side counts as well again."""

Send = Callable[[WebhookMessage], Awaitable[Reply]]
GiveUp = Callable[[InteractionRecord, str], Awaitable[object]]
"""Ends an interaction that can never be sent, told why. Raises StoreError."""


@define(eq=False, kw_only=True)
class WebhookSender:
    """Sends the requests of one step.

    Attributes:
        concurrency: requests on their way at once.
    """

    runtime: Runtime
    pipeline_id: str
    step_id: str
    target: WebhookTarget
    envelopes: EnvelopeWriter
    send: Send
    give_up: GiveUp
    concurrency: int
    _in_hand_count: int = field(default=0, init=False)
    _steady_count: int = field(default=0, init=False)
    _freed: Bell = field(factory=Bell, init=False)
    _failures: Repeating = field(factory=lambda: Repeating(log), init=False)

    async def run(self, work: trio.Nursery) -> NoReturn:
        """Sends for ever.

        Args:
            work: runs the requests; they outlive this loop. Those that it cancels are left to their lease.
        """
        repeating = Repeating(log)
        take = functools.partial(self._take, work)
        while True:
            queue, freed = self.runtime.bells.queue.ticket(), self._freed.ticket()
            if self._in_hand_count >= self.concurrency:
                await freed.wait()
            elif not await one_pass(f"webhook_{self.step_id}", repeating, self.runtime.trouble, take):
                await wait_for(queue, POLL_S)

    async def idle(self) -> None:
        """Waits until no request is on its way."""
        while self._in_hand_count:
            await self._freed.ticket().wait()

    async def _take(self, work: trio.Nursery) -> int:
        """Takes as many waiting requests as there are places and starts them; how many."""
        runtime = self.runtime
        limit = min(self.concurrency - self._in_hand_count, SEND_PAGE)
        queue = send_partition(self.pipeline_id, runtime.contracts[self.pipeline_id], self.step_id)
        page = await runtime.store.query(INTERACTION_HELD, queue, limit=limit)
        if not page.records:
            return 0
        # Before they are taken: what is cancelled in between would have to wait for its lease.
        keys = list(dict.fromkeys(_parent_key(record) for record in page.records))
        parents = await runtime.store.get_many(keys)
        traces = {key: one.trace_parent for key, one in zip(keys, parents, strict=True) if one is not None}
        taken = await runtime.store.transact(
            sending.take_reads(page.records),
            functools.partial(
                sending.take,
                interactions=page.records,
                lease_ms=self.target.timeout_ms + LEASE_MARGIN_MS,
                now=runtime.now(),
            ),
        )
        firsts = sum(record.send_count == 1 for record in taken)
        runtime.metrics.interactions_dispatched.add(self.pipeline_id, self.step_id, count=firsts)
        for record in taken:
            self._in_hand_count += 1
            work.start_soon(self._deliver, record, traces.get(_parent_key(record)))
        return len(taken)

    async def _deliver(self, record: InteractionRecord, trace_parent: str | None) -> None:
        try:
            reply = await self.send(await self._message(record, trace_parent))
            await self._note(record, reply)
        except StoreError as error:
            # Its lease brings it back; a request that was taken is then sent twice, with the same idempotency key.
            log.error("webhook_not_noted", interaction_id=record.interaction_id, message=error.message)
        finally:
            self._in_hand_count -= 1
            self._freed.ring()

    async def _message(self, record: InteractionRecord, trace_parent: str | None) -> WebhookMessage:
        runtime = self.runtime
        return write_message(
            record,
            await payloads.text_of(runtime, record.tenant_id, question_of(record)),
            self.target,
            self.envelopes,
            nonce=f"{runtime.random.getrandbits(128):032x}",
            trace_parent=trace_parent,
            now_epoch_ms=runtime.now(),
        )

    async def _note(self, record: InteractionRecord, reply: Reply) -> None:
        match reply:
            case Taken():
                await self._sent(record)
            case NotNow(message, floor_ms):
                await self._later(record, message, floor_ms)
            case Never(message):
                log.error(
                    "webhook_given_up",
                    step=self.step_id,
                    interaction_id=record.interaction_id,
                    execution_id=record.execution_id,
                    message=message,
                )
                await self.give_up(record, message)

    async def _sent(self, record: InteractionRecord) -> None:
        runtime = self.runtime
        await runtime.store.transact(
            (Read(INTERACTION.key_of(record)),),
            functools.partial(sending.mark_sent, seen=record, now=runtime.now()),
        )
        self._steady_count += 1
        if self._steady_count == STEADY_COUNT:
            self._failures.worked("webhook_works_again", step=self.step_id)

    async def _later(self, record: InteractionRecord, message: str, floor_ms: int) -> None:
        runtime = self.runtime
        self._steady_count = 0
        wait_ms = runtime.policy.backoff.delay_ms(record.send_count, runtime.random.random(), floor_ms)
        self._failures.failed(
            "webhook_not_taken",
            step=self.step_id,
            interaction_id=record.interaction_id,
            attempt=record.send_count,
            message=message,
            again_in_ms=wait_ms,
        )
        await runtime.store.transact(
            (Read(INTERACTION.key_of(record)),),
            functools.partial(
                sending.mark_later,
                seen=record,
                at_epoch_ms=min(runtime.now() + wait_ms, record.deadline_epoch_ms),
                message=message,
                now=runtime.now(),
            ),
        )
        # The time of the next try may be the nearest that the sweep has to know.
        runtime.bells.sweep.ring()


def _parent_key(record: InteractionRecord) -> Key[ExecutionRecord]:
    return EXECUTION.key(record.tenant_id, record.execution_id)
