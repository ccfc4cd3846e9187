"""What the waiting side needs from its neighbours: the way out for requests, and for items that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tpfd.core.budget import Place
from tpfd.core.records import ExecutionRecord, InteractionRecord, JsonText, TenantId


class Outlet(Protocol):
    """Sockets of this process that take requests."""

    def reserve(self, tenant_id: TenantId, pipeline_id: str, step_id: str, count: int) -> list[Place]:
        """Takes up to `count` free places, of sockets and of the step's budget."""

    def release(self, pipeline_id: str, step_id: str, places: Sequence[Place], occupied: frozenset[int]) -> None:
        """Gives reserved places back unused.

        Args:
            occupied: slots that turned out not to be free.
        """

    def send(self, record: InteractionRecord, request: JsonText) -> None:
        """Sends a committed interaction with its payload to the socket in its `delivery`, into the reserved place.

        If the socket is gone meanwhile, its lease brings the request back.
        """

    def settled(self, record: InteractionRecord) -> None:
        """An interaction is over; the socket that held it, if it is one of ours, has a free place again."""


class UnsentSink(Protocol):
    """The reject sink, for items whose request can never be sent."""

    async def reject_unsent(self, record: ExecutionRecord, asked: InteractionRecord, message: str) -> None:
        """Keeps the item, as durably as the provider can.

        Args:
            record: the execution that asks, of a pipeline that is loaded here as it asked.
            message: why it cannot be sent.

        Raises:
            DispatchError: the sink failed and the policy is to fail the pipeline.
            StoreError: the item could not be read.
        """
