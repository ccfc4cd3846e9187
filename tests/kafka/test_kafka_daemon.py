"""Real daemons, a real provider and a real broker between them: payments over Kafka, whoever dies meanwhile."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.processes import Daemon, Process, configure, running, serving, wait_until, write_payments
from tests.kafka.broker import QUICK, Broker
from tpfd import examples

STEP = "await-payment-provider"
_numbers = itertools.count()


FRAMEWORK_AWAIT = """\
      correlation: {strategy: signedResumeToken}
      transport:
        type: kafka
        request:
          topic: csv-payments.payment.requests
          key: correlationId
        response:
          topic: csv-payments.payment.results
        consumer:
          group: csv-payments-orchestrator
"""
"""How The Pipeline Framework's own csv-payments asks its provider."""


class Payments:
    """A folder with payments, two topics, and whoever works with them."""

    def __init__(self, folder: Path, broker: Broker, topics: tuple[str, str] | None = None) -> None:
        number = next(_numbers)
        self.folder = folder
        self.broker = broker
        self.requests, self.answers = topics or (f"requests-{number}", f"answers-{number}")
        broker.make_topics(self.requests, self.answers, partitions=3)
        self.inbox = folder / "csv"
        self.inbox.mkdir()
        self.provider_log = folder / "provider.jsonl"
        self.pipeline = folder / "pipeline.yaml"
        asks = f"request: {{topic: {self.requests}, key: correlationId}}\n        response: {{topic: {self.answers}}}"
        self.ask(
            "      correlation: {strategy: interactionId}\n      transport:\n"
            f"        type: kafka\n        {asks}\n        headers: {{tenant-hint: t}}\n"
        )

    def ask(self, settings: str) -> None:
        """Writes the example's pipeline with other settings of its await."""
        text = examples.pipeline_text("csv-payments")
        begin, end = text.index("      correlation: {"), text.index("  - name: Process Approved")
        self.pipeline.write_text(f"{text[:begin]}{settings}\n{text[end:]}", "utf-8")

    @asynccontextmanager
    async def daemon(self, name: str = "a", **sections: Any) -> AsyncIterator[Daemon]:
        properties = {f"consumer.{key}": value for key, value in QUICK.items()}
        kafka = {"bootstrap": self.broker.bootstrap, "properties": properties}
        config = configure(self.folder, name, str(self.pipeline), **{"await": {"kafka": kafka}, **sections})
        async with serving(self.folder, config, CSV_FOLDER_PATH=str(self.inbox)) as daemon:
            yield daemon

    @asynccontextmanager
    async def provider(self, name: str = "provider", *options: str) -> AsyncIterator[Process]:
        topics = ("--request-topic", self.requests, "--answer-topic", self.answers)
        where = ("--bootstrap", self.broker.bootstrap, *topics, "--step", STEP, "--log", str(self.provider_log))
        async with running(name, ["provider", *where, *options], self.folder) as provider:
            yield provider

    async def paid(self, count: int, within_s: float = 60.0) -> None:
        """Waits for the output and looks at it."""
        output = self.inbox / "payments.csv.out"

        async def there() -> bool:
            return output.exists()

        await wait_until("the output", there, within_s)
        with output.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert sorted(int(row["csvId"]) for row in rows) == list(range(1, count + 1)), "every payment once"

    def asked(self) -> list[str]:
        """The payments that the provider was asked about, as often as it was."""
        lines = self.provider_log.read_text("utf-8").splitlines() if self.provider_log.exists() else []
        return [json.loads(line)["csvId"] for line in lines]

    async def until_asked(self, count: int) -> None:
        async def look() -> bool:
            return len(self.asked()) >= count

        await wait_until(f"{count} payments to be asked about", look)


@pytest.fixture
def payments(tmp_path: Path, shared: Broker) -> Payments:
    return Payments(tmp_path, shared)


async def test_a_file_is_paid_over_kafka_each_payment_asked_once(payments: Payments) -> None:
    async with payments.daemon() as daemon, payments.provider():
        write_payments(payments.inbox / "payments.csv", 400)
        await payments.paid(400)
        assert sorted(payments.asked(), key=int) == [str(number) for number in range(1, 401)]
        health = await daemon.client.get("/q/health/ready")
        assert health.status_code == 200, health.text
        metrics = (await daemon.client.get("/q/metrics")).text
        step = 'pipeline="csv-payments",step="await-payment-provider"'
        assert f"tpf_await_completion_admitted_total{{{step}}} 400.0" in metrics
        assert [event["event"] for event in daemon.complained()] == []
        assert await daemon.stop() == 0


async def test_a_killed_daemon_s_payments_are_paid_by_the_next(payments: Payments) -> None:
    async with payments.provider("provider", "--latency", "50ms"):
        async with payments.daemon() as daemon:
            write_payments(payments.inbox / "payments.csv", 300)
            await payments.until_asked(60)
            await daemon.kill()
        async with payments.daemon():
            await payments.paid(300)


async def test_two_daemons_share_the_answers_and_one_is_killed(payments: Payments) -> None:
    slow = payments.provider("provider", "--latency", "50ms")
    async with slow, payments.daemon("a") as first, payments.daemon("b") as second:
        write_payments(payments.inbox / "payments.csv", 400)
        await payments.until_asked(100)
        await first.kill()
        await payments.paid(400)
        second.alive()


async def test_a_drained_daemon_asks_nothing_twice(payments: Payments) -> None:
    async with payments.provider("provider", "--latency", "100ms"):
        async with payments.daemon() as daemon:
            write_payments(payments.inbox / "payments.csv", 300)
            await payments.until_asked(60)
            assert await daemon.stop() == 0
        async with payments.daemon():
            await payments.paid(300)
    assert sorted(payments.asked(), key=int) == [str(number) for number in range(1, 301)]


async def test_the_framework_s_own_topics_and_group_are_used(tmp_path: Path, shared: Broker) -> None:
    payments = Payments(tmp_path, shared, ("csv-payments.payment.requests", "csv-payments.payment.results"))
    payments.ask(FRAMEWORK_AWAIT)
    secret = tmp_path / "secret"
    secret.write_text("tpf-test-secret-0123456789abcdef", "utf-8")
    secret.chmod(0o400)
    kafka = {"bootstrap": shared.bootstrap, "properties": {f"consumer.{key}": value for key, value in QUICK.items()}}
    settings = {"kafka": kafka, "resume-token-secrets": [{"file": str(secret)}]}
    async with payments.daemon("a", **{"await": settings}) as daemon, payments.provider():
        write_payments(payments.inbox / "payments.csv", 60)
        await payments.paid(60)
        assert await daemon.stop() == 0
    requests = await trio.to_thread.run_sync(shared.read, payments.requests, 60, range(3))
    for request in requests:
        envelope = json.loads(request.value())
        assert request.key().decode() == envelope["correlationId"]
        assert envelope["resumeToken"].count(".") == 1
    places = [
        await trio.to_thread.run_sync(shared.committed, "csv-payments-orchestrator", payments.answers, partition)
        for partition in range(3)
    ]
    assert sum(place or 0 for place in places) == 60, "every answer was read by the framework's group"


async def test_without_brokers_a_start_is_refused(tmp_path: Path, payments: Payments) -> None:
    config = configure(payments.folder, "bare", str(payments.pipeline))
    async with running("bare", ["serve", "--config", str(config)], payments.folder) as process:
        assert await process.ended() == 78
        assert "$.await.kafka.bootstrap" in process.text()


async def test_the_demo_runs_over_kafka_and_leaves_no_topic(tmp_path: Path, shared: Broker) -> None:
    options = ("--rows", "50", "--dir", str(tmp_path / "demo"), "--transport", "kafka", "--bootstrap", shared.bootstrap)
    async with running("demo", ["--output", "json", "demo", "csv-payments", *options], tmp_path) as demo:
        assert await demo.ended() == 0, demo.text()
        found = demo.printed()
    assert (found["rows"], found["transport"]) == (50, "kafka")
    assert [name for name in shared.topics() if name.startswith("tpfd-demo")] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "needs --bootstrap"),
        (("--bootstrap", "127.0.0.1:9", "--transport", "websocket"), "is for --transport kafka"),
    ],
)
async def test_the_demo_says_what_it_lacks(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    async with running("demo", ["demo", "csv-payments", "--transport", "kafka", *options], tmp_path) as demo:
        assert await demo.ended() == 2
        assert said in demo.text()


async def test_a_broker_that_is_killed_and_comes_back_loses_no_payment(tmp_path: Path, lasting: Broker) -> None:
    payments = Payments(tmp_path, lasting)
    async with payments.provider("provider", "--latency", "50ms"), payments.daemon() as daemon:
        write_payments(payments.inbox / "payments.csv", 300)
        await payments.until_asked(60)
        lasting.kill()

        async def told() -> bool:
            ready = await daemon.client.get("/q/health/ready")
            return ready.status_code == 503 and "kafka" in ready.text

        await wait_until("readiness to say that the broker is away", told)
        lasting.start()
        await payments.paid(300)
        asked = payments.asked()
        assert len(asked) - len(set(asked)) <= 250, "at most what was on its way is asked again"


async def test_a_setting_that_the_client_library_does_not_know_ends_the_start(payments: Payments) -> None:
    kafka = {"bootstrap": payments.broker.bootstrap, "properties": {"consumer.no.such.thing": "1"}}
    config = configure(payments.folder, "odd", str(payments.pipeline), **{"await": {"kafka": kafka}})
    environ = {"CSV_FOLDER_PATH": str(payments.inbox)}
    async with running("odd", ["serve", "--config", str(config)], payments.folder, **environ) as process:
        assert await process.ended() == 78
        assert "$.await.kafka.properties" in process.text()
        assert "no.such.thing" in process.text()
        assert process.events("ready") == []
