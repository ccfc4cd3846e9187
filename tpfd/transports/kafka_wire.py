"""Sends requests to Kafka topics. A request counts as sent when the broker has reported its delivery."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio
from attrs import define, field, frozen

from tpfd.blocking import Blocking
from tpfd.ops.logs import get_logger
from tpfd.transports.broker import Confirmed, Outcome, Outgoing, Postponed, Unsendable
from tpfd.transports.kafka_client import SEND_TIMEOUT_MS, make_producer
from tpfd.transports.kafka_settings import KafkaSettings, KafkaStep

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = get_logger("tpfd.kafka")

BATCH_COUNT = 256
"""Requests handed over together; their bodies are what the library's own queue holds at most."""
POLL_S = 0.1
CANCELLED_S = 1.0
"""Time that a cancelled batch still has, to hear of what is on its way."""
UNSENDABLE = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD", "INVALID_MSG"})
"""Errors that mean the request itself; a missing topic or right is the operator's to mend, and worth waiting for."""


@frozen
class KafkaMessage:
    """One record to produce.

    Attributes:
        key: records with the same one stay in order; None: any partition will do.
    """

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


@define(eq=False)
class KafkaProducer:
    """The producer of this process. All links hand it their batches; one thread drives it, one batch at a time.

    Args:
        threads: of one thread; a batch is not left behind when it is cancelled.
    """

    settings: KafkaSettings
    threads: Blocking
    _producer: Producer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._producer = make_producer(self.settings, _ignore)

    async def send(self, messages: Sequence[KafkaMessage]) -> list[Outcome]:
        """Produces some records and waits for their delivery reports; the outcome of each, in order.

        **Cancellation**: waits shortly for what is on its way; if all reports come, they are returned.
        """
        return await self.threads.run(self._send, messages)

    def _send(self, messages: Sequence[KafkaMessage]) -> list[Outcome]:
        """In the thread. Ends when all is reported: the library gives up by itself after SEND_TIMEOUT_MS."""
        outcomes: list[Outcome | None] = [None] * len(messages)
        give_up_s = time.monotonic() + SEND_TIMEOUT_MS / 1000
        for place, message in enumerate(messages):
            self._produce(message, functools.partial(_report, outcomes, place), outcomes, place, give_up_s)
        while any(outcome is None for outcome in outcomes):
            self._producer.poll(POLL_S)
            self._stop_if_cancelled(outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _produce(
        self, message: KafkaMessage, report: object, outcomes: list[Outcome | None], place: int, give_up_s: float
    ) -> None:
        """Hands one record to the library; when its queue is full, waits for room: that slows whoever asks."""
        from confluent_kafka import KafkaException

        while True:
            try:
                self._producer.produce(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    headers=message.headers,
                    on_delivery=report,  # type: ignore[arg-type]
                )
            except BufferError:
                if time.monotonic() > give_up_s:
                    outcomes[place] = Postponed("the client's queue is full and does not get empty")
                    return
                self._producer.poll(POLL_S)
                self._stop_if_cancelled(outcomes)
            except KafkaException as error:
                outcomes[place] = _refusal(error.args[0])
                return
            else:
                self._producer.poll(0)
                return

    def _stop_if_cancelled(self, outcomes: Sequence[Outcome | None]) -> None:
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled:
            give_up_s = time.monotonic() + CANCELLED_S
            while any(outcome is None for outcome in outcomes) and time.monotonic() < give_up_s:
                self._producer.poll(POLL_S)
            if any(outcome is None for outcome in outcomes):
                self._producer.purge()
                self._producer.poll(0)
                raise


def _report(outcomes: list[Outcome | None], place: int, error: KafkaError | None, _message: Message) -> None:
    outcomes[place] = Confirmed() if error is None else _refusal(error)


def _refusal(error: KafkaError) -> Outcome:
    text = f"{error.str()} ({error.name()})"
    return Unsendable(text) if error.name() in UNSENDABLE else Postponed(text)


def _ignore(error: KafkaError) -> None:
    """Errors of the connection show in what becomes of the requests."""
    log.debug("kafka_producer_error", message=error.str())


@define(eq=False)
class KafkaWire:
    """Carries the requests of one step to its topic."""

    producer: KafkaProducer
    step: KafkaStep
    batch_count: int = BATCH_COUNT
    parallel_count: int = 1

    async def send(self, requests: Sequence[Outgoing]) -> Sequence[Outcome]:
        """See `tpfd.transports.broker.Wire`."""
        return await self.producer.send([self._message(request) for request in requests])

    def _message(self, request: Outgoing) -> KafkaMessage:
        step, record = self.step, request.record
        return KafkaMessage(step.request_topic, step.record_key(record), request.body, step.record_headers(record))
