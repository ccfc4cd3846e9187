"""What the engine needs from its neighbours, as protocols. The daemon plugs the real ones in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio

from tpfd.core.awaits import AwaitTerms
from tpfd.core.records import ExecutionRecord, Publication
from tpfd.engine.calls import Rejection
from tpfd.items import Item

Row = Mapping[str, Any]


class LiveAwait(Protocol):
    """Stream awaits: a live session as a stage, or all items asked at once."""

    async def run(
        self,
        record: ExecutionRecord,
        terms: AwaitTerms,
        receive: trio.MemoryReceiveChannel[Item],
        send: trio.MemorySendChannel[Item],
    ) -> int | None:
        """Asks the outside about each item and sends each answer on, with bounded items in hand.

        Returns:
            None when everything was answered and handed on. The number of items when the session was demoted: all
            are asked, the execution must be parked, and what went downstream so far is to be dropped.

        Raises:
            NonRetryableError: an item timed out, failed, or changed under a retry.
            LostLease: the fence moved.
        """

    async def ask_all(
        self, record: ExecutionRecord, terms: AwaitTerms, receive: trio.MemoryReceiveChannel[Item]
    ) -> int:
        """Asks the outside about every item of the stream and returns their number. Raises as `run` does."""


class OutputSession(Protocol):
    """The terminal output of one attempt, being staged."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Adds rows in order."""

    async def place(self, prepare: Callable[[Publication], Awaitable[None]]) -> None:
        """Ends the output, has it recorded as prepared, and puts it in place.

        Args:
            prepare: records the publication under the attempt's fence; raises LostLease when the fence moved.

        Raises:
            NonRetryableError: another object stands at the key.
            OutsideError: the storage refused.
        """


class Publisher(Protocol):
    """Puts the outputs of one pipeline in place."""

    async def adopt(self, record: ExecutionRecord) -> bool:
        """Whether the publication that an earlier attempt prepared stands in place, whole."""

    def open(self, record: ExecutionRecord) -> AbstractAsyncContextManager[OutputSession]:
        """Starts staging; what is not placed is removed at the end of the block."""


class RejectSink(Protocol):
    """Takes items that a step gave up on."""

    async def reject(self, record: ExecutionRecord, rejections: Sequence[Rejection]) -> None:
        """Keeps them, as durably as the provider can.

        Raises:
            DispatchError: the sink failed and the policy is to fail the pipeline.
        """
