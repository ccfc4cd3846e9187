"""Work hints as messages of an SQS queue: `{"tenantId": …, "executionId": …}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NoReturn

import msgspec
import trio
from attrs import define

from tpfd.aws.failures import AwsFailure
from tpfd.aws.sqs_batches import BATCH_COUNT
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import LONGEST_DELAY_S, Message, Unsent, message_text
from tpfd.core.hinting import Hint
from tpfd.core.records import ExecutionId, TenantId
from tpfd.dispatch.protocol import Delivery
from tpfd.errors import DispatchError
from tpfd.ops.logs import get_logger

log = get_logger("tpfd.hints")

SHOWN_CHARS = 200
"""Of a message that cannot be read, in the log."""


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""Whatever anybody puts into the queue must not become a key that no store can look up."""


class _Body(msgspec.Struct, rename="camel"):
    tenant_id: _Name
    execution_id: _Name


_decoder = msgspec.json.Decoder(_Body)


def encode_hint(hint: Hint) -> str:
    """The body of its message."""
    return message_text(msgspec.json.encode(_Body(hint.tenant_id, hint.execution_id)).decode())


def decode_hint(body: str) -> Hint:
    """The hint in a message; unknown members are ignored. Raises msgspec.MsgspecError."""
    read = _decoder.decode(body)
    return Hint(TenantId(read.tenant_id), ExecutionId(read.execution_id))


@define(eq=False, kw_only=True)
class SqsWorkQueue:
    """See ``tpfd.dispatch.protocol.WorkQueue``.

    Attributes:
        held: the queue and what this process holds of it.
        wait_s: how long one receive waits for messages.
    """

    held: HeldMessages
    wait_s: int

    longest_delay_ms = LONGEST_DELAY_S * 1000

    async def send(self, hints: Sequence[tuple[Hint, int]]) -> Sequence[str]:
        """See the protocol. Their order means nothing, so the batches go side by side."""
        unsent: list[Unsent] = []

        async def send(page: Sequence[tuple[Hint, int]]) -> None:
            # Rounded up: a hint that arrives before its time would have to be hidden again.
            delays_s = [-(-delay_ms // 1000) for _, delay_ms in page]
            unsent.extend(await self.held.queue.send([encode_hint(hint) for hint, _ in page], delays_s))

        async with trio.open_nursery() as nursery:
            for first in range(0, len(hints), BATCH_COUNT):
                nursery.start_soon(send, hints[first : first + BATCH_COUNT])
        return [one.reason for one in unsent]

    async def receive(self, limit: int) -> list[Delivery]:
        """See the protocol."""
        try:
            messages = await self.held.receive(limit, self.wait_s)
        except AwsFailure as error:
            raise DispatchError(error.message, retryable=error.retryable) from error
        return [delivery for message in messages if (delivery := self._delivery(message)) is not None]

    def _delivery(self, message: Message) -> Delivery | None:
        try:
            return Delivery(decode_hint(message.body), message)
        except msgspec.MsgspecError as error:
            # Nobody will ever be able to read it, and nothing depends on it: the sweep finds what is due.
            log.error(
                "work_message_unreadable",
                message_id=message.message_id,
                reason=str(error),
                body=message.body[:SHOWN_CHARS],
                size_chars=len(message.body),
            )
            self.held.done(message)
            return None

    def done(self, delivery: Delivery) -> None:
        """See the protocol."""
        self.held.done(_message(delivery))

    def show(self, delivery: Delivery, after_ms: int) -> None:
        """See the protocol."""
        self.held.show(_message(delivery), -(-after_ms // 1000))

    async def run(self) -> NoReturn:
        """See the protocol."""
        await self.held.run()


def _message(delivery: Delivery) -> Message:
    assert isinstance(delivery.handle, Message)
    return delivery.handle
