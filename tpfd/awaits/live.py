"""The live await session: a stage that asks the outside about each item and hands the answers on.

Three tasks share a ``LiveSession``. *Ask* takes places, opens interactions page by page and sends them; *hand on* emits
answers downstream and frees places; *look* reads what was answered through other processes. The window paces the
source by completions, so memory does not depend on its length.

Sessions decide nothing. An answer is durable before the session hears of it; if the process dies, the next attempt
finds every answer in its row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import trio
from attrs import define

from tpfd import payloads
from tpfd.awaits.ports import Outlet
from tpfd.awaits.sessions import LiveSession, Sessions
from tpfd.bell import wait_for
from tpfd.codec.digests import digest
from tpfd.core import dispatching, ids
from tpfd.core.awaits import AwaitTerms, Request, answer_of, was_rejected
from tpfd.core.budget import Place
from tpfd.core.dispatching import DISPATCH_PAGE, Opened, OpenedItem, OpenedItems
from tpfd.core.execution import Refused
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import (
    ExecutionRecord,
    InteractionRecord,
    InteractionStatus,
    JsonText,
    Payload,
    UnitId,
    UnitRecord,
)
from tpfd.core.session import Window
from tpfd.errors import LostLease, NonRetryableError
from tpfd.items import Item, Receive, Send, with_waiting
from tpfd.program import Program
from tpfd.runtime import Runtime

OPENING_MAX = 4
"""Pages of interactions that are opened at a time."""
LOOK_PAUSE_S = 0.1
"""Shortest pause between two looks, however often other processes commit."""


@define(eq=False, kw_only=True)
class LiveAwaits:
    """Runs stream awaits for the attempts of this process."""

    runtime: Runtime
    sessions: Sessions
    outlet: Outlet

    async def run(self, record: ExecutionRecord, terms: AwaitTerms, receive: Receive, send: Send) -> int | None:
        """One live session; see ``tpfd.engine.ports.LiveAwait``."""
        program = self.runtime.program(record.pipeline_id)
        unit = await self._open_unit(record, terms)
        window = Window(program.concurrency(program.step(terms.step_index)))
        session = LiveSession(unit.unit_id, record.redrive_count, window)
        self.sessions.open(session)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask, session, record, terms, program, receive)
                nursery.start_soon(self._look, session)
                demoted = await self._hand_on(session, program, send)
                nursery.cancel_scope.cancel("the session is over")
        finally:
            self.sessions.close(session)
        if demoted is None:
            metrics, step = self.runtime.metrics, (record.pipeline_id, terms.step_id)
            metrics.units_terminal.add(*step, "COMPLETED")
            metrics.unit_duration_s.observe((self.runtime.now() - unit.created_epoch_ms) / 1000, *step)
        return demoted

    async def ask_all(self, record: ExecutionRecord, terms: AwaitTerms, receive: Receive) -> int:
        """Asks about every item; see ``tpfd.engine.ports.LiveAwait``."""
        program = self.runtime.program(record.pipeline_id)
        unit = await self._open_unit(record, terms)
        count = 0
        async for first in receive:
            page = with_waiting(receive, first, DISPATCH_PAGE)
            requests = [await self._request(record, program, terms, item) for item in page]
            opened = await self._open_page(record, unit.unit_id, terms, [request for request, _ in requests], ())
            for item in opened.items:
                _check(item)
            self._count_out(opened)
            # An item that was rejected on its way here leaves a gap, and counts.
            count = max(count, *(item.place + 1 for item in page))
            if terms.pulled:
                self.runtime.bells.queue.ring()
        return count

    async def _open_unit(self, record: ExecutionRecord, terms: AwaitTerms) -> UnitRecord:
        runtime = self.runtime
        unit = await runtime.store.transact(
            dispatching.stream_reads(record, ids.unit_id(record.execution_id, terms.step_index)),
            functools.partial(
                dispatching.open_stream, claimed=record, terms=terms, now=runtime.now(), policy=runtime.policy
            ),
        )
        if isinstance(unit, Refused):
            raise LostLease(unit.message)
        return unit

    async def _ask(
        self, session: LiveSession, record: ExecutionRecord, terms: AwaitTerms, program: Program, receive: Receive
    ) -> None:
        window = session.window
        ahead = trio.Semaphore(OPENING_MAX)
        async with trio.open_nursery() as opening:
            while True:
                await ahead.acquire()
                if (first := await _paced(session, receive)) is None:
                    break
                page = with_waiting(receive, first, min(DISPATCH_PAGE, window.free_count))
                asked = [await self._request(record, program, terms, item) for item in page]
                for request, _ in asked:
                    # Before the row exists: the answer may be back before this transaction's reply is.
                    window.ask(ids.interaction_id(session.unit_id, request.item_index), request.item_index)
                opening.start_soon(self._open_and_send, session, record, terms, asked, ahead)
        window.end_source()
        session.told.ring()

    async def _open_and_send(
        self,
        session: LiveSession,
        record: ExecutionRecord,
        terms: AwaitTerms,
        asked: Sequence[tuple[Request, JsonText]],
        ahead: trio.Semaphore,
    ) -> None:
        """Opens a page of interactions and sends them, beside other pages: a store that is far away takes its time."""
        requests, texts = [request for request, _ in asked], [text for _, text in asked]
        places = self.outlet.reserve(record.tenant_id, record.pipeline_id, terms.step_id, len(requests))
        opened = None
        try:
            opened = await self._open_page(record, session.unit_id, terms, requests, places)
        finally:
            if opened is None:
                self.outlet.release(record.pipeline_id, terms.step_id, places, frozenset())
            ahead.release()
        self._sent(session, opened, texts, places)

    def _sent(
        self,
        session: LiveSession,
        opened: OpenedItems,
        texts: Sequence[JsonText],
        places: Sequence[Place],
    ) -> None:
        """Sends what is new, takes what is answered, counts the rest as out."""
        first = opened.items[0].record
        step = (first.pipeline_id, first.step_id)
        unused = list(places)
        queued = False
        try:
            for item in opened.items:
                _check(item)  # all before the first is sent: with one that cannot go on, none was written
            for item, text in zip(opened.items, texts, strict=True):
                interaction = item.record
                session.records[interaction.interaction_id] = interaction
                if item.opened is Opened.ANSWERED:
                    session.tell(interaction)
                elif item.place is not None:
                    unused.remove(item.place)
                    self.outlet.send(interaction, text)
                else:
                    queued = True
        finally:
            self.outlet.release(*step, unused, opened.occupied)
        self._count_out(opened)
        if queued:
            self.runtime.bells.queue.ring()

    def _count_out(self, opened: OpenedItems) -> None:
        """Counts what the opening itself has handed out; what waits is counted by whoever takes it."""
        first = opened.items[0].record
        count = sum(item.first_out for item in opened.items)
        self.runtime.metrics.interactions_dispatched.add(first.pipeline_id, first.step_id, count=count)

    async def _open_page(
        self,
        record: ExecutionRecord,
        unit_id: UnitId,
        terms: AwaitTerms,
        requests: Sequence[Request],
        places: Sequence[Place],
    ) -> OpenedItems:
        runtime = self.runtime
        opened = await runtime.store.transact(
            dispatching.item_reads(record, unit_id, terms, requests, places),
            functools.partial(
                dispatching.open_items,
                claimed=record,
                unit_id=unit_id,
                terms=terms,
                requests=requests,
                places=places,
                now=runtime.now(),
            ),
        )
        if opened.refused is None:
            return opened
        if opened.refused.code in {"await_timeout", "await_failed"}:
            raise NonRetryableError(opened.refused.message, code=opened.refused.code)
        raise LostLease(opened.refused.message)

    async def _request(
        self, record: ExecutionRecord, program: Program, terms: AwaitTerms, item: Item
    ) -> tuple[Request, JsonText]:
        """The request of one item, with its text; a large one is stored apart first."""
        type_name = program.type_name(item.value)
        takes = program.routing.takes(program.step(terms.step_index), type_name)
        text = program.encode(terms.input_type if takes else type_name, item.value)
        slot = f"request.{terms.step_index}.{item.place}"
        payload = Payload(type_name=terms.input_type, json=text)
        stored = await payloads.stored(self.runtime, record.tenant_id, record.execution_id, slot, payload)
        request = Request(
            item_index=item.place,
            json=stored.json,
            digest=digest(text),
            business_key=program.business_key(terms.step_index, item.value) if takes else "",
            stored_id=stored.stored_id,
            passes_as=None if takes else type_name,
        )
        return request, text

    async def _hand_on(self, session: LiveSession, program: Program, send: Send) -> int | None:
        """Emits answers until all are handed on; the item count if the session is demoted instead."""
        idle_s = self.runtime.settings.live_idle_ms / 1000
        while True:
            ticket = session.told.ticket()
            while session.answered:
                interaction, value = session.answered.popleft()
                if not was_rejected(interaction):
                    if value is None:
                        value = await payloads.value_of(
                            self.runtime, program, interaction.tenant_id, answer_of(interaction)
                        )
                    await send.send(Item(interaction.item_index, value))
                session.window.hand_on(interaction.interaction_id)
                session.records.pop(interaction.interaction_id, None)
                session.freed.ring()
            if session.ended is not None:
                raise _ended(session.ended)
            if session.window.finished:
                return None
            # Only a source that has ended can be parked; until then the stream itself is the reason to stay.
            limit_s = idle_s if session.window.source_ended else float("inf")
            if await wait_for(ticket, limit_s):
                continue
            await self._read(session, frozenset(session.window.asked))
            if not session.answered and session.ended is None:
                return session.window.expected_count

    async def _look(self, session: LiveSession) -> None:
        """Reads what came through other processes, or was missed."""
        poll_s = self.runtime.settings.live_poll_ms / 1000
        old: frozenset[Any] = frozenset()
        ticket = self.runtime.bells.elsewhere.ticket()
        while True:
            rung = await wait_for(ticket, poll_s)
            ticket = self.runtime.bells.elsewhere.ticket()  # before reading: what rings from here on counts next time
            asked = session.window.asked
            # Without a hint, only what was out at the last look already: the rest is being answered right now.
            await self._read(session, asked if rung else asked & old)
            old = asked
            await trio.sleep(LOOK_PAUSE_S)

    async def _read(self, session: LiveSession, interactions: frozenset[Any]) -> None:
        if not interactions:
            return
        keys = [
            INTERACTION.key(record.tenant_id, interaction)
            for interaction in sorted(interactions)
            if (record := session.records.get(interaction)) is not None
        ]
        for found in await self.runtime.store.get_many(keys):
            if found is not None:
                session.tell(found)


async def _paced(session: LiveSession, receive: Receive) -> Item | None:
    """The next item of the source, once a place is free; None at its end."""
    while True:
        ticket = session.freed.ticket()
        if session.window.free_count > 0:
            break
        await ticket.wait()
    try:
        return await receive.receive()
    except trio.EndOfChannel:
        return None


def _check(item: OpenedItem) -> None:
    """Raises NonRetryableError for an item with which the execution cannot go on."""
    if item.opened is Opened.CHANGED:
        message = (
            f"item {item.record.item_index} is not what it was when it was asked: the source changed under a retry"
        )
        raise NonRetryableError(message, code="source_changed")
    if item.opened is Opened.ENDED:
        raise _ended(item.record)


def _ended(record: InteractionRecord) -> NonRetryableError:
    timed_out = record.status is InteractionStatus.TIMED_OUT
    message = record.error_message or f"interaction {record.interaction_id} ended {record.status}"
    return NonRetryableError(message, code="await_timeout" if timed_out else "await_failed")
