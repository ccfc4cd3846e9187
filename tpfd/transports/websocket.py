"""Provider sockets: requests are pushed to attached providers, as many as they have credit for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from attrs import define

from tpfd.core.records import InteractionRecord, JsonText, TenantId
from tpfd.ops.logs import get_logger
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.sockets import Socket, Sockets

log = get_logger("tpfd.sockets")

MAX_CREDIT = 10_000
FRAME_COUNT = 256
"""Requests that go out together."""


@define(eq=False, kw_only=True)
class AttachedProvider(Socket):
    """The socket of one provider; the credit is what the provider gives."""

    def add_credit(self, count: int) -> None:
        """Raises the number of requests that may be unanswered, up to MAX_CREDIT."""
        self.credit = min(self.credit + max(count, 0), MAX_CREDIT)
        self.freed.ring()

    async def next_requests(self) -> list[bytes]:
        """Waits for requests; what is there, at most FRAME_COUNT."""
        return [request.body for request in await self.take(FRAME_COUNT)]


@define(eq=False, kw_only=True)
class ProviderSockets(Sockets):
    """The sockets of this process, to which providers can attach."""

    envelopes: EnvelopeWriter

    @asynccontextmanager
    async def attach(
        self, tenant_id: TenantId, pipeline_id: str, step_ids: Sequence[str], credit: int
    ) -> AsyncIterator[AttachedProvider]:
        """A provider's place for as long as the block lasts.

        Raises:
            StoreError: its row could not be written.
        """
        socket = AttachedProvider(
            record=self.row(tenant_id, pipeline_id, "ws"),
            step_ids=tuple(step_ids),
            credit=min(max(credit, 0), MAX_CREDIT),
            write=self._envelope,
        )
        await self.register(socket)
        log.info(
            "provider_attached", socket=socket.socket_id, pipeline=pipeline_id, steps=list(step_ids), credit=credit
        )
        async with self.serving(socket):
            yield socket

    def _envelope(self, record: InteractionRecord, request: JsonText) -> bytes:
        return self.envelopes.request(record, request, self.runtime.now(), {"type": "request"})
