"""Real daemons, a real provider and a real queue service between them: payments over SQS, whoever dies meanwhile."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from tests.aws.standin import CLIENT_ENVIRONMENT, StandIn
from tests.e2e.processes import Daemon, Process, configure, running, serving, wait_until, write_payments
from tpfd import examples

STEP = "await-payment-provider"


class Payments:
    """A folder with payments, two queues, and whoever works with them."""

    def __init__(self, folder: Path, standin: StandIn) -> None:
        self.folder = folder
        self.standin = standin
        self.sqs = standin.client("sqs")
        self.requests, self.answers, self.letters = (
            self.sqs.create_queue(QueueName=standin.name(use))["QueueUrl"] for use in ("requests", "answers", "letters")
        )
        self.inbox = folder / "csv"
        self.inbox.mkdir()
        self.provider_log = folder / "provider.jsonl"
        self.pipeline = folder / "pipeline.yaml"
        pipeline = yaml.safe_load(examples.pipeline_text("csv-payments"))
        (step,) = [step for step in pipeline["steps"] if "await" in step]
        step["await"]["transport"] = {"type": "sqs", "request": {"queueUrl": self.requests}}
        self.pipeline.write_text(yaml.safe_dump(pipeline, sort_keys=False), "utf-8")

    @asynccontextmanager
    async def daemon(self, name: str = "a", **sections: Any) -> AsyncIterator[Daemon]:
        poller = {"enabled": True, "response-queue-url": self.answers, "max-messages": 10, "visibility": "2s"}
        more = {
            "dispatcher": {"sqs": {"endpoint": self.standin.endpoint}},
            "dead-letters": {"provider": "sqs", "sqs": {"queue-url": self.letters}},
            "await": {"sqs": {"poller": poller}},
            **sections,
        }
        config = configure(self.folder, name, str(self.pipeline), **more)
        environ = {**CLIENT_ENVIRONMENT, "CSV_FOLDER_PATH": str(self.inbox)}
        async with serving(self.folder, config, **environ) as daemon:
            yield daemon

    @asynccontextmanager
    async def provider(self, *options: str) -> AsyncIterator[Process]:
        queues = ("--request-queue", self.requests, "--answer-queue", self.answers)
        where = ("--endpoint", self.standin.endpoint, "--step", STEP, "--log", str(self.provider_log))
        arguments = ["provider", *queues, *where, *options]
        async with running("provider", arguments, self.folder, **CLIENT_ENVIRONMENT) as provider:
            yield provider

    async def paid(self, count: int) -> None:
        """Waits for the output and looks at it."""
        output = self.inbox / "payments.csv.out"

        async def there() -> bool:
            return output.exists()

        await wait_until("the output", there)
        with output.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert sorted(int(row["csvId"]) for row in rows) == list(range(1, count + 1)), "every payment once"

    def asked(self) -> list[str]:
        """The payments that the provider was asked about, as often as it was."""
        lines = self.provider_log.read_text("utf-8").splitlines() if self.provider_log.exists() else []
        return [json.loads(line)["csvId"] for line in lines if line.endswith("}")]

    async def until_asked(self, count: int) -> None:
        async def look() -> bool:
            return len(self.asked()) >= count

        await wait_until(f"{count} payments to be asked about", look)

    async def all_gone(self, url: str) -> None:
        """Waits until a queue is empty, with nothing in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

        def attributes() -> dict[str, str]:
            found: dict[str, str] = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
            return found

        async def look() -> bool:
            return set((await trio.to_thread.run_sync(attributes)).values()) == {"0"}

        await wait_until(f"{url} to be empty", look)


@pytest.fixture
def payments(tmp_path: Path, aws: StandIn) -> Payments:
    return Payments(tmp_path, aws)


async def test_a_file_is_paid_over_sqs_and_what_cannot_be_read_is_told(payments: Payments) -> None:
    bodies = ["{", json.dumps({"tenantId": "default", "responsePayload": {}})]
    async with payments.daemon() as daemon, payments.provider("--latency", "20ms") as provider:
        write_payments(payments.inbox / "payments.csv", 400)
        for body in bodies:
            send = functools.partial(payments.sqs.send_message, QueueUrl=payments.answers, MessageBody=body)
            await trio.to_thread.run_sync(send)
        await payments.paid(400)
        assert sorted(payments.asked(), key=int) == [str(number) for number in range(1, 401)]
        await payments.all_gone(payments.requests)
        await payments.all_gone(payments.answers)
        health = await daemon.client.get("/q/health/ready")
        assert health.status_code == 200, health.text
        letters = [
            json.loads(message["Body"])
            for message in payments.sqs.receive_message(QueueUrl=payments.letters, MaxNumberOfMessages=10)["Messages"]
        ]
        assert {letter["reason"] for letter in letters} == {"malformed", "envelope_invalid"}
        assert await provider.stop() == 0
        assert await daemon.stop() == 0
        assert {event["event"] for event in daemon.complained()} == {"answer_unreadable"}


async def test_a_killed_daemon_s_payments_are_paid_by_the_next(payments: Payments) -> None:
    async with payments.provider("--latency", "50ms"):
        async with payments.daemon() as daemon:
            write_payments(payments.inbox / "payments.csv", 300)
            await payments.until_asked(60)
            await daemon.kill()
        async with payments.daemon():
            await payments.paid(300)


async def test_a_provider_that_is_killed_with_requests_in_hand_is_followed_by_the_next(payments: Payments) -> None:
    async with payments.daemon():
        async with payments.provider("--latency", "50ms") as provider:
            write_payments(payments.inbox / "payments.csv", 300)
            await payments.until_asked(60)
            await provider.kill()
        async with payments.provider():
            await payments.paid(300)


async def test_the_demo_runs_over_sqs_and_leaves_no_queue(aws: StandIn, tmp_path: Path) -> None:
    options = ["--rows", "200", "--transport", "sqs", "--endpoint", aws.endpoint, "--dir", str(tmp_path / "demo")]
    arguments = ["--output", "json", "demo", "csv-payments", *options]
    async with running("demo", arguments, tmp_path, **CLIENT_ENVIRONMENT) as demo:
        assert await demo.ended() == 0, demo.text()
    summary = demo.printed()
    assert (summary["rows"], summary["transport"]) == (200, "sqs")
    assert aws.client("sqs").list_queues(QueueNamePrefix="tpfd-demo-").get("QueueUrls", []) == []


async def test_a_demo_over_sqs_says_when_nobody_is_at_the_endpoint(tmp_path: Path) -> None:
    options = ["--transport", "sqs", "--endpoint", "http://127.0.0.1:1", "--dir", str(tmp_path / "demo")]
    async with running("demo", ["demo", "csv-payments", *options], tmp_path, **CLIENT_ENVIRONMENT) as demo:
        assert await demo.ended() == 1
    assert "no queue could be made at http://127.0.0.1:1" in demo.text()
