"""Sockets: what hands requests to the outside, each with a number of places, its credit.

A socket is a provider that attached to this process, or a link of our own to a broker. A place is taken when an
interaction is delivered to it, durably, before the request is sent; it is free again when that interaction is over.
There are two ways to a place: a live session delivers a new item to a socket of its own process with the very write
that creates it, and a *pump* per socket takes waiting interactions of its steps out of the store's queue, also those
that another process created.

A delivery ends with its socket. A socket closed in good order puts back what it held; the row of one that died expires
and whoever sweeps it does the same.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import trio
from attrs import define, field

from tpfd import payloads
from tpfd.bell import Bell, wait_for
from tpfd.boundaries import one_pass
from tpfd.core import sockets
from tpfd.core.awaits import question_of
from tpfd.core.budget import SHARED, Place, Slot, slot_of
from tpfd.core.kinds import INTERACTION_HELD, SOCKET, queue_partition, send_partition
from tpfd.core.records import InteractionId, InteractionRecord, JsonText, SocketRecord, TenantId
from tpfd.core.sockets import DELIVERY_PAGE, Delivered
from tpfd.core.transact import Read
from tpfd.errors import StoreError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime
from tpfd.transports import held
from tpfd.transports.envelopes import Outgoing
from tpfd.transports.permits import Budgets

log = get_logger("tpfd.sockets")

POLL_S = 1.0
"""How often a pump looks into the queue without being told."""
CLOSE_S = 5.0
"""Time to put back what a closing socket held; after that its lease does it."""

Write = Callable[[InteractionRecord, JsonText], bytes]
"""Makes the envelope of an interaction, given its request."""


@define(eq=False, kw_only=True)
class Socket:
    """One way out.

    Attributes:
        record: its lease; one of tenant `*` serves all tenants.
        credit: requests that may be unanswered.
        held: interactions it was given, without an answer so far, and whose they are.
        unknown: interactions that were its own by their rows, and not by `held`, when that was last looked at.
        reserved_count: places promised to requests that are being written.
        closing: it takes nothing more.
    """

    record: SocketRecord
    step_ids: tuple[str, ...]
    credit: int
    write: Write
    held: dict[InteractionId, TenantId] = field(factory=dict)
    unknown: set[InteractionId] = field(factory=set)
    reserved_count: int = 0
    closing: bool = False
    outbox: deque[Outgoing] = field(factory=deque)
    filled: Bell = field(factory=Bell)
    freed: Bell = field(factory=Bell)

    @property
    def socket_id(self) -> str:
        return self.record.socket_id

    @property
    def free_count(self) -> int:
        return 0 if self.closing else self.credit - len(self.held) - self.reserved_count

    def serves(self, tenant_id: TenantId, pipeline_id: str, step_id: str) -> bool:
        """Whether requests of a step may go out here."""
        record = self.record
        return (
            record.tenant_id in (tenant_id, SHARED) and record.pipeline_id == pipeline_id and step_id in self.step_ids
        )

    def queue(self, contract_version: str, step_id: str) -> str:
        """Partition in which the requests of a step wait for this socket."""
        if self.record.tenant_id == SHARED:
            return send_partition(self.record.pipeline_id, contract_version, step_id)
        return queue_partition(self.record.tenant_id, self.record.pipeline_id, contract_version, step_id)

    async def take(self, limit: int) -> list[Outgoing]:
        """Waits for requests; what is there, at most `limit`."""
        while not self.outbox:
            await self.filled.ticket().wait()
        return [self.outbox.popleft() for _ in range(min(len(self.outbox), limit))]

    def answered(self, interaction_id: str) -> None:
        """The other side is done with it: its place is free."""
        if self.held.pop(InteractionId(interaction_id), None) is not None:
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
        self.held[record.interaction_id] = record.tenant_id
        self.outbox.append(Outgoing(record, envelope))
        self.filled.ring()


@define(eq=False, kw_only=True)
class Sockets:
    """All sockets of this process."""

    runtime: Runtime
    _sockets: dict[str, Socket] = field(factory=dict, init=False)
    _budgets: Budgets = field(init=False)
    _turn: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._budgets = Budgets(self.runtime)

    # ── places, for live sessions ──

    def reserve(self, tenant_id: TenantId, pipeline_id: str, step_id: str, count: int) -> list[Place]:
        """Takes up to `count` free places, in turn over the sockets that serve the step."""
        fitting = [socket for socket in self._sockets.values() if socket.serves(tenant_id, pipeline_id, step_id)]
        free = sum(max(socket.free_count, 0) for socket in fitting)
        pool = self._budgets.pool(pipeline_id, step_id)
        slots: Sequence[Slot | None] = [None] * min(count, free) if pool is None else pool.offer(min(count, free))
        places: list[Place] = []
        self._turn += 1
        while len(places) < len(slots):
            fitting = [socket for socket in fitting if socket.free_count > 0]
            for socket in fitting[self._turn % len(fitting) :] + fitting[: self._turn % len(fitting)]:
                if len(places) < len(slots):
                    socket.reserved_count += 1
                    places.append(Place(SOCKET.key_of(socket.record), slots[len(places)]))
        return places

    def release(self, pipeline_id: str, step_id: str, places: Sequence[Place], occupied: frozenset[int]) -> None:
        """Gives reserved places back."""
        for place in places:
            if (socket := self._sockets.get(place.socket.record_id)) is not None:
                socket.reserved_count -= 1
                socket.freed.ring()
        self._budgets.give_back(pipeline_id, step_id, [place.slot for place in places], occupied)

    def send(self, record: InteractionRecord, request: JsonText) -> None:
        """Sends a delivered interaction into its reserved place, if its socket still lives."""
        socket = self._sockets.get(record.delivery or "")
        if socket is not None:
            socket.push(record, socket.write(record, request))

    def settled(self, record: InteractionRecord) -> None:
        """An interaction is over, whoever answered it: its slot is free, and its place at a socket of ours."""
        if self._budgets.give_back(record.pipeline_id, record.step_id, [slot_of(record)], frozenset()):
            # Only now: if slots that were merely not used rang, a pump that can use none would wake itself for ever.
            self.runtime.bells.queue.ring()
        for socket in self._sockets.values():
            socket.answered(record.interaction_id)

    @property
    def socket_count(self) -> int:
        return len(self._sockets)

    # ── one socket's life ──

    def row(self, tenant_id: TenantId, pipeline_id: str, prefix: str) -> SocketRecord:
        """The row of a socket that is to be opened."""
        runtime = self.runtime
        return SocketRecord(
            tenant_id=tenant_id,
            socket_id=f"{prefix}-{runtime.random.getrandbits(96):024x}",
            pipeline_id=pipeline_id,
            node=runtime.node,
            version=0,
            expires_epoch_ms=0,
        )

    async def register(self, socket: Socket) -> bool:
        """Makes a socket known to all processes, before it is given anything; True.

        Raises:
            StoreError: its row could not be written.
        """
        for step_id in socket.step_ids:
            if (pool := self._budgets.pool(socket.record.pipeline_id, step_id)) is not None:
                await pool.look()
        await self._renew([socket])
        return True

    @asynccontextmanager
    async def serving(self, socket: Socket) -> AsyncIterator[None]:
        """Gives a registered socket requests for as long as the block lasts; what it holds then is put back."""
        self._sockets[socket.socket_id] = socket
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, socket)
                yield
                nursery.cancel_scope.cancel("the socket is closed")
        finally:
            with trio.move_on_after(CLOSE_S, shield=True) as scope:
                await self._close(socket)
            del self._sockets[socket.socket_id]
            if scope.cancelled_caught:
                log.warning("socket_close_slow", socket=socket.socket_id, held=len(socket.held))

    async def _close(self, socket: Socket) -> None:
        # A request that is written for it after its row is gone would be in nobody's hands.
        await socket.close()
        try:
            count = await held.take_back(self.runtime, socket.record, closing=True, known=socket.held)
        except StoreError as error:
            # Its lease runs out and the sweep does it.
            log.warning("socket_close_failed", socket=socket.socket_id, message=error.message)
            return
        log.info("socket_closed", socket=socket.socket_id, put_back=count)

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
        contract_version = self.runtime.contracts[socket.record.pipeline_id]
        for step_id in socket.step_ids:
            limit = min(socket.free_count, DELIVERY_PAGE)
            if limit <= 0:
                return False
            queue = socket.queue(contract_version, step_id)
            page = await self.runtime.store.query(INTERACTION_HELD, queue, limit=limit)
            if page.records:
                taken = await self._deliver(socket, step_id, page.records)
                more = more or (taken > 0 and len(page.records) == limit)
        return more

    async def _deliver(self, socket: Socket, step_id: str, waiting: Sequence[InteractionRecord]) -> int:
        """Delivers what still waits, as far as the step's budget goes; the number delivered."""
        runtime, pipeline_id = self.runtime, socket.record.pipeline_id
        pool = self._budgets.pool(pipeline_id, step_id)
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
        key = SOCKET.key_of(socket.record)
        places = [Place(key, slot) for slot in (*[None] * (len(waiting) - len(slots)), *slots)]
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
            unused = [slot for slot in slots if slot.number not in used]
            self._budgets.give_back(pipeline_id, step_id, unused, delivered.occupied)
        metrics, step, now = runtime.metrics, (pipeline_id, step_id), runtime.now()
        for interaction in delivered.taken:
            metrics.permit_wait_s.observe((now - interaction.created_epoch_ms) / 1000, *step)
            metrics.permit_outcomes.add(*step, "acquired" if interaction.send_count == 1 else "reused")
            self._count_first(interaction)
            socket.push(interaction, socket.write(interaction, texts[interaction.interaction_id]))
        return len(delivered.taken)

    def _count_first(self, record: InteractionRecord) -> None:
        """Counts a request that goes out, unless it has been out before."""
        if record.send_count == 1:
            self.runtime.metrics.interactions_dispatched.add(record.pipeline_id, record.step_id)

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
        """Makes what this process knows of a socket agree with the rows.

        Frees the places of interactions that are no longer this socket's (answered elsewhere, ended, taken back), and
        sends what nobody here knows of: it was given to the socket by a store call whose answer was lost.
        """
        runtime, row = self.runtime, socket.record
        listed = await held.listed(runtime, row)
        unlisted = {name: tenant for name, tenant in socket.held.items() if name not in listed}
        kept = {record.interaction_id for record in await held.still_held(runtime, row, unlisted)}
        for name in unlisted:
            if name not in kept:
                socket.answered(name)
        # What is unknown for the first time may be on its way into the outbox right now.
        unknown = listed.keys() - socket.held.keys()
        forgotten, socket.unknown = sorted(unknown & socket.unknown), unknown
        room = {name: listed[name] for name in forgotten[: max(socket.free_count, 0)]}
        for record in await held.still_held(runtime, row, room):
            text = await payloads.text_of(runtime, record.tenant_id, question_of(record))
            if socket.free_count > 0 and record.interaction_id not in socket.held:
                log.warning("request_was_lost", socket=socket.socket_id, interaction_id=record.interaction_id)
                self._count_first(record)
                socket.reserved_count += 1
                socket.push(record, socket.write(record, text))
