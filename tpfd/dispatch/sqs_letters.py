"""Dead letters and rejected items as messages of an SQS queue, one each."""

from __future__ import annotations

from attrs import evolve, field, frozen

from tpfd.aws.sqs_queue import SqsQueue, message_text
from tpfd.dispatch.protocol import ItemReject, Letter
from tpfd.dispatch.wire import wire_json
from tpfd.errors import DispatchError
from tpfd.ops.logs import Log, get_logger


@frozen
class SqsLetters:
    """Dead letters in a queue. A repeat has the same `envelopeId`."""

    queue: SqsQueue
    durable: bool = True

    async def publish(self, letter: Letter) -> None:
        """In the queue when it returns. Raises DispatchError."""
        await _send(self.queue, [_text(letter)])


@frozen
class SqsRejects:
    """Rejected items in a queue."""

    queue: SqsQueue
    log: Log = field(factory=lambda: get_logger("tpfd.reject"))
    durable: bool = True

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        """In the queue when it returns; one that is too large goes without its payload, and that is logged.

        Raises:
            DispatchError: some could not be sent; the others are.
        """
        await _send(self.queue, [self._fitting(reject) for reject in rejects])

    def _fitting(self, reject: ItemReject) -> str:
        text = _text(reject)
        if reject.payload is None or len(text.encode()) <= self.queue.max_message_bytes:
            return text
        self.log.warning(
            "reject_payload_left_out",
            execution_id=reject.execution_id,
            item_fingerprint=reject.item_fingerprint,
            message_bytes=len(text.encode()),
            limit_bytes=self.queue.max_message_bytes,
        )
        return _text(evolve(reject, payload=None))


def _text(record: Letter | ItemReject) -> str:
    return message_text(wire_json(record).decode())


async def _send(queue: SqsQueue, texts: list[str]) -> None:
    unsent = await queue.send(texts)
    if unsent:
        reason = f"{len(unsent)} of {len(texts)} not sent to {queue.url}: {unsent[0].reason}"
        raise DispatchError(reason, retryable=any(one.retryable for one in unsent))
