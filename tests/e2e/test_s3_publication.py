"""Killed or frozen between any two effects of publishing to S3: the object at the key is the one that was committed."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.aws.standin import CLIENT_ENVIRONMENT, StandIn
from tests.e2e.processes import PIPELINES, Daemon, configure, serving, wait_for_file, wait_until
from tests.e2e.s3_launcher import POINTS
from tests.e2e.test_publication import at_each_point, committed, gave_up
from tests.e2e.test_s3 import Bucket
from tpfd.core.records import ExecutionStatus, PublicationState

LAUNCHER = str(Path(__file__).with_name("s3_launcher.py"))
KEY = "out/rows.csv"

each_policy = pytest.mark.parametrize("on_existing", ["fail", "replace"])


def make_bucket(aws: StandIn, on_existing: str) -> Bucket:
    client, name = aws.client("s3"), aws.name("rows")
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": aws.region})
    bucket = Bucket(client, name)
    if on_existing == "replace":
        bucket.put(KEY, "of an earlier day")
    return bucket


def pipeline(aws: StandIn, bucket: Bucket, folder: Path) -> Path:
    """The publishing pipeline of these tests, with its target in the bucket."""
    text = (PIPELINES / "publish.yaml").read_text("utf-8")
    place = 'provider: filesystem\n    location: {root: "${OUTPUT_FOLDER}"}'
    assert place in text
    where = f"bucket: {bucket.name}, prefix: out, region: {aws.region}, endpoint: '{aws.endpoint}'"
    file = folder / "publish.yaml"
    file.write_text(text.replace(place, f"provider: s3\n    location: {{{where}}}"), "utf-8")
    (folder / "publishing.py").write_text((PIPELINES / "publishing.py").read_text("utf-8"), "utf-8")
    return file


@asynccontextmanager
async def interrupted(
    folder: Path, action: str, point: str, file: Path, on_existing: str
) -> AsyncIterator[tuple[Daemon, str]]:
    """A daemon that has come to a point of publishing an execution, and the execution."""
    config = configure(folder, "first", str(file))
    launcher = (LAUNCHER, action, point, str(folder / "marker"))
    async with serving(folder, config, launcher=launcher, **environ(on_existing)) as daemon:
        execution_id = await daemon.submit({"folder": str(folder)})
        await wait_for_file(folder / "marker")
        yield daemon, execution_id


async def finished_by_a_successor(folder: Path, file: Path, on_existing: str, execution_id: str) -> None:
    config = configure(folder, "second", str(file))
    async with serving(folder, config, **environ(on_existing)) as second:
        await second.wait_status(execution_id, "SUCCEEDED")
        assert await second.stop() == 0


def environ(on_existing: str) -> dict[str, str]:
    return {**CLIENT_ENVIRONMENT, "ON_EXISTING": on_existing}


async def check_object(folder: Path, bucket: Bucket, execution_id: str) -> None:
    """There is one object, whole, and it is the committed one."""
    record = await committed(folder, execution_id)
    assert record.status is ExecutionStatus.SUCCEEDED
    assert record.publication is not None
    assert record.publication.state is PublicationState.COMPLETED
    content = bucket.read(KEY).encode()
    assert hashlib.sha256(content).hexdigest() == record.publication.digest
    assert content.count(b"\n") == 5001 == record.publication.item_count + 1
    assert bucket.all_keys() == [KEY]


@each_policy
async def test_a36_killed_at_any_point_one_whole_object_appears(
    aws: StandIn, tmp_path: Path, on_existing: str
) -> None:
    async def killed(folder: Path, point: str) -> None:
        bucket = make_bucket(aws, on_existing)
        file = pipeline(aws, bucket, folder)
        async with interrupted(folder, "KILL", point, file, on_existing) as (first, execution_id):
            assert await first.ended() == -signal.SIGKILL
            if point in POINTS[: POINTS.index("completed")]:
                seen = [key for key in bucket.all_keys() if "/.tpfd/" not in key]
                assert seen == ([KEY] if on_existing == "replace" else [])
            await finished_by_a_successor(folder, file, on_existing, execution_id)
        await check_object(folder, bucket, execution_id)
        # Only an upload that had no marker yet is not found again; it has no parts.
        assert bucket.upload_count() == (1 if point == "begun" else 0)
        if point in {"completed", "placed"}:  # what was in place already was not made again
            assert len((folder / "started").read_text().splitlines()) == 1

    await at_each_point(tmp_path, killed, POINTS)


@each_policy
async def test_an_owner_that_was_frozen_cannot_change_what_another_committed(
    aws: StandIn, tmp_path: Path, on_existing: str
) -> None:
    async def frozen(folder: Path, point: str) -> None:
        bucket = make_bucket(aws, on_existing)
        file = pipeline(aws, bucket, folder)
        async with interrupted(folder, "STOP", point, file, on_existing) as (first, execution_id):
            await finished_by_a_successor(folder, file, on_existing, execution_id)
            await check_object(folder, bucket, execution_id)
            first.send(signal.SIGCONT)
            await wait_until("the thawed owner to give up", lambda: gave_up(first))
            assert await first.stop() == 0
        await check_object(folder, bucket, execution_id)
        assert bucket.upload_count() == 0

    await at_each_point(tmp_path, frozen, POINTS)
