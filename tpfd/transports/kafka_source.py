"""Reads answers from Kafka topics, as one member of a consumer group.

One thread owns the client and does nothing but poll it: it must come back often, or the group takes it for dead. The
thread and the event loop meet in one place, `_meet`: there the thread leaves what it received, as far as there is room,
and learns what has been dealt with meanwhile. Where there is no room the partitions are paused, and polling goes on.

Only offsets up to which everything is dealt with are committed: in passing, and once more, with waiting, before a
partition goes to somebody else. A commit that is refused changes nothing: what comes again is a duplicate.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from attrs import define, field, frozen

from tpfd.errors import TransportError
from tpfd.ops.logs import get_logger
from tpfd.transports.broker import Inbound
from tpfd.transports.kafka_client import make_consumer
from tpfd.transports.kafka_offsets import Mark, Offsets, Partition
from tpfd.transports.kafka_settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

log = get_logger("tpfd.kafka")

ROOM_COUNT = 256
"""Messages that wait between the thread and the consumer; as many again may be with each of them."""
POLL_S = 0.1
RECEIVE_S = 1.0
"""How long a receive waits before it says that there is nothing."""
COMMIT_S = 0.5
"""Shortest pause between two commits."""
PROBE_S = 2.0
"""While brokers are away: how often they are asked whether they are back."""
PROBE_TIMEOUT_S = 1.0
RESTART_S = 5.0
"""Pause before a client that has failed for good is replaced."""
AWAY = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL", "_RESOLVE"})
"""Errors of the connection that are worth telling; the others mend themselves."""


@frozen
class _Met:
    """What the thread learns when it meets the event loop.

    Attributes:
        left: messages for which there was no room.
        room_count: places left for more.
        reached: how far each partition has come.
    """

    left: list[Message]
    room_count: int
    reached: dict[Partition, int]


@define(eq=False, kw_only=True)
class KafkaSource:
    """Answers from some topics.

    Attributes:
        group: consumer group; the members of all replicas share the partitions.
    """

    settings: KafkaSettings
    topics: tuple[str, ...]
    group: str
    _offsets: Offsets = field(factory=Offsets, init=False)
    _send: trio.MemorySendChannel[Inbound] = field(init=False)
    _receive: trio.MemoryReceiveChannel[Inbound] = field(init=False)
    _failure: str | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Inbound](ROOM_COUNT)

    @property
    def name(self) -> str:
        return f"kafka:{','.join(self.topics)}"

    @property
    def waiting_count(self) -> int:
        """Messages that were received and not yet taken."""
        return self._send.statistics().current_buffer_used

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `tpfd.transports.broker.AnswerSource`."""
        # Shielded: it ends after those who deal with messages, so that the last commit knows what they did.
        polling = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._poll_for_ever, polling)
            try:
                yield
            finally:
                polling.cancel("the source is closed")

    async def _poll_for_ever(self, polling: trio.CancelScope) -> None:
        # Of its own: it holds its thread for as long as it lives.
        limiter = trio.CapacityLimiter(1)
        with polling:
            while True:
                thread = _Thread(self)
                try:
                    await trio.to_thread.run_sync(thread.run, limiter=limiter)
                except TransportError as error:
                    log.error("kafka_consumer_failed", source=self.name, message=error.message)
                    self._failure = error.message
                await trio.sleep(RESTART_S)

    async def receive(self, limit: int) -> Sequence[Inbound]:
        """See `tpfd.transports.broker.AnswerSource`."""
        found: list[Inbound] = []
        with trio.move_on_after(RECEIVE_S):
            found.append(await self._receive.receive())
        while found and len(found) < limit:
            try:
                found.append(self._receive.receive_nowait())
            except trio.WouldBlock:
                break
        if not found and self._failure is not None:
            raise TransportError(self._failure)
        return found

    def done(self, inbound: Inbound) -> None:
        """See `tpfd.transports.broker.AnswerSource`."""
        assert isinstance(inbound.mark, Mark)
        self._offsets.done(inbound.mark)

    # ── where the thread meets the event loop ──

    def meet(self, messages: list[Message], failure: str | None) -> _Met:
        """The thread leaves messages and takes orders."""
        self._failure = failure
        left = list(messages)
        room_count = ROOM_COUNT - self.waiting_count
        while left and room_count > 0:
            inbound = self._inbound(left.pop(0))
            if inbound is not None:
                self._send.send_nowait(inbound)
                room_count -= 1
        return _Met(left, room_count, self._offsets.reached())

    def assigned(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._offsets.assigned(partition)

    def taken_away(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """How far those that have come anywhere have come."""
        reached = {partition: self._offsets.taken_away(partition) for partition in partitions}
        return {partition: offset for partition, offset in reached.items() if offset is not None}

    def _inbound(self, message: Message) -> Inbound | None:
        """A message as the consumer gets it; None: its partition went away meanwhile, and somebody else reads it."""
        partition, offset = _partition(message), message.offset()
        assert offset is not None
        mark = self._offsets.received(partition, offset)
        if mark is None:
            return None
        return Inbound(message.value(), f"{partition.topic}[{partition.number}]@{offset}", mark)


@define(eq=False)
class _Thread:
    """What the polling thread has in hand: the client, which nobody else touches."""

    source: KafkaSource
    consumer: Consumer = field(init=False)
    messages: list[Message] = field(factory=list)
    failure: str | None = None
    paused: bool = False
    committed: dict[Partition, int] = field(factory=dict)
    commit_at_s: float = 0.0
    probe_at_s: float = 0.0

    def run(self) -> None:
        """Polls until the caller is cancelled.

        Raises:
            TransportError: the client has failed for good.
        """
        from confluent_kafka import KafkaException

        source = self.source
        self.consumer = make_consumer(source.settings, source.group, self._on_error, self._on_commit)
        try:
            self.consumer.subscribe(
                list(source.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while True:
                trio.from_thread.check_cancelled()
                met = trio.from_thread.run_sync(source.meet, self.messages, self.failure)
                self.messages = met.left
                self._commit(met.reached)
                self._poll(met.room_count - len(self.messages))
                if self.failure is not None:
                    self._probe()
        except KafkaException as error:
            raise TransportError(f"{source.name}: {error.args[0].str()}") from error
        finally:
            # Gives the partitions up, which commits what was dealt with.
            self.consumer.close()

    def _poll(self, room_count: int) -> None:
        if room_count <= 0:
            if not self.paused:
                self.consumer.pause(self.consumer.assignment())
                self.paused = True
        elif self.paused:
            self.consumer.resume(self.consumer.assignment())
            self.paused = False
        first = self.consumer.poll(POLL_S)
        if first is None:
            return
        more = self.consumer.consume(min(room_count, ROOM_COUNT) - 1, 0) if room_count > 1 else []
        for message in (first, *more):
            error = message.error()
            if error is None:
                self.messages.append(message)
            else:
                self._fail(error)

    def _commit(self, reached: dict[Partition, int]) -> None:
        """Commits what is new, without waiting for it."""
        new = {partition: offset for partition, offset in reached.items() if self.committed.get(partition) != offset}
        if not new or time.monotonic() < self.commit_at_s:
            return
        self.commit_at_s = time.monotonic() + COMMIT_S
        self.committed.update(new)
        self.consumer.commit(offsets=_offsets(new), asynchronous=True)

    def _probe(self) -> None:
        """Asks brokers that were away, or lacked the topic, whether all is well."""
        from confluent_kafka import KafkaException

        if time.monotonic() < self.probe_at_s:
            return
        try:
            found = [self.consumer.list_topics(topic, PROBE_TIMEOUT_S).topics[topic] for topic in self.source.topics]
            errors = [f"{one.topic}: {one.error.str()}" for one in found if one.error is not None]
        except KafkaException as error:
            errors = [error.args[0].str()]
        self.failure = errors[0] if errors else None
        self.probe_at_s = time.monotonic() + PROBE_S

    # ── what the client calls, while it is polled or closed ──

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.name() in AWAY:
            self._fail(error)

    def _fail(self, error: KafkaError) -> None:
        if self.failure is None:
            self.probe_at_s = time.monotonic() + PROBE_S
        self.failure = f"{error.str()} ({error.name()})"

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        for one in offsets:
            failure = error or one.error
            if failure is not None:
                self._not_committed([one], failure)
                self.committed.pop(_partition_of(one), None)

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # What is new is not paused yet.
        self.paused = False
        log.info("kafka_partitions_assigned", source=self.source.name, partitions=_names(partitions))
        trio.from_thread.run_sync(self.source.assigned, [_partition_of(one) for one in partitions])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        from confluent_kafka import KafkaException

        new = self._taken_away(partitions)
        log.info("kafka_partitions_revoked", source=self.source.name, partitions=_names(partitions))
        if new:
            try:
                consumer.commit(offsets=_offsets(new), asynchronous=False)
            except KafkaException as error:
                self._not_committed(_offsets(new), error.args[0])

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """They are somebody else's already: nothing may be committed."""
        self._taken_away(partitions)
        log.warning("kafka_partitions_lost", source=self.source.name, partitions=_names(partitions))

    def _taken_away(self, partitions: list[TopicPartition]) -> dict[Partition, int]:
        """What is still to be committed of partitions that go."""
        gone = [_partition_of(one) for one in partitions]
        reached = trio.from_thread.run_sync(self.source.taken_away, gone)
        asked = {partition: self.committed.pop(partition, None) for partition in gone}
        return {partition: offset for partition, offset in reached.items() if asked[partition] != offset}

    def _not_committed(self, offsets: list[TopicPartition], error: KafkaError) -> None:
        """What was dealt with comes again, and is a duplicate then."""
        log.warning("kafka_offsets_not_committed", source=self.source.name, partitions=_names(offsets),
                    message=error.str())  # fmt: skip


def _partition(message: Message) -> Partition:
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return Partition(topic, number)


def _partition_of(one: TopicPartition) -> Partition:
    return Partition(one.topic, one.partition)


def _offsets(reached: dict[Partition, int]) -> list[TopicPartition]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(partition.topic, partition.number, offset) for partition, offset in reached.items()]


def _names(partitions: Sequence[TopicPartition]) -> list[str]:
    return [f"{one.topic}[{one.partition}]" for one in partitions]
