"""What only an upload to S3 does: parts, lost answers, services that know less."""

from __future__ import annotations

import functools
import hashlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from tests.aws.standin import StandIn
from tests.objects.owners import EXECUTION
from tests.objects.s3 import TestBucket, daemon_bucket, s3_target
from tpfd.aws.calls import AwsCalls
from tpfd.blocking import Inline
from tpfd.core.publication import Staged
from tpfd.errors import InternalError, NonRetryableError, OutsideError
from tpfd.objects import s3_target as s3_target_module
from tpfd.objects import s3_upload
from tpfd.objects.formats import CsvEncoder
from tpfd.objects.protocol import PlaceOutcome, WriteSession
from tpfd.objects.s3_bucket import Bucket
from tpfd.objects.s3_target import S3Target

PART_BYTES = 5 * 2**20
ROW = {"text": "x" * 1023}
ROWS_OF_THREE_PARTS = 12 * 1024


@pytest.fixture
def smallest_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts as small as S3 takes them."""
    monkeypatch.setattr(s3_upload, "PART_BYTES", PART_BYTES)


class Around:
    """A client with some of its operations replaced; each gets the real one first."""

    def __init__(self, client: Any, **replaced: Callable[..., Any]) -> None:
        self._client = client
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)
        return functools.partial(self._replaced[name], real) if name in self._replaced else real


def around(aws: StandIn, there: TestBucket, **replaced: Callable[..., Any]) -> Bucket:
    return daemon_bucket(aws, there.name, lambda client: Around(client, **replaced))


def refusal(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Operation"
    )


def lost() -> ReadTimeoutError:
    return ReadTimeoutError(endpoint_url="https://s3.test")


async def write(session: WriteSession, row_count: int) -> None:
    for _ in range(0, row_count, 512):
        await session.write([ROW] * 512)


async def publish(target: S3Target, key: str, row_count: int, *, fence: int = 1) -> Staged:
    async with target.open_temporary(key, EXECUTION, fence, CsvEncoder(["text"])) as session:
        await write(session, row_count)
        staged = await session.finish()
        assert await target.place(staged, key, replace=False) is PlaceOutcome.PLACED
        found = await target.inspect(key)
        assert found is not None
        assert found.digest == staged.digest
    return staged


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("smallest_parts")
async def test_a_large_object_is_sent_in_parts_and_adopted_by_reading_it(aws: StandIn, there: TestBucket) -> None:
    reads: list[str] = []

    def get_object(real: Any, **params: Any) -> Any:
        reads.append(params["Key"])
        return real(**params)

    staged = await publish(s3_target(around(aws, there, get_object=get_object)), "out.csv", ROWS_OF_THREE_PARTS)
    assert reads == [], "its owner knows what it has placed"
    data = there.read("out.csv")
    assert data == b"text\n" + (b"x" * 1023 + b"\n") * ROWS_OF_THREE_PARTS
    assert hashlib.sha256(data).hexdigest() == staged.digest
    assert there.etag("out.csv").endswith('-3"')
    found = await s3_target(around(aws, there, get_object=get_object)).inspect("out.csv")
    assert found is not None
    assert (found.digest, found.size_bytes) == (staged.digest, len(data))
    assert reads == ["p/out.csv"] * 2, "eight and four MiB"
    assert (there.all_keys(), there.uploads()) == (["out.csv"], [])


async def test_a_small_object_is_adopted_without_being_read(aws: StandIn, there: TestBucket) -> None:
    staged = await publish(s3_target(there.bucket), "out.csv", 512)

    def get_object(_real: Any, **_params: Any) -> Any:
        pytest.fail("it was read")

    found = await s3_target(around(aws, there, get_object=get_object)).inspect("out.csv")
    assert found is not None
    assert found.digest == staged.digest
    assert there.client.head_object(Bucket=there.name, Key="p/out.csv")["ContentType"] == "text/csv"


@pytest.mark.usefixtures("smallest_parts")
async def test_a36_a_part_that_fails_for_good_leaves_nothing(aws: StandIn, there: TestBucket) -> None:
    def upload_part(real: Any, **params: Any) -> Any:
        if params["PartNumber"] == 2:
            raise refusal("AccessDenied", 403)
        return real(**params)

    target = s3_target(around(aws, there, upload_part=upload_part))
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        with pytest.raises(OutsideError, match=r"sending part 2 of s3://.*AccessDenied") as caught:
            await write(session, ROWS_OF_THREE_PARTS)
        assert caught.value.retryable
        assert isinstance(caught.value.__cause__, OutsideError)
        assert isinstance(caught.value.__cause__.__cause__, ClientError)
        with pytest.raises(InternalError):
            await session.write([ROW] * 512)
        with pytest.raises(InternalError):
            await session.finish()
    assert (there.all_keys(), there.uploads()) == ([], [])
    await publish(s3_target(there.bucket), "out.csv", ROWS_OF_THREE_PARTS, fence=2)
    lines = there.read("out.csv").split(b"\n")
    assert (lines.count(b"text"), len(lines)) == (1, ROWS_OF_THREE_PARTS + 2)


@pytest.mark.usefixtures("smallest_parts")
async def test_a_part_whose_answer_was_lost_is_sent_again(aws: StandIn, there: TestBucket) -> None:
    seen: list[int] = []

    def upload_part(real: Any, **params: Any) -> Any:
        seen.append(params["PartNumber"])
        if seen == [1, 2]:
            real(**params)
            raise lost()
        return real(**params)

    await publish(s3_target(around(aws, there, upload_part=upload_part)), "out.csv", ROWS_OF_THREE_PARTS)
    assert seen == [1, 2, 2, 3]


async def test_memory_does_not_grow_with_the_object() -> None:
    sent = 0

    class Client:
        def create_multipart_upload(self, **_params: Any) -> dict[str, Any]:
            return {"UploadId": "u"}

        def put_object(self, **_params: Any) -> dict[str, Any]:
            return {}

        def upload_part(self, **params: Any) -> dict[str, Any]:
            nonlocal sent
            sent += len(params["Body"])
            return {"ETag": "e"}

        def abort_multipart_upload(self, **_params: Any) -> dict[str, Any]:
            return {}

        delete_object = abort_multipart_upload

    bucket = Bucket(AwsCalls("s3", Client, Inline()), Inline(), "b", "")
    async with s3_target(bucket, replaces=True).open_temporary("x", EXECUTION, 1, CsvEncoder(["text"])) as session:
        tracemalloc.start()
        try:
            await write(session, 160 * 512)
            await session.finish()
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert sent > 80 * 2**20
    assert peak_bytes < 3 * s3_upload.PART_BYTES


async def test_more_than_one_upload_holds_is_refused(there: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_upload, "MAX_PARTS", 0)
    target = s3_target(there.bucket)
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        with pytest.raises(NonRetryableError, match="the most of one upload"):
            await session.finish()


# ── the answer of the completion ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("second", ["replayed", "NoSuchUpload", "PreconditionFailed"])
async def test_a_completion_whose_answer_was_lost_is_known_again(
    aws: StandIn, there: TestBucket, second: str
) -> None:
    tries = 0

    def complete(real: Any, **params: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries > 1 and second != "replayed":
            raise refusal(second)
        answer = real(**params)
        if tries == 1:
            raise lost()
        return answer

    staged = await publish(s3_target(around(aws, there, complete_multipart_upload=complete)), "out.csv", 512)
    assert tries == 2
    found = await s3_target(there.bucket).inspect("out.csv")
    assert found is not None
    assert found.digest == staged.digest
    assert (there.all_keys(), there.uploads()) == (["out.csv"], [])


async def test_a_completion_that_met_another_writer_is_for_another_attempt(aws: StandIn, there: TestBucket) -> None:
    def complete(_real: Any, **_params: Any) -> Any:
        raise refusal("ConditionalRequestConflict", 409)

    target = s3_target(around(aws, there, complete_multipart_upload=complete))
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        staged = await session.finish()
        with pytest.raises(OutsideError) as caught:
            await target.place(staged, "out.csv", replace=False)
    assert caught.value.retryable
    assert (there.all_keys(), there.uploads()) == ([], [])


@pytest.mark.usefixtures("smallest_parts")
async def test_an_upload_that_was_aborted_while_it_is_written_is_a_retryable_failure(there: TestBucket) -> None:
    target, newer = s3_target(there.bucket), s3_target(there.bucket)
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        await write(session, 11 * 512)
        for temporary in await newer.list_temporaries(EXECUTION):
            await newer.discard(temporary)
        with pytest.raises(OutsideError, match="by a newer owner or by the bucket's rule") as caught:
            await session.finish()
    assert (caught.value.code, caught.value.retryable) == ("upload_aborted", True)
    assert (there.all_keys(), there.uploads()) == ([], [])


async def test_an_object_staged_for_a_key_that_was_taken_is_for_another_attempt(there: TestBucket) -> None:
    target = s3_target(there.bucket)
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        staged = await session.finish()
        with pytest.raises(OutsideError, match=r"another attempt will upload to out\.v2\.csv") as caught:
            await target.place(staged, "out.v2.csv", replace=False)
    assert (caught.value.code, caught.value.retryable) == ("output_key_taken", True)
    with pytest.raises(InternalError, match="outside its session"):
        await target.place(staged, "out.csv", replace=False)


# ── cleaning up ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_could_not_be_cleaned_up_is_left_to_the_next_owner(
    aws: StandIn, there: TestBucket, caplog: pytest.LogCaptureFixture
) -> None:
    def abort(_real: Any, **_params: Any) -> Any:
        raise refusal("AccessDenied", 403)

    target = s3_target(around(aws, there, abort_multipart_upload=abort))
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        await session.finish()
    assert "upload_left" in caplog.text
    assert there.uploads() == ["out.csv"]
    newer = s3_target(there.bucket)
    (temporary,) = await newer.list_temporaries(EXECUTION)
    assert temporary.fence == 1
    await newer.discard(temporary)
    assert (there.all_keys(), there.uploads()) == ([], [])


async def test_cleaning_up_ends_when_the_service_does_not_answer(
    aws: StandIn, there: TestBucket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abort(_real: Any, **_params: Any) -> Any:
        raise lost()

    monkeypatch.setattr(s3_target_module, "CLEAN_UP_S", 0.0)
    target = s3_target(around(aws, there, abort_multipart_upload=abort))
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        await session.finish()
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["tpfd_fields"]["message"]) == ("upload_left", "took too long")


async def test_an_upload_without_its_marker_has_no_parts(aws: StandIn, there: TestBucket) -> None:
    def put_object(_real: Any, **_params: Any) -> Any:
        raise refusal("AccessDenied", 403)

    target = s3_target(around(aws, there, put_object=put_object))
    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["text"])) as session:
        with pytest.raises(OutsideError, match=r"writing s3://.*\.tpfd/"):
            await session.finish()
        assert there.uploads() == ["out.csv"]
    assert there.uploads() == []


# ── services that know less ──────────────────────────────────────────────────────────────────────────────────────────


def without_condition(real: Any, **params: Any) -> Any:
    """Ignores it, as some services do."""
    params.pop("IfNoneMatch", None)
    return real(**params)


def not_implemented(real: Any, **params: Any) -> Any:
    if "IfNoneMatch" in params:
        raise refusal("NotImplemented", 501)
    return real(**params)


@pytest.mark.parametrize("service", [without_condition, not_implemented])
async def test_a_service_that_cannot_refuse_to_replace_is_found_out_before_anything_is_placed(
    aws: StandIn, there: TestBucket, service: Callable[..., Any]
) -> None:
    bucket = around(aws, there, put_object=service, complete_multipart_upload=service)
    there.put("out.csv", "another's")
    with pytest.raises(NonRetryableError, match="onExisting: replace") as caught:
        await publish(s3_target(bucket), "out.csv", 1)
    assert caught.value.code == "conditional_writes_missing"
    assert (there.all_keys(), there.uploads()) == (["out.csv"], [])
    await publish(s3_target(bucket, replaces=True), "out.csv", 1)
    assert there.read("out.csv").startswith(b"text\n")


async def test_the_service_is_tried_once(aws: StandIn, there: TestBucket) -> None:
    markers: list[str] = []

    def put_object(real: Any, **params: Any) -> Any:
        markers.append(params["Key"])
        return real(**params)

    target = s3_target(around(aws, there, put_object=put_object))
    await publish(target, "a.csv", 1)
    await publish(target, "b.csv", 1)
    assert len(markers) == 3
    assert len(set(markers)) == 2


@pytest.mark.parametrize(("prefix", "url"), [("", "s3://b/k"), ("in", "s3://b/in/k"), ("/in/2026/", "s3://b/in/2026/k")])
def test_a_prefix_is_a_folder_however_it_is_written(there: TestBucket, prefix: str, url: str) -> None:
    assert Bucket(AwsCalls("s3", lambda: there.client, Inline()), Inline(), "b", prefix).url_of("k") == url
