"""One SQS queue as tasks see it: batched sends, receives, deletes and visibility, in JSON messages.

Everything here is at least once: a send whose answer was lost is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from attrs import define, frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.failures import AwsFailure, Failure, of_code
from tpfd.aws.sqs_batches import BATCH_COUNT, in_batches

LONGEST_DELAY_S = 900
"""How long SQS holds a message back at its sending."""
LONGEST_VISIBILITY_S = 12 * 3600
"""How long SQS hides a message that was received, counted from the receive."""

_NOT_ALLOWED = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}


@frozen
class Message:
    """A message that was received and is hidden from others for a while.

    Attributes:
        message_id: names it for people and logs; the same each time it is received.
        receipt: names this receive of it; what deleting and hiding need.
        receive_count: how often it has been received, this time included.
    """

    message_id: str
    receipt: str
    body: str
    receive_count: int


@frozen
class Unsent:
    """A message that was not sent.

    Attributes:
        place: in the sequence that was to be sent.
        retryable: whether sending it later may work.
    """

    place: int
    reason: str
    retryable: bool


def message_text(json_text: str) -> str:
    """JSON as SQS takes it: the two characters that SQS refuses are escaped (JSON has escaped the others)."""
    return json_text.translate(_NOT_ALLOWED)


@define(eq=False, kw_only=True)
class SqsQueue:
    """One queue.

    Attributes:
        url: of a standard queue.
        calls: for everything but receives; several at a time.
        receives: for receives, which take long.
        max_message_bytes: limit of a message, and of a batch.
        within_s: how long one call is repeated.
    """

    url: str
    calls: AwsCalls
    receives: AwsCalls
    max_message_bytes: int
    within_s: float = 10.0

    async def send(self, texts: Sequence[str], delays_s: Sequence[int] | None = None) -> tuple[Unsent, ...]:
        """Sends messages, in order.

        Args:
            texts: bodies as `message_text` makes them.
            delays_s: how long each is held back; None: not at all.

        Returns:
            Those that were not sent, in order: one that is too large or not taken holds up no other. When the service
            is away, everything from there on is unsent.
        """
        sizes = [len(text.encode()) for text in texts]
        plan = in_batches(sizes, self.max_message_bytes)
        unsent = [
            Unsent(place, f"{sizes[place]:,} bytes are over the limit of {self.max_message_bytes:,}", retryable=False)
            for place in plan.too_large
        ]
        away: AwsFailure | None = None
        for batch in plan.batches:
            if away is None:
                entries = {place: _entry(place, texts, delays_s) for place in batch}
                try:
                    refused = await self._each("send_message_batch", entries)
                except AwsFailure as error:
                    away = error
                else:
                    unsent.extend(Unsent(place, reason, again) for place, (reason, again) in refused.items())
            if away is not None:
                unsent.extend(Unsent(place, away.message, away.retryable) for place in batch)
        return tuple(sorted(unsent, key=lambda one: one.place))

    async def receive(self, limit: int, *, wait_s: int, visibility_s: int) -> list[Message]:
        """Receives what is there, or waits for the first.

        Args:
            limit: messages at most, from 1.
            wait_s: how long the service waits for a message; 0 to 20.
            visibility_s: how long they are hidden from others.

        Raises:
            AwsFailure: nothing was received; if its outcome is unknown, messages may be hidden until they come back.

        **Cancellation**: `receives` says whether an open receive is waited out or left behind; what one finds that was
        left behind comes back in `visibility_s`.
        """
        answer = await self.receives(
            "receive_message",
            QueueUrl=self.url,
            MaxNumberOfMessages=min(limit, BATCH_COUNT),
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=visibility_s,
            AttributeNames=["ApproximateReceiveCount"],
        )
        return [
            Message(
                message_id=one["MessageId"],
                receipt=one["ReceiptHandle"],
                body=one["Body"],
                receive_count=int(one.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
            )
            for one in answer.get("Messages", ())
        ]

    async def delete(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Deletes messages. One whose receipt is too old is not ours any more, and passed over.

        Returns:
            Those that the service could not take for now.

        Raises:
            AwsFailure: the service is away; some may be deleted.
        """
        return await self._all("delete_message_batch", messages, lambda _: {})

    async def hide(self, messages: Mapping[Message, int]) -> tuple[Message, ...]:
        """Hides messages for so many seconds from now; 0 shows them. See `delete`.

        Raises:
            AwsFailure: the service is away; some may be hidden.
        """
        return await self._all(
            "change_message_visibility_batch",
            tuple(messages),
            lambda message: {"VisibilityTimeout": min(messages[message], LONGEST_VISIBILITY_S)},
        )

    async def _all(
        self, operation: str, messages: Sequence[Message], more: Callable[[Message], dict[str, Any]]
    ) -> tuple[Message, ...]:
        left: list[Message] = []
        for first in range(0, len(messages), BATCH_COUNT):
            batch = messages[first : first + BATCH_COUNT]
            entries = {place: {"ReceiptHandle": one.receipt, **more(one)} for place, one in enumerate(batch)}
            refused = await self._each(operation, entries)
            left.extend(batch[place] for place, (_, again) in refused.items() if again)
        return tuple(left)

    async def _each(self, operation: str, entries: Mapping[int, Mapping[str, Any]]) -> dict[int, tuple[str, bool]]:
        """One batch call, repeated for the entries that the service could not take at that moment.

        Returns:
            By entry, why it was refused, and whether another try may work.

        Raises:
            AwsFailure: the service is away.
        """
        left = dict(entries)
        refused: dict[int, tuple[str, bool]] = {}
        give_up_s = trio.current_time() + self.within_s
        attempt = 0
        while left:
            attempt += 1
            batch = [{"Id": str(place), **entry} for place, entry in left.items()]
            answer = await self.calls.repeated(operation, within_s=self.within_s, QueueUrl=self.url, Entries=batch)
            for one in answer.get("Successful", ()):
                left.pop(int(one["Id"]), None)
            reasons = {}
            for one in answer.get("Failed", ()):
                reason = f"{one.get('Code', 'no code')}: {one.get('Message', 'no message')}"
                if one.get("SenderFault") and of_code(one.get("Code", "")) is Failure.REFUSED:
                    left.pop(int(one["Id"]), None)
                    refused[int(one["Id"])] = (reason, False)
                reasons[int(one["Id"])] = reason
            delay_s = self.calls.delay_s(attempt)
            if left and trio.current_time() + delay_s > give_up_s:
                return refused | {place: (reasons.get(place, "no answer for it"), True) for place in left}
            if left:
                await trio.sleep(delay_s)
        return refused


def _entry(place: int, texts: Sequence[str], delays_s: Sequence[int] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"MessageBody": texts[place]}
    if delays_s is not None and delays_s[place]:
        entry["DelaySeconds"] = min(delays_s[place], LONGEST_DELAY_S)
    return entry
