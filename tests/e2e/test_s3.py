"""Payments from a bucket into a bucket, by a daemon that keeps its executions on its own disk."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.aws.standin import CLIENT_ENVIRONMENT, StandIn
from tests.e2e.processes import Daemon, configure, provider_arguments, running, serving, wait_until
from tests.e2e.test_refused_starts import refused
from tpfd import examples

ROW_COUNT = 300
LAUNCHER = str(Path(__file__).with_name("s3_launcher.py"))


@frozen
class Bucket:
    """The bucket that the pipeline reads ``in/`` of and writes ``out/`` of."""

    client: Any
    name: str

    def put(self, key: str, text: str) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=text.encode())

    def read(self, key: str) -> str:
        text: str = self.client.get_object(Bucket=self.name, Key=key)["Body"].read().decode()
        return text

    def all_keys(self) -> list[str]:
        return sorted(entry["Key"] for entry in self.client.list_objects_v2(Bucket=self.name).get("Contents", []))

    def upload_count(self) -> int:
        return len(self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", []))


@pytest.fixture
def bucket(aws: StandIn) -> Bucket:
    client, name = aws.client("s3"), aws.name("payments")
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": aws.region})
    return Bucket(client, name)


def on_s3(aws: StandIn, bucket: Bucket, folder: Path, after: str) -> Path:
    """The shipped pipeline, with both of its locations in the bucket."""
    text = examples.pipeline_text("csv-payments")
    place = 'provider: filesystem\n    location: {root: "${CSV_FOLDER_PATH:-csv}"}'
    where = "provider: s3\n    location: {{bucket: {}, prefix: {}, region: {}, endpoint: '{}'}}"
    assert text.count(place) == 2
    for prefix in ("in", "out"):
        text = text.replace(place, where.format(bucket.name, prefix, aws.region, aws.endpoint), 1)
    assert "after: keep" in text
    file = folder / "on-s3.yaml"
    file.write_text(text.replace("after: keep", f"after: {after}"), "utf-8")
    return file


def payments() -> str:
    rows = "".join(f"{n},Recipient {n},{n * 37 % 9000 + 1}.{n * 7 % 100:02d},EUR\n" for n in range(1, ROW_COUNT + 1))
    return "ID,Recipient,Amount,Currency\n" + rows


async def succeeded(daemon: Daemon) -> str:
    """Waits until the file is in and its execution has succeeded; the id."""

    async def taken() -> str | None:
        daemon.alive()
        found = await daemon.executions()
        return str(found[0]["executionId"]) if found else None

    execution = await wait_until("the object to be taken in", taken)
    await daemon.wait_status(execution, "SUCCEEDED")
    return execution


def check_output(bucket: Bucket) -> None:
    got = list(csv.DictReader(io.StringIO(bucket.read("out/payments.csv.out"))))
    wanted = {row["ID"]: row["Amount"] for row in csv.DictReader(io.StringIO(payments()))}
    assert Counter(row["csvId"] for row in got) == dict.fromkeys(wanted, 1)
    assert {row["csvId"]: row["amount"] for row in got} == wanted
    assert bucket.upload_count() == 0


async def test_payments_go_from_bucket_to_bucket(aws: StandIn, bucket: Bucket, tmp_path: Path) -> None:
    config = configure(tmp_path, "a", str(on_s3(aws, bucket, tmp_path, "{move: done}")))
    async with serving(tmp_path, config, **CLIENT_ENVIRONMENT) as daemon:
        bucket.put("in/payments.csv", payments())
        async with running("provider", provider_arguments(daemon.url, tmp_path / "books.jsonl"), tmp_path) as provider:
            execution = await succeeded(daemon)
            assert await provider.stop() == 0
        started = await daemon.status(execution)
        assert started["workerLosses"] == 0

        async def moved() -> bool:
            return bucket.all_keys() == ["in/done/payments.csv", "out/payments.csv.out"]

        await wait_until("the input to be moved", moved)
        assert "tpf_aws_requests_total" in (await daemon.client.get("/q/metrics")).text
        assert await daemon.stop() == 0
        assert daemon.complained() == []
    check_output(bucket)
    assert bucket.read("in/done/payments.csv") == payments()


@pytest.mark.parametrize("point", ["prepared", "completed"])
async def test_a36_a_daemon_killed_beside_the_completion_leaves_one_whole_object(
    aws: StandIn, bucket: Bucket, tmp_path: Path, point: str
) -> None:
    config = configure(tmp_path, "a", str(on_s3(aws, bucket, tmp_path, "keep")))
    books, marker = tmp_path / "books.jsonl", tmp_path / "killed"
    launcher = (LAUNCHER, "KILL", point, str(marker))
    bucket.put("in/payments.csv", payments())
    async with (
        serving(tmp_path, config, launcher=launcher, **CLIENT_ENVIRONMENT) as daemon,
        running("provider", provider_arguments(daemon.url, books), tmp_path),
    ):
        assert await daemon.ended() == -signal.SIGKILL
    assert ("out/payments.csv.out" in bucket.all_keys()) is (point == "completed")
    assert bucket.upload_count() == (1 if point == "prepared" else 0)
    asked = len(books.read_text("utf-8").splitlines())
    async with serving(tmp_path, config, **CLIENT_ENVIRONMENT) as daemon:
        async with running("provider", provider_arguments(daemon.url, books), tmp_path):
            await succeeded(daemon)
        assert await daemon.stop() == 0
    check_output(bucket)
    assert bucket.all_keys() == ["in/payments.csv", "out/payments.csv.out"]
    paid = [json.loads(line)["interactionId"] for line in books.read_text("utf-8").splitlines()]
    assert (len(set(paid)), asked) == (ROW_COUNT, ROW_COUNT)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("region: eu-west-1", "regoin: eu-west-1", ["location.regoin", "bucket, prefix, region and endpoint"]),
        ("region: eu-west-1", "region: 1", ["location.region", "1 is not text"]),
        ("endpoint: 'http", "endpoint: 'htp", ["$.sources.csv-payment-files.location.endpoint", "http://"]),
        ("[provider, container, key, etag]", "[version]", []),
        ("provider: s3", "provider: stdio", ["$.sources.csv-payment-files.provider", "not supported"]),
    ],
)
async def test_a_location_that_cannot_be_used_is_named(
    aws: StandIn, bucket: Bucket, tmp_path: Path, old: str, new: str, says: list[str]
) -> None:
    file = on_s3(aws, bucket, tmp_path, "keep")
    assert old in file.read_text("utf-8")
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    config = configure(tmp_path, "a", str(file))
    if not says:
        async with serving(tmp_path, config, **CLIENT_ENVIRONMENT) as daemon:
            assert await daemon.stop() == 0
        return
    said = await refused(tmp_path, config, **CLIENT_ENVIRONMENT)
    assert all(word in said for word in says), said


async def test_a_file_has_no_versions_to_be_known_by(tmp_path: Path) -> None:
    text = examples.pipeline_text("csv-payments").replace("[provider, container, key, etag]", "[version]")
    (tmp_path / "p.yaml").write_text(text, "utf-8")
    said = await refused(tmp_path, configure(tmp_path, "a", str(tmp_path / "p.yaml")), CSV_FOLDER_PATH=str(tmp_path))
    assert "$.sources.csv-payment-files.identity.fields" in said
    assert "version" in said


async def test_a_bucket_that_is_made_later_is_waited_for(aws: StandIn, tmp_path: Path) -> None:
    later = Bucket(aws.client("s3"), aws.name("later"))
    config = configure(tmp_path, "a", str(on_s3(aws, later, tmp_path, "keep")))
    async with serving(tmp_path, config, **CLIENT_ENVIRONMENT) as daemon:

        async def not_ready() -> bool:
            answer = await daemon.client.get("/q/health/ready")
            return answer.status_code == 503 and "NoSuchBucket" in answer.text

        await wait_until("readiness to say that the bucket is missing", not_ready)
        later.client.create_bucket(
            Bucket=later.name, CreateBucketConfiguration={"LocationConstraint": aws.region}
        )
        later.put("in/payments.csv", payments())
        async with running("provider", provider_arguments(daemon.url, tmp_path / "books.jsonl"), tmp_path):
            await succeeded(daemon)
        assert await daemon.stop() == 0
    check_output(later)
