"""``tpfd provider``: the mock payment provider as a process of its own."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
import trio

from tpfd.cli.exits import Exit
from tpfd.cli.options import PROBABILITY, duration_or_zero, host_and_port
from tpfd.cli.output import print_json, tell
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.config.fields import SecretRef
from tpfd.config.secrets import read_secret
from tpfd.errors import TpfdError
from tpfd.examples.provider.attachment import Target
from tpfd.examples.provider.books import Tally
from tpfd.examples.provider.broker import BrokerProvider, Line
from tpfd.examples.provider.decision import Manners, UnknownRequest
from tpfd.examples.provider.hook import Service, WebhookProvider
from tpfd.examples.provider.kafka import KafkaLine, Topics
from tpfd.examples.provider.log import RequestLog, open_log
from tpfd.examples.provider.session import Provider
from tpfd.examples.provider.sqs import Queues, SqsLine

AnyProvider = Provider | WebhookProvider | BrokerProvider
MakeProvider = Callable[[RequestLog | None], AnyProvider]
TRANSPORTS = ("websocket", "webhook", "sqs", "kafka")


@click.command(short_help="Run the mock payment provider.")
@click.option("--url", metavar="URL", help="The daemon; the global --url if absent.")
@click.option(
    "--listen", type=host_and_port, metavar="HOST:PORT", help="Be asked by webhook here, instead of attaching to --url."
)
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="FILE", help="With --listen: take only what it signs."
)
@click.option("--transport", type=click.Choice(TRANSPORTS), help="How it is asked.  [default: websocket, or --listen]")
@click.option("--request-queue", metavar="URL", help="With sqs: the queue that requests come from.")
@click.option("--answer-queue", metavar="URL", help="With sqs: the queue that answers go to.")
@click.option("--endpoint", default="", metavar="URL", help="With sqs: another endpoint than the region's.")
@click.option("--bootstrap", metavar="HOST:PORT", help="With kafka: the brokers.")
@click.option("--request-topic", metavar="TOPIC", help="With kafka: the topic that requests come from.")
@click.option("--answer-topic", metavar="TOPIC", help="With kafka: the topic that answers go to.")
@click.option("--step", required=True, metavar="STEP", help="The await step to answer.")
@click.option("--pipeline", metavar="ID", help="Its pipeline; needed when the daemon runs several.")
@click.option("--tenant", metavar="ID", help="Tenant; the global --tenant or 'default' if absent.")
@click.option("--credit", type=click.IntRange(1, 10_000), default=256, show_default=True, help="Requests in hand.")
@click.option("--latency", type=duration_or_zero, default="0s", metavar="DURATION", help="Time to think per request.")
@click.option("--permits-per-second", type=click.FloatRange(0), default=0.0, help="Answers per second; 0: no limit.")
@click.option("--reject-probability", type=PROBABILITY, default=0.0, help="Share that is not approved.")
@click.option("--duplicate-probability", type=PROBABILITY, default=0.0, help="Share that is answered twice.")
@click.option("--late-probability", type=PROBABILITY, default=0.0, help="Share that is answered after its deadline.")
@click.option("--drop-probability", type=PROBABILITY, default=0.0, help="Share that is never answered.")
@click.option("--log", "log_file", type=click.Path(path_type=Path), metavar="FILE", help="Append a line per request.")
@pass_settings
def provider(
    settings: Settings,
    *,
    url: str | None,
    listen: tuple[str, int] | None,
    secret_file: Path | None,
    transport: str | None,
    request_queue: str | None,
    answer_queue: str | None,
    endpoint: str,
    bootstrap: str | None,
    request_topic: str | None,
    answer_topic: str | None,
    step: str,
    pipeline: str | None,
    tenant: str | None,
    credit: int,
    latency: int,
    permits_per_second: float,
    reject_probability: float,
    duplicate_probability: float,
    late_probability: float,
    drop_probability: float,
    log_file: Path | None,
) -> int:
    """Run the mock payment provider of csv-payments.

    It attaches to the daemon over WebSocket, answers every request of the step, and attaches again whenever the
    daemon goes away. With --listen it is a web service that webhooks call: it takes each request with 202 and sends
    the answer to the request's callback. With --transport sqs or kafka it takes requests from one queue or topic and
    sends the answers to another. SIGTERM or Ctrl-C lets it finish what it has in hand; a second one ends it at
    once. Which payments it rejects depends on the payment alone.

    \b
    Example:
      tpfd provider --url http://127.0.0.1:8081 --step await-payment-provider --latency 20ms \\
        --reject-probability 0.08 --log provider.jsonl
      tpfd provider --transport sqs --request-queue URL --answer-queue URL --step await-payment-provider
      tpfd provider --bootstrap 127.0.0.1:9092 --request-topic payments --answer-topic results \\
        --step await-payment-provider
      tpfd provider --listen 127.0.0.1:8090 --secret-file webhook.secret --step await-payment-provider
    """
    if late_probability + drop_probability + duplicate_probability > 1:
        raise click.UsageError("--late-, --drop- and --duplicate-probability must not add up to more than 1")
    if secret_file is not None and listen is None:
        raise click.UsageError("--secret-file checks webhooks; it needs --listen")
    if listen is not None and (url or pipeline or tenant):
        raise click.UsageError("with --listen, requests say whose they are: leave out --url, --pipeline and --tenant")
    topics = (bootstrap, request_topic, answer_topic)
    _check_transport(transport, listen, (request_queue, answer_queue), topics)
    manners = Manners(
        latency_s=latency / 1000,
        permits_per_second=permits_per_second,
        reject_probability=reject_probability,
        duplicate_probability=duplicate_probability,
        late_probability=late_probability,
        drop_probability=drop_probability,
    )

    def make(log: RequestLog | None) -> AnyProvider:
        if request_queue is not None and answer_queue is not None:
            line: Line = SqsLine(Queues(request_url=request_queue, answer_url=answer_queue, endpoint=endpoint))
            return BrokerProvider(line, step, credit, manners, log, random.Random(), tell)
        if bootstrap is not None and request_topic is not None and answer_topic is not None:
            line = KafkaLine(Topics(bootstrap=bootstrap, requests=request_topic, answers=answer_topic))
            return BrokerProvider(line, step, credit, manners, log, random.Random(), tell)
        if listen is not None:
            service = Service(
                host=listen[0],
                port=listen[1],
                step=step,
                secret=None if secret_file is None else _secret(secret_file),
                token=settings.bearer(),
                places=credit,
            )
            return WebhookProvider(service, manners, log, random.Random(), tell)
        target = Target(
            url=url or settings.url,
            step=step,
            pipeline=pipeline,
            tenant=tenant or settings.tenant or "default",
            token=settings.bearer(),
            credit=credit,
        )
        return Provider(target, manners, log, random.Random(), tell)

    try:
        tally = trio.run(_serve, make, log_file)
    except UnknownRequest as error:
        tell(f"error: {error.message}")
        return Exit.USAGE
    if settings.output is Output.JSON:
        print_json(
            {
                "asked": tally.asked_count,
                "approved": tally.approved_count,
                "unapproved": tally.unapproved_count,
                "duplicates": tally.duplicate_count,
                "refused": tally.refused_count,
            }
        )
    else:
        tell(f"asked {tally.asked_count}, approved {tally.approved_count}, unapproved {tally.unapproved_count}")
    return Exit.OK


def _check_transport(
    named: str | None, listen: tuple[str, int] | None, queues: Sequence[str | None], topics: Sequence[str | None]
) -> None:
    """Sees that the options agree about how the provider is asked."""
    usual = "webhook" if listen is not None else "sqs" if any(queues) else "kafka" if any(topics) else "websocket"
    transport = named or usual
    if (transport == "webhook") != (listen is not None):
        raise click.UsageError("--listen and the transport webhook belong together")
    for name, given, options in (
        ("sqs", queues, "--request-queue and --answer-queue"),
        ("kafka", topics, "--bootstrap, --request-topic and --answer-topic"),
    ):
        if transport == name and not all(given):
            raise click.UsageError(f"the transport {name} needs {options}")
        if transport != name and any(given):
            raise click.UsageError(f"{options} are for the transport {name}")


def _secret(file: Path) -> bytes:
    try:
        return read_secret(SecretRef("file", str(file)), os.environ).reveal()
    except ValueError as error:
        raise click.UsageError(f"--secret-file: {error}") from error


async def _serve(make: MakeProvider, log_file: Path | None) -> Tally:
    """Runs the provider until a signal; its errors leave as they are, not in a group."""
    failure: TpfdError | None = None
    async with AsyncExitStack() as stack:
        log = None if log_file is None else await stack.enter_async_context(open_log(log_file))
        provider = make(log)
        async with trio.open_nursery() as nursery:
            await nursery.start(_stop_on_signal, provider.stopping, nursery.cancel_scope)
            try:
                await provider.run()
            except TpfdError as error:
                failure = error
            nursery.cancel_scope.cancel(reason="the provider has finished")
    if failure is not None:
        raise failure
    return provider.tally


async def _stop_on_signal(
    stopping: trio.Event, everything: trio.CancelScope, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if stopping.is_set():
                everything.cancel(reason="told to stop twice")
                return
            stopping.set()
