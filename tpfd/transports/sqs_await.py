"""Awaits over SQS: requests go to one queue, answers come from another, each message one envelope."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import trio
from attrs import define, field, frozen

from tpfd.aws.failures import AwsFailure
from tpfd.aws.queue_urls import queue_name
from tpfd.aws.sqs_batches import BATCH_COUNT
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import Message, SqsQueue, message_text
from tpfd.errors import TransportError
from tpfd.transports.broker import Confirmed, Inbound, Outcome, Outgoing, Postponed, Unsendable

RECEIVES_AT_ONCE = 4
"""Receives of one queue that are open at once while there is much to receive."""


@frozen
class SqsWire:
    """The requests of one step. See ``tpfd.transports.broker.Wire``."""

    queue: SqsQueue
    parallel_count: int
    batch_count: int = BATCH_COUNT

    async def send(self, requests: Sequence[Outgoing]) -> Sequence[Outcome]:
        """What SQS has taken is confirmed; only what it will never take is given up."""
        unsent = await self.queue.send([message_text(request.body.decode()) for request in requests])
        outcomes: list[Outcome] = [Confirmed()] * len(requests)
        for one in unsent:
            outcomes[one.place] = Postponed(one.reason) if one.retryable else Unsendable(one.reason)
        return outcomes


@define(eq=False, kw_only=True)
class SqsAnswers:
    """The answers of one queue. See ``tpfd.transports.broker.AnswerSource``.

    As long as receives come back full, several go side by side and wait for nothing; one that does not is followed by
    a long poll.

    Attributes:
        held: the queue and what this process holds of it.
        wait_s: how long one receive waits for messages.
        receive_limit: messages taken by one receive, at most.
        start_delay_s: pause before the first receive.
    """

    held: HeldMessages
    wait_s: int
    receive_limit: int = BATCH_COUNT
    start_delay_s: float = 0.0
    _started: bool = field(default=False, init=False)
    _more: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """For logs, readiness and dead letters."""
        return f"sqs:{queue_name(self.held.queue.url)}"

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Keeps what is in hand hidden; at the end deletes what is dealt with and shows the rest again."""
        return self.held.kept()

    async def receive(self, limit: int) -> Sequence[Inbound]:
        """See the protocol."""
        if not self._started:
            await trio.sleep(self.start_delay_s)
            self._started = True
        each = min(limit, self.receive_limit)
        count = min(RECEIVES_AT_ONCE, limit // each) if self._more else 1
        wait_s = 0 if self._more else self.wait_s
        found: list[Message] = []
        failures: list[AwsFailure] = []

        async def receive() -> None:
            try:
                found.extend(await self.held.receive(each, wait_s))
            except AwsFailure as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(receive)
        self._more = len(found) == count * each
        if failures and not found:
            raise TransportError(failures[0].message, retryable=failures[0].retryable) from failures[0]
        return [Inbound(message.body.encode(), message.message_id, message) for message in found]

    def done(self, inbound: Inbound) -> None:
        """See the protocol."""
        assert isinstance(inbound.mark, Message)
        self.held.done(inbound.mark)
