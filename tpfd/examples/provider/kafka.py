"""The provider's line over Kafka: the same clients as the daemon's, with the topics the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from attrs import define, field, frozen

from tpfd.blocking import Threads
from tpfd.examples.provider.broker import Asked
from tpfd.transports.broker import Confirmed, Inbound
from tpfd.transports.kafka_settings import KafkaSettings
from tpfd.transports.kafka_source import KafkaSource
from tpfd.transports.kafka_wire import KafkaMessage, KafkaProducer

GROUP = "mock-payment-provider"
QUICK: Mapping[str, str] = {"consumer.session.timeout.ms": "6000"}
"""Somebody watches: one that died is replaced soon."""


@frozen(kw_only=True)
class Topics:
    """Where the provider is asked and answers.

    Attributes:
        bootstrap: brokers as host:port,host:port.
    """

    bootstrap: str
    requests: str
    answers: str


@define(eq=False)
class KafkaLine:
    """See ``tpfd.examples.provider.broker.Line``.

    Raises:
        ConfigError: the client library is not installed.
    """

    topics: Topics
    reader_count: int = 1
    _source: KafkaSource = field(init=False)
    _producer: KafkaProducer = field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = KafkaSettings(bootstrap=self.topics.bootstrap, client_id=GROUP, properties=QUICK)
        self._source = KafkaSource(settings=settings, topics=(self.topics.requests,), group=GROUP)
        self._producer = KafkaProducer(settings, Threads(1))

    @property
    def name(self) -> str:
        """The topic of the requests."""
        return f"topic {self.topics.requests}"

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Reads as a member of the group; what was not answered at the end comes again."""
        return self._source.opened()

    async def receive(self, limit: int) -> Sequence[Asked]:
        """See the protocol."""
        return [Asked(inbound.body or b"", inbound) for inbound in await self._source.receive(limit)]

    def done(self, mark: object) -> None:
        """See the protocol."""
        assert isinstance(mark, Inbound)
        self._source.done(mark)

    async def answer(self, bodies: Sequence[bytes]) -> Sequence[str | None]:
        """See the protocol."""
        outcomes = await self._producer.send([KafkaMessage(self.topics.answers, None, body, []) for body in bodies])
        return [None if isinstance(outcome, Confirmed) else outcome.message for outcome in outcomes]
