"""Looks at a broker from outside, for whoever wants to know beforehand whether it can be worked with."""

from __future__ import annotations

from collections.abc import Iterable

from tpfd.errors import TransportError
from tpfd.transports.kafka_client import make_producer
from tpfd.transports.kafka_settings import KafkaSettings

LOOK_S = 10.0
"""How long the brokers have to answer."""


def missing_topics(settings: KafkaSettings, topics: Iterable[str], within_s: float | None = None) -> list[str]:
    """Which of the topics are not there. Blocks. None is made by being looked for.

    Args:
        within_s: time that the brokers have to answer; None: LOOK_S.

    Raises:
        ConfigError: the client library is not installed, or does not take the settings.
        TransportError: no broker answers.
    """
    producer = make_producer(settings, lambda _: None)
    from confluent_kafka import KafkaException

    try:
        there = producer.list_topics(timeout=LOOK_S if within_s is None else within_s).topics
    except KafkaException as error:
        raise TransportError(f"no broker at {settings.bootstrap} answers: {error.args[0].str()}") from error
    return sorted(set(topics) - set(there))
