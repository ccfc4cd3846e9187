"""csv-payments on the profile of several hosts: DynamoDB, SQS for work, requests and answers, S3, two replicas."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.aws.standin import StandIn
from tests.e2e.processes import Daemon, Process, configure, running, serving, wait_until
from tpfd import examples

ROW_COUNT = 300
WINDOW = 50
FOLDER = 'provider: filesystem\n    location: {root: "${CSV_FOLDER_PATH:-csv}"}'
TRANSPORT = 'type: "${CSV_PAYMENT_TRANSPORT:-websocket}"'


@frozen
class Site:
    """What two replicas share, and the bucket beside it.

    Attributes:
        queues: URLs by use.
        books: what the provider has decided.
    """

    aws: StandIn
    folder: Path
    bucket: str
    queues: dict[str, str]
    prefix: str

    @property
    def books(self) -> Path:
        return self.folder / "books.jsonl"

    def config(self, name: str) -> Path:
        """One replica's configuration."""
        place = {"region": self.aws.region, "endpoint": self.aws.endpoint}
        answers = {"enabled": True, "response-queue-url": self.queues["answers"], "max-messages": 10}
        return configure(
            self.folder,
            name,
            str(self.folder / "on-aws.yaml"),
            store={"provider": "dynamodb", "dynamodb": {**place, "table-prefix": self.prefix}},
            dispatcher={
                "provider": "sqs",
                "sqs": {**place, "queue-url": self.queues["work"], "wait": "1s", "visibility": "10s"},
            },
            **{
                "dead-letters": {"provider": "sqs", "sqs": {"queue-url": self.queues["letters"]}},
                "await": {"sqs": {"poller": answers}},
                "steps": {"max-concurrency": WINDOW},
                "lease": {"duration": "6s"},  # the stand-in may be slow to answer on a busy machine
            },
        )

    @asynccontextmanager
    async def provider(self, *manners: str) -> AsyncIterator[Process]:
        queues = ("--request-queue", self.queues["requests"], "--answer-queue", self.queues["answers"])
        how = ("--step", "await-payment-provider", "--transport", "sqs", "--endpoint", self.aws.endpoint)
        arguments = ["provider", *how, *queues, "--log", str(self.books), *manners]
        async with running("provider", arguments, self.folder) as process:
            yield process

    def put(self, key: str, text: str) -> None:
        self.aws.client("s3").put_object(Bucket=self.bucket, Key=key, Body=text.encode())

    def read(self, key: str) -> str:
        text: str = self.aws.client("s3").get_object(Bucket=self.bucket, Key=key)["Body"].read().decode()
        return text

    def decided(self) -> list[dict[str, Any]]:
        if not self.books.exists():
            return []
        return [json.loads(line) for line in self.books.read_text("utf-8").splitlines() if line.endswith("}")]


@pytest.fixture
async def site(aws: StandIn, tmp_path: Path) -> Site:
    """A bucket of its own; tables and queues as `tpfd provision` makes them."""
    bucket = aws.name("payments")
    aws.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": aws.region})
    urls = {use: f"{aws.endpoint}/000000000000/{aws.name(use)}" for use in ("work", "letters", "requests", "answers")}
    site = Site(aws, tmp_path, bucket, urls, f"{aws.name('csv')}_")
    text = examples.pipeline_text("csv-payments")
    assert text.count(FOLDER) == 2
    for prefix in ("in", "out"):
        location = f"{{bucket: {bucket}, prefix: {prefix}, region: {aws.region}, endpoint: '{aws.endpoint}'}}"
        text = text.replace(FOLDER, f"provider: s3\n    location: {location}", 1)
    head, _, rest = text.partition(TRANSPORT)
    behind = rest.partition("\n  - name:")[2]
    asked = f"type: sqs\n        request: {{queueUrl: '{urls['requests']}'}}\n\n  - name:{behind}"
    (tmp_path / "on-aws.yaml").write_text(head + asked, "utf-8")
    async with running("made", ["provision", "--config", str(site.config("provision"))], tmp_path) as process:
        assert await process.ended() == 0, process.text()
    async with running("check", ["check", "--connect", "--config", str(site.config("check"))], tmp_path) as process:
        assert await process.ended() == 0, process.text() + process.log.with_suffix(".out").read_text()
    return site


def payments() -> str:
    rows = "".join(f"{n},Recipient {n},{n * 37 % 9000 + 1}.{n * 7 % 100:02d},EUR\n" for n in range(1, ROW_COUNT + 1))
    return "ID,Recipient,Amount,Currency\n" + rows


async def the_execution(daemon: Daemon) -> str:
    async def taken() -> str | None:
        daemon.alive()
        found = await daemon.executions()
        return str(found[0]["executionId"]) if found else None

    return await wait_until("the object to be taken in", taken)


def check_output(site: Site) -> None:
    """Every row is in it once, with the amount that was asked for and the answer that was given."""
    got = list(csv.DictReader(io.StringIO(site.read("out/payments.csv.out"))))
    wanted = {row["ID"]: row["Amount"] for row in csv.DictReader(io.StringIO(payments()))}
    assert Counter(row["csvId"] for row in got) == dict.fromkeys(wanted, 1)
    assert {row["csvId"]: row["amount"] for row in got} == wanted
    decided = site.decided()
    names = {entry["csvId"]: entry["interactionId"] for entry in decided}
    assert {entry["interactionId"] for entry in decided} == set(names.values()), "a row was asked under two names"
    assert {row["csvId"]: row["status"] for row in got} == {entry["csvId"]: entry["outcome"] for entry in decided}


async def test_payments_go_from_bucket_to_bucket_through_two_replicas(site: Site) -> None:
    async with serving(site.folder, site.config("a")) as a, serving(site.folder, site.config("b")) as b:
        async with site.provider("--latency", "20ms", "--reject-probability", "0.1") as provider:
            site.put("in/payments.csv", payments())
            execution = await the_execution(a)
            ended = await b.wait_status(execution, "SUCCEEDED")
            assert await provider.stop() == 0
        assert ended["workerLosses"] == 0
        assert [one["executionId"] for one in await b.executions()] == [execution]
        for daemon in (a, b):
            assert await daemon.stop() == 0
            assert daemon.complained() == []
    check_output(site)
    assert len(site.decided()) == ROW_COUNT


async def test_a_replica_killed_in_the_middle_is_taken_over_from(site: Site) -> None:
    async with serving(site.folder, site.config("a")) as a, serving(site.folder, site.config("b")) as b:
        async with site.provider("--latency", "50ms") as provider:
            site.put("in/payments.csv", payments())
            execution = await the_execution(a)

            async def some_decided() -> bool:
                return len(site.decided()) >= ROW_COUNT // 3

            await wait_until("a third of the answers", some_decided)
            owner, other = (a, b) if await owner_of(b, execution) == "a" else (b, a)
            await owner.kill()
            assert owner.process.returncode == -signal.SIGKILL
            ended = await other.wait_status(execution, "SUCCEEDED", within_s=120)
            assert await provider.stop() == 0
        assert ended["workerLosses"] >= 1
        assert await other.stop() == 0
    check_output(site)
    again = Counter(entry["interactionId"] for entry in site.decided())
    assert sum(1 for count in again.values() if count > 1) <= WINDOW


async def owner_of(daemon: Daemon, execution_id: str) -> str:
    """The name of the replica that runs it."""

    async def look() -> str | None:
        facts = (await daemon.client.get(f"/pipeline/executions/{execution_id}/history")).json()
        owners = [fact["data"]["owner"] for fact in facts if fact["type"] == "SegmentAttemptStarted"]
        return str(owners[-1]) if owners else None

    return await wait_until("its owner", look)
