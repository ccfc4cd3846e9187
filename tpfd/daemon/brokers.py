"""Brokers in the daemon: a link for every await step that asks through one, a consumer for every source of answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from tpfd.awaits.admission import Admission, Answer
from tpfd.aws.queue_urls import queue_name
from tpfd.aws.sqs_held import HeldMessages
from tpfd.blocking import Threads
from tpfd.config.model import Config
from tpfd.core.deadletter import UnreadableAnswer
from tpfd.daemon.dispatching import SqsQueues
from tpfd.dispatch.protocol import DeadLetters
from tpfd.pipeline.model import Step
from tpfd.program import Program
from tpfd.runtime import Runtime
from tpfd.transports.broker import AnswerSource, Wire
from tpfd.transports.broker_answers import AnswerConsumer
from tpfd.transports.broker_envelope import BrokerAnswer
from tpfd.transports.broker_link import LET_GO_MS, BrokerLink
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.kafka_client import check_consumer
from tpfd.transports.kafka_settings import KAFKA, KafkaSettings, read_kafka_steps
from tpfd.transports.kafka_source import KafkaSource
from tpfd.transports.kafka_wire import KafkaProducer, KafkaWire
from tpfd.transports.sockets import Sockets
from tpfd.transports.sqs_await import RECEIVES_AT_ONCE, SqsAnswers, SqsWire
from tpfd.transports.sqs_settings import SQS, read_sqs_steps

SQS_PARALLEL_COUNT = 4
"""Batches of one step that are on their way to SQS at once."""


@define(eq=False, kw_only=True)
class Brokers:
    """What this process has to do with brokers; nothing where no pipeline asks through one."""

    runtime: Runtime
    sockets: Sockets
    envelopes: EnvelopeWriter
    admission: Admission
    bury: Callable[[UnreadableAnswer], Awaitable[None]]
    links: list[BrokerLink] = field(factory=list)
    consumers: list[AnswerConsumer] = field(factory=list)

    def send(self, program: Program, step: Step, transport: str, wire: Wire) -> None:
        """Has the requests of a step go out over a wire."""
        has_budget = program.terms[step.index].budget_scope is not None
        self.links.append(
            BrokerLink(
                runtime=self.runtime,
                sockets=self.sockets,
                pipeline_id=program.pipeline_id,
                step_id=step.step_id,
                transport=transport,
                wire=wire,
                envelopes=self.envelopes,
                give_up=self.admission.give_up,
                credit=program.budget_size(step),
                let_go_ms=LET_GO_MS if has_budget else 0,
            )
        )

    def receive(self, source: AnswerSource) -> None:
        """Has the answers of a source taken in."""
        self.consumers.append(
            AnswerConsumer(runtime=self.runtime, source=source, complete=self._complete, bury=self.bury)
        )

    async def _complete(self, answer: BrokerAnswer) -> None:
        await self.admission.complete(
            Answer(
                tenant_id=answer.tenant_id,
                interaction_id=answer.interaction_id,
                correlation_id=answer.correlation_id,
                resume_token=answer.resume_token,
                key=answer.key,
                payload=answer.payload,
                actor=answer.actor,
                by_broker=True,
            )
        )

    def start(self, intake: trio.Nursery) -> None:
        """Starts all of it. Cancelled, it puts back what was not sent; what is in hand comes again."""
        for link in self.links:
            intake.start_soon(link.run)
        for consumer in self.consumers:
            intake.start_soon(consumer.run)


def add_sqs(brokers: Brokers, config: Config, queues: SqsQueues) -> None:
    """Adds the steps that ask over SQS, and the poller of their answers if it is switched on.

    Raises:
        ConfigError: a setting of a pipeline cannot be used, or no client can be made.
    """
    poller = config.await_.sqs.poller
    answer_urls = {poller.response_queue_url: None} if poller.enabled else {}
    for program in brokers.runtime.programs.values():
        for index, queue in read_sqs_steps(program.pipeline).items():
            wire = SqsWire(queues.queue(queue.request_url), SQS_PARALLEL_COUNT)
            brokers.send(program, program.step(index), SQS, wire)
            if poller.enabled and queue.response_url is not None:
                answer_urls[queue.response_url] = None
    wait_s = poller.wait_ms // 1000
    for url in answer_urls:
        held = HeldMessages(
            name=f"answers_{queue_name(url)}",
            queue=queues.queue(url, receive_wait_s=wait_s, receive_count=RECEIVES_AT_ONCE),
            visibility_s=-(-poller.visibility_ms // 1000),
            trouble=brokers.runtime.trouble,
            longest_s=poller.completion_timeout_ms / 1000,
        )
        brokers.receive(
            SqsAnswers(
                held=held, wait_s=wait_s, receive_limit=poller.max_messages, start_delay_s=poller.start_delay_ms / 1000
            )
        )


def add_kafka(brokers: Brokers, config: Config) -> None:
    """Adds the steps that ask over Kafka, and a consumer for each group that reads their answers.

    Raises:
        ConfigError: a setting cannot be used, or the client library is not installed.
    """
    kafka = config.await_.kafka
    steps = [
        (program, program.step(index), topics)
        for program in brokers.runtime.programs.values()
        for index, topics in read_kafka_steps(program.pipeline).items()
    ]
    if not steps:
        return
    settings = KafkaSettings(bootstrap=kafka.bootstrap, client_id=kafka.client_id, properties=kafka.properties)
    check_consumer(settings)
    producer = KafkaProducer(settings, Threads(1))
    groups: dict[str, dict[str, None]] = {}
    for program, step, topics in steps:
        brokers.send(program, step, KAFKA, KafkaWire(producer, topics))
        group = topics.group or kafka.consumer_group or f"tpfd-{program.pipeline_id}"
        groups.setdefault(group, {})[topics.response_topic] = None
    for group, answers in groups.items():
        brokers.receive(KafkaSource(settings=settings, topics=tuple(answers), group=group))


def make_brokers(
    config: Config,
    runtime: Runtime,
    sockets: Sockets,
    envelopes: EnvelopeWriter,
    admission: Admission,
    letters: DeadLetters,
    queues: SqsQueues,
) -> Brokers:
    """Wires the brokers of all pipelines.

    Raises:
        ConfigError: see `add_sqs` and `add_kafka`.
    """
    brokers = Brokers(
        runtime=runtime, sockets=sockets, envelopes=envelopes, admission=admission, bury=letters.publish
    )
    add_sqs(brokers, config, queues)
    add_kafka(brokers, config)
    return brokers
