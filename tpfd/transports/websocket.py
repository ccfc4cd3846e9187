"""Provider sockets: requests are pushed to attached providers, as many as they have credit for.

A socket has a number of places, its credit. A place is taken when an interaction is delivered to it, durably, before
the request is sent; it is free again when that interaction is over. There are two ways to a place: a live session
delivers a new item to a socket of its own process with the very write that creates it, and a *pump* per socket takes
waiting interactions of its steps out of the store's queue, also those that another process created.

A delivery ends with its socket. A socket closed in good order puts back what it held; the row of one that died expires
and whoever sweeps it does the same.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import trio
from attrs import define, field

from tpfd import payloads
from tpfd.bell import Bell, wait_for
from tpfd.boundaries import one_pass
from tpfd.core import sockets
from tpfd.core.awaits import question_of
from tpfd.core.budget import Place
from tpfd.core.kinds import INTERACTION, INTERACTION_HELD, SOCKET, queue_partition
from tpfd.core.records import InteractionId, InteractionRecord, JsonText, SocketRecord, TenantId
from tpfd.core.sockets import DELIVERY_PAGE, Delivered
from tpfd.core.transact import Read
from tpfd.errors import StoreError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.permits import PermitPool

log = get_logger("tpfd.sockets")

MAX_CREDIT = 10_000
POLL_S = 1.0
"""How often a pump looks into the queue without being told."""
FRAME_COUNT = 256
"""Requests that go out together."""
CLOSE_S = 5.0
"""Time to put back what a closing socket held; after that its lease does it."""


@define(eq=False)
class Socket:
    """One attached provider.

    Attributes:
        credit: requests that may be unanswered.
        held: interactions it was given, without an answer so far.
        reserved_count: places promised to requests that are being written.
        closing: it takes nothing more.
    """

    record: SocketRecord
    step_ids: tuple[str, ...]
    credit: int
    held: set[InteractionId] = field(factory=set)
    reserved_count: int = 0
    closing: bool = False
    outbox: deque[bytes] = field(factory=deque)
    filled: Bell = field(factory=Bell)
    freed: Bell = field(factory=Bell)

    @property
    def socket_id(self) -> str:
        return self.record.socket_id

    @property
    def free_count(self) -> int:
        return 0 if self.closing else self.credit - len(self.held) - self.reserved_count

    def add_credit(self, count: int) -> None:
        """Raises the number of requests that may be unanswered, up to MAX_CREDIT."""
        self.credit = min(self.credit + max(count, 0), MAX_CREDIT)
        self.freed.ring()

    async def next_requests(self) -> list[bytes]:
        """Waits for requests; what is there, at most FRAME_COUNT."""
        while not self.outbox:
            await self.filled.ticket().wait()
        return [self.outbox.popleft() for _ in range(min(len(self.outbox), FRAME_COUNT))]

    def answered(self, interaction_id: str) -> None:
        """The provider is done with it: its place is free."""
        if InteractionId(interaction_id) in self.held:
            self.held.discard(InteractionId(interaction_id))
            self.freed.ring()

    async def close(self) -> None:
        """Takes nothing more and waits until nothing is being written for it any more."""
        self.closing = True
        while self.reserved_count:
            await self.freed.ticket().wait()

    def push(self, record: InteractionRecord, envelope: bytes) -> None:
        """Puts a delivered request into its reserved place. The outbox never exceeds the credit."""
        self.reserved_count -= 1
        if self.closing:
            self.freed.ring()
        self.held.add(record.interaction_id)
        self.outbox.append(envelope)
        self.filled.ring()


@define(eq=False, kw_only=True)
class ProviderSockets:
    """All provider sockets of this process."""

    runtime: Runtime
    envelopes: EnvelopeWriter
    _sockets: dict[str, Socket] = field(factory=dict, init=False)
    _pools: dict[tuple[str, str], PermitPool | None] = field(factory=dict, init=False)
    _turn: int = field(default=0, init=False)

    # ── places, for live sessions ──

    def reserve(self, tenant_id: TenantId, pipeline_id: str, step_id: str, count: int) -> list[Place]:
        """Takes up to `count` free places, in turn over the sockets that serve the step."""
        fitting = [socket for socket in self._sockets.values() if self._serves(socket, tenant_id, pipeline_id, step_id)]
        free = sum(max(socket.free_count, 0) for socket in fitting)
        pool = self._pool(pipeline_id, step_id)
        slots: Sequence[int | None] = [None] * min(count, free) if pool is None else pool.offer(min(count, free))
        places: list[Place] = []
        self._turn += 1
        while len(places) < len(slots):
            fitting = [socket for socket in fitting if socket.free_count > 0]
            for socket in fitting[self._turn % len(fitting) :] + fitting[: self._turn % len(fitting)]:
                if len(places) < len(slots):
                    socket.reserved_count += 1
                    places.append(Place(socket.socket_id, slots[len(places)]))
        return places

    def release(self, pipeline_id: str, step_id: str, places: Sequence[Place], occupied: frozenset[int]) -> None:
        """Gives reserved places back."""
        for place in places:
            if (socket := self._sockets.get(place.socket_id)) is not None:
                socket.reserved_count -= 1
                socket.freed.ring()
        self._give_back(pipeline_id, step_id, [place.slot for place in places], occupied)

    def _give_back(self, pipeline_id: str, step_id: str, slots: Sequence[int | None], occupied: frozenset[int]) -> bool:
        """Gives slots of a budget back; True when there was none before."""
        free = [slot for slot in slots if slot is not None and slot not in occupied]
        pool = self._pool(pipeline_id, step_id) if free else None
        if pool is None:
            return False
        first_again = [pool.give_back(slot) for slot in free]
        return any(first_again)

    def _pool(self, pipeline_id: str, step_id: str) -> PermitPool | None:
        """The budget of a step; None: it has none."""
        if (pipeline_id, step_id) not in self._pools:
            program = self.runtime.programs.get(pipeline_id)
            if program is None:
                # Another process runs this pipeline and keeps its budget.
                return None
            step = program.pipeline.await_step(step_id)
            scope = program.terms[step.index].budget_scope
            size = program.budget_size(step)
            self._pools[pipeline_id, step_id] = None if scope is None else PermitPool(self.runtime, scope, size)
        return self._pools[pipeline_id, step_id]

    def send(self, record: InteractionRecord, request: JsonText) -> None:
        """Sends a delivered interaction into its reserved place, if its socket still lives."""
        socket = self._sockets.get(record.delivery or "")
        if socket is not None:
            socket.push(record, self._envelope(record, request))

    def settled(self, record: InteractionRecord) -> None:
        """An interaction is over, whoever answered it: its slot is free, and its place at a socket of ours."""
        if self._give_back(record.pipeline_id, record.step_id, [record.permit_slot], frozenset()):
            # Only now: if slots that were merely not used rang, a pump that can use none would wake itself for ever.
            self.runtime.bells.queue.ring()
        for socket in self._sockets.values():
            socket.answered(record.interaction_id)

    def _serves(self, socket: Socket, tenant_id: TenantId, pipeline_id: str, step_id: str) -> bool:
        record = socket.record
        return record.tenant_id == tenant_id and record.pipeline_id == pipeline_id and step_id in socket.step_ids

    def _envelope(self, record: InteractionRecord, request: JsonText) -> bytes:
        return self.envelopes.request(record, request, self.runtime.now(), {"type": "request"})

    @property
    def socket_count(self) -> int:
        return len(self._sockets)

    # ── one socket's life ──

    @asynccontextmanager
    async def attach(
        self, tenant_id: TenantId, pipeline_id: str, step_ids: Sequence[str], credit: int
    ) -> AsyncIterator[Socket]:
        """A provider's place for as long as the block lasts.

        Raises:
            StoreError: its row could not be written.
        """
        runtime = self.runtime
        record = SocketRecord(
            tenant_id=tenant_id,
            socket_id=f"ws-{runtime.random.getrandbits(96):024x}",
            pipeline_id=pipeline_id,
            node=runtime.node,
            version=0,
            expires_epoch_ms=0,
        )
        socket = Socket(record, tuple(step_ids), min(max(credit, 0), MAX_CREDIT))
        await self._renew([socket])
        self._sockets[record.socket_id] = socket
        log.info(
            "provider_attached", socket=record.socket_id, pipeline=pipeline_id, steps=list(step_ids), credit=credit
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, socket)
                yield socket
                nursery.cancel_scope.cancel("the socket is closed")
        finally:
            with trio.move_on_after(CLOSE_S, shield=True) as scope:
                await self._close(socket)
            del self._sockets[record.socket_id]
            if scope.cancelled_caught:
                log.warning("socket_close_slow", socket=record.socket_id, held=len(socket.held))

    async def _close(self, socket: Socket) -> None:
        # A request that is written for it after its row is gone would be in nobody's hands.
        await socket.close()
        try:
            count = await take_back(self.runtime, socket.record, closing=True)
        except StoreError as error:
            # Its lease runs out and the sweep does it.
            log.warning("socket_close_failed", socket=socket.socket_id, message=error.message)
            return
        log.info("provider_detached", socket=socket.socket_id, put_back=count)

    async def _pump(self, socket: Socket) -> NoReturn:
        repeating = Repeating(log)
        while True:
            queue, freed = self.runtime.bells.queue.ticket(), socket.freed.ticket()
            if socket.free_count <= 0:
                await freed.wait()
                continue
            if not await one_pass("pump", repeating, self.runtime.trouble, functools.partial(self._take, socket)):
                await wait_for(queue, POLL_S)

    async def _take(self, socket: Socket) -> bool:
        """Takes waiting requests into free places; True when there may be more."""
        more = False
        for step_id in socket.step_ids:
            limit = min(socket.free_count, DELIVERY_PAGE)
            if limit <= 0:
                return False
            partition = queue_partition(socket.record.tenant_id, socket.record.pipeline_id, step_id)
            page = await self.runtime.store.query(INTERACTION_HELD, partition, limit=limit)
            if page.records:
                taken = await self._deliver(socket, step_id, page.records)
                more = more or (taken > 0 and len(page.records) == limit)
        return more

    async def _deliver(self, socket: Socket, step_id: str, waiting: Sequence[InteractionRecord]) -> int:
        """Delivers what still waits, as far as the step's budget goes; the number delivered."""
        runtime, pipeline_id = self.runtime, socket.record.pipeline_id
        pool = self._pool(pipeline_id, step_id)
        # One that was out before keeps its slot and needs no other.
        kept = [one for one in waiting if one.permit_slot is not None]
        if pool is not None:
            if pool.free_count == 0:
                await pool.look()
            waiting = [*kept, *[one for one in waiting if one.permit_slot is None][: pool.free_count]]
            if not waiting:
                return 0
        # Before the delivery: between that and the push there must be no way to be cancelled.
        texts = {
            one.interaction_id: await payloads.text_of(runtime, one.tenant_id, question_of(one)) for one in waiting
        }
        slots = [] if pool is None else pool.offer(len(waiting) - len(kept))
        places = [Place(socket.socket_id, slot) for slot in (*[None] * (len(waiting) - len(slots)), *slots)]
        socket.reserved_count += len(waiting)
        delivered = Delivered(())
        try:
            scope = None if pool is None else pool.scope
            delivered = await runtime.store.transact(
                sockets.deliver_reads(waiting, scope, places),
                functools.partial(sockets.deliver, interactions=waiting, scope=scope, places=places, now=runtime.now()),
            )
        finally:
            socket.reserved_count -= len(waiting) - len(delivered.taken)
            used = {record.permit_slot for record in delivered.taken}
            unused = [slot for slot in slots if slot not in used]
            self._give_back(pipeline_id, step_id, unused, delivered.occupied)
        metrics, step, now = runtime.metrics, (pipeline_id, step_id), runtime.now()
        for interaction in delivered.taken:
            metrics.permit_wait_s.observe((now - interaction.created_epoch_ms) / 1000, *step)
            metrics.permit_outcomes.add(*step, "acquired" if interaction.send_count == 1 else "reused")
            socket.push(interaction, self._envelope(interaction, texts[interaction.interaction_id]))
        return len(delivered.taken)

    # ── leases of all sockets ──

    async def run(self) -> NoReturn:
        """Renews the rows of all sockets and frees places of what was answered elsewhere, for ever."""
        repeating = Repeating(log)
        while True:
            await trio.sleep(self.runtime.policy.lease_ms / 3000)
            await one_pass("socket_renewal", repeating, self.runtime.trouble, self._renew_all)

    async def _renew_all(self) -> None:
        alive = [socket for socket in self._sockets.values() if not socket.closing]
        for first in range(0, len(alive), DELIVERY_PAGE):
            await self._renew(alive[first : first + DELIVERY_PAGE])
        for socket in alive:
            await self._reconcile(socket)

    async def _renew(self, alive: Sequence[Socket]) -> None:
        runtime = self.runtime
        records = [socket.record for socket in alive]
        await runtime.store.transact(
            [Read(SOCKET.key_of(record)) for record in records],
            functools.partial(sockets.renew, sockets=records, now=runtime.now(), lease_ms=runtime.policy.lease_ms),
        )

    async def _reconcile(self, socket: Socket) -> None:
        """Frees the places of interactions that are no longer this socket's: answered elsewhere, ended, taken back."""
        held = sorted(socket.held)
        found = await self.runtime.store.get_many([INTERACTION.key(socket.record.tenant_id, name) for name in held])
        for name, record in zip(held, found, strict=True):
            if record is None or record.delivery != socket.socket_id:
                socket.answered(name)


async def take_back(runtime: Runtime, socket: SocketRecord, *, closing: bool) -> int:
    """Puts everything a socket held back into the queue and removes its row.

    Args:
        closing: its own process closes it; else only an expired one is touched.

    Returns:
        Number of interactions that wait again.

    Raises:
        StoreError: the store failed; doing it again is harmless.
    """
    count = 0
    key = SOCKET.key_of(socket)
    while True:
        page = await runtime.store.query(INTERACTION_HELD, socket.socket_id, limit=DELIVERY_PAGE)
        done = await runtime.store.transact(
            [Read(key), *(Read(INTERACTION.key_of(record)) for record in page.records)],
            functools.partial(sockets.take_back, socket=key, held=page.records, now=runtime.now(), closing=closing),
        )
        count += done.count
        if done.over:
            break
    if count:
        runtime.bells.queue.ring()
    return count
