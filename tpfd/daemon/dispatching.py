"""SQS in the daemon: its queues by their use, and work that travels between hosts as hints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

import trio
from attrs import define, evolve, field, frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.clients import make_client
from tpfd.aws.queue_urls import queue_region
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import SqsQueue
from tpfd.blocking import Threads
from tpfd.config.model import Config
from tpfd.core.records import ExecutionRecord
from tpfd.core.transact import Decide, Decision, Need, Read, Snapshot
from tpfd.dispatch.protocol import WorkQueue
from tpfd.dispatch.sqs_work import SqsWorkQueue
from tpfd.engine.claims import ClaimLoop
from tpfd.engine.hints import HintPoller, HintSender
from tpfd.metrics import Metrics
from tpfd.runtime import Runtime
from tpfd.stores.passing import PassingStore

T = TypeVar("T")

CALLS_AT_ONCE = 8
"""Short calls of one region: sends, deletes, visibility."""
ANSWER_S = 10
"""Time that the service has to answer, beside the time that it is asked to wait."""


@define(eq=False)
class SqsQueues:
    """Makes the queues of this process. Without any the SDK is not loaded."""

    config: Config
    metrics: Metrics
    _calls: dict[str, AwsCalls] = field(factory=dict, init=False)

    def queue(
        self, url: str, *, receive_wait_s: int | None = None, receive_count: int = 1, leave: bool = False
    ) -> SqsQueue:
        """A queue.

        Args:
            receive_wait_s: how long a receive may wait; None: it is only sent to.
            receive_count: receives that may be open at once.
            leave: leave an open receive behind on cancel instead of waiting it out.

        Raises:
            ConfigError: no client can be made.
        """
        region = self.config.dispatcher.sqs.region or queue_region(url)
        if region not in self._calls:
            self._calls[region] = self._make(region, CALLS_AT_ONCE, ANSWER_S, abandon=False)
        calls = self._calls[region]
        receives = calls
        if receive_wait_s is not None:
            receives = self._make(region, receive_count, ANSWER_S + receive_wait_s, abandon=leave)
        return SqsQueue(
            url=url, calls=calls, receives=receives, max_message_bytes=self.config.dispatcher.sqs.max_message_bytes
        )

    def _make(self, region: str, connections: int, read_timeout_s: int, *, abandon: bool) -> AwsCalls:
        connect = functools.partial(
            make_client,
            "sqs",
            region=region,
            endpoint=self.config.dispatcher.sqs.endpoint,
            connections=connections,
            read_timeout_s=read_timeout_s,
        )
        threads = Threads(connections, abandon_on_cancel=abandon)
        return AwsCalls("sqs", connect, threads, observe=self.metrics.aws_requests.add)


@frozen
class Hinting:
    """Work over hints in this process."""

    queue: WorkQueue
    sender: HintSender

    def told_by(self, runtime: Runtime) -> Runtime:
        """The same with a store that has hints sent of whatever becomes due."""
        return evolve(runtime, store=TellingStore(runtime.store, self.sender.offer))

    def poller(self, claims: ClaimLoop, draining: trio.Event) -> HintPoller:
        """Has the claim loop follow the hints that come in."""
        return HintPoller(runtime=claims.runtime, queue=self.queue, claims=claims, draining=draining)

    async def run(self) -> NoReturn:
        """Keeps the queue, for ever.

        **Cancellation**: what has still to be sent is sent, what is in flight given back, within a few seconds.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sender.run)
            nursery.start_soon(self.queue.run)
        raise AssertionError("its tasks never end")


def make_hinting(config: Config, runtime: Runtime, queues: SqsQueues) -> Hinting | None:
    """What `dispatcher.provider: sqs` needs; None with another.

    Raises:
        ConfigError: no client can be made.
    """
    if config.dispatcher.provider != "sqs":
        return None
    settings = config.dispatcher.sqs
    wait_s = settings.wait_ms // 1000
    held = HeldMessages(
        name="work_queue",
        queue=queues.queue(settings.queue_url, receive_wait_s=wait_s, leave=True),
        visibility_s=-(-settings.visibility_ms // 1000),
        trouble=runtime.trouble,
    )
    queue = SqsWorkQueue(held=held, wait_s=wait_s)
    return Hinting(queue, HintSender(runtime=runtime, queue=queue))


@define(eq=False)
class TellingStore(PassingStore):
    """A store that tells of the executions that it has committed.

    Whatever makes an execution due writes its record, so nothing that does can forget to tell.
    """

    tell: Callable[[ExecutionRecord], None]

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        decided: Decision[T] | Need | None = None

        def watched(snapshot: Snapshot) -> Decision[T] | Need:
            nonlocal decided  # by the last of its calls: the one that was committed
            decided = decide(snapshot)
            return decided

        result = await self.inner.transact(reads, watched)
        if isinstance(decided, Decision):
            for put in decided.puts:
                if isinstance(put, ExecutionRecord):
                    self.tell(put)
        return result
