"""The provider's line over SQS."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import trio
from attrs import define, field, frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.clients import make_client
from tpfd.aws.failures import AwsFailure
from tpfd.aws.queue_urls import queue_name, queue_region
from tpfd.aws.sqs_batches import BATCH_COUNT
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import Message, SqsQueue, message_text
from tpfd.blocking import Threads
from tpfd.errors import TransportError
from tpfd.examples.provider.broker import Asked

WAIT_S = 1
VISIBILITY_S = 10
READERS = 4
SENDERS = 8
MAX_MESSAGE_BYTES = 256 * 1024


@frozen(kw_only=True)
class Queues:
    """Where the provider is asked and answers.

    Attributes:
        endpoint: another URL than the region's; empty: the region's.
        region: empty takes that of the URL, or the SDK's own.
    """

    request_url: str
    answer_url: str
    endpoint: str = ""
    region: str = ""


@define(eq=False)
class SqsLine:
    """See ``tpfd.examples.provider.broker.Line``.

    Raises:
        ConfigError: no client can be made.
    """

    queues: Queues
    reader_count: int = READERS
    _held: HeldMessages = field(init=False)
    _answers: SqsQueue = field(init=False)

    def __attrs_post_init__(self) -> None:
        requests = self._queue(self.queues.request_url, READERS)
        self._answers = self._queue(self.queues.answer_url, SENDERS)
        self._held = HeldMessages(name="requests", queue=requests, visibility_s=VISIBILITY_S, trouble={})

    def _queue(self, url: str, connections: int) -> SqsQueue:
        region = self.queues.region or queue_region(url)
        connect = functools.partial(
            make_client, "sqs", region=region, endpoint=self.queues.endpoint, connections=connections
        )
        return SqsQueue(
            url=url,
            calls=AwsCalls("sqs", connect, Threads(connections)),
            receives=AwsCalls("sqs", connect, Threads(connections)),
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    @property
    def name(self) -> str:
        """The queue of the requests."""
        return f"queue {queue_name(self.queues.request_url)}"

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Keeps what is in hand hidden; shows at the end what was not answered."""
        return self._held.kept()

    async def receive(self, limit: int) -> Sequence[Asked]:
        """See the protocol."""
        try:
            messages = await self._held.receive(limit, WAIT_S)
        except AwsFailure as error:
            raise TransportError(error.message, retryable=error.retryable) from error
        return [Asked(message.body.encode(), message) for message in messages]

    def done(self, mark: object) -> None:
        """See the protocol."""
        assert isinstance(mark, Message)
        self._held.done(mark)

    async def answer(self, bodies: Sequence[bytes]) -> Sequence[str | None]:
        """See the protocol; batches go side by side."""
        faults: list[str | None] = [None] * len(bodies)

        async def send(first: int) -> None:
            texts = [message_text(body.decode()) for body in bodies[first : first + BATCH_COUNT]]
            for one in await self._answers.send(texts):
                faults[first + one.place] = one.reason

        async with trio.open_nursery() as nursery:
            for first in range(0, len(bodies), BATCH_COUNT):
                nursery.start_soon(send, first)
        return faults
