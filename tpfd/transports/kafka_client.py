"""Makes clients of Kafka. The library is imported when the first one is made: a daemon without Kafka needs none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tpfd.errors import ConfigError, Problem
from tpfd.ops.logs import get_logger
from tpfd.transports.kafka_settings import PROPERTIES, KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

log = get_logger("tpfd.kafka")

SEND_TIMEOUT_MS = 10_000
"""Time after which the library gives a request up, and says so."""
LINGER_MS = 1
"""How long a request may wait for others to travel with it; those of one batch are handed over together anyway."""

OnError = Callable[["KafkaError"], None]
OnCommit = Callable[["KafkaError | None", "list[TopicPartition]"], None]


class _Logger:
    """Looks to the library like a logger. What it says of itself are details; what matters is told by errors."""

    def log(self, _level: int, form: str, *values: object, **_named: object) -> None:
        log.debug("kafka_client", message=form % values if values else form)


def make_producer(settings: KafkaSettings, on_error: OnError) -> Producer:
    """A producer; it connects by itself.

    Raises:
        ConfigError: the library is not installed, or does not take the settings.
    """
    producer: Producer = _made(
        "Producer",
        {
            "acks": "all",
            "enable.idempotence": "false",  # a repeat is harmless, and old or small brokers refuse the other
            "linger.ms": str(LINGER_MS),
            "message.timeout.ms": str(SEND_TIMEOUT_MS),
            **settings.of("producer"),
            "bootstrap.servers": settings.bootstrap,
            "client.id": settings.client_id,
            "error_cb": on_error,
        },
    )
    return producer


def make_consumer(settings: KafkaSettings, group: str, on_error: OnError, on_commit: OnCommit) -> Consumer:
    """A consumer of a group; it connects by itself and has no topics yet.

    Raises:
        ConfigError: the library is not installed, or does not take the settings.
    """
    consumer: Consumer = _made(
        "Consumer",
        {
            # Whoever reads for the first time must not miss what was answered before.
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": "16384",
            **settings.of("consumer"),
            "bootstrap.servers": settings.bootstrap,
            "client.id": settings.client_id,
            "group.id": group,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "error_cb": on_error,
            "on_commit": on_commit,
        },
    )
    return consumer


def check_consumer(settings: KafkaSettings) -> None:
    """Sees that the library takes the settings, before anything depends on it.

    Raises:
        ConfigError: see `make_consumer`.
    """
    make_consumer(settings, "check", lambda _: None, lambda *_: None).close()


def _made(kind: str, config: dict[str, object]) -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        message = "a pipeline asks over Kafka, which needs its client library: pip install 'tpfd[kafka]'"
        raise ConfigError([Problem("$.await.kafka", message)]) from error
    try:
        return getattr(confluent_kafka, kind)({**config, "logger": _Logger()})
    except confluent_kafka.KafkaException as error:
        raise ConfigError([Problem(PROPERTIES, f"the client library says: {error.args[0].str()}")]) from error
