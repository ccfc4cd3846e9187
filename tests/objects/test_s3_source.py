"""What only a bucket does as a source: etags, versions, conditional requests, reading by ranges."""

from __future__ import annotations

import hashlib
from typing import Any, Self

import pytest
import trio
from attrs import evolve

from tests.aws.standin import StandIn
from tests.objects.s3 import TestBucket
from tests.objects.test_s3_target import around, lost, refusal
from tpfd.errors import Conflict, NonRetryableError, OutsideError
from tpfd.objects import s3_bucket, s3_opened
from tpfd.objects.protocol import AfterAction, AfterKind, ListedObject
from tpfd.objects.s3_bucket import Bucket
from tpfd.objects.s3_source import S3Source

DELETE = AfterAction(kind=AfterKind.DELETE)
MOVE = AfterAction(kind=AfterKind.MOVE, folder="done")
RANGE_BYTES = 1_000


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (s3_bucket, s3_opened):
        monkeypatch.setattr(module, "RANGE_BYTES", RANGE_BYTES)


async def _only(source: S3Source) -> ListedObject:
    (listed,) = (await source.list_page(10, None)).objects
    return listed


def _counting(aws: StandIn, there: TestBucket, seen: list[str]) -> Bucket:
    def get_object(real: Any, **params: Any) -> Any:
        seen.append(params["Range"])
        return real(**params)

    return around(aws, there, get_object=get_object)


async def test_what_shows_an_empty_folder_is_not_an_object(there: TestBucket) -> None:
    there.put("", "")
    page = await S3Source(there.bucket).list_page(10, None)
    assert (page.objects, page.ignored, page.next_after) == ((), (), None)


async def test_more_than_one_request_for_a_page(aws: StandIn, there: TestBucket) -> None:
    def list_objects_v2(real: Any, **params: Any) -> Any:
        return real(**params, MaxKeys=3)

    for number in range(8):
        there.put(f"{number}.csv")
    source = S3Source(around(aws, there, list_objects_v2=list_objects_v2))
    page = await source.list_page(7, None)
    assert [listed.key for listed in page.objects] == [f"{number}.csv" for number in range(7)]
    assert page.next_after == "6.csv"
    rest = await source.list_page(7, page.next_after)
    assert ([listed.key for listed in rest.objects], rest.next_after) == (["7.csv"], None)


async def test_the_same_bytes_put_again_are_another_object_by_version_only(there: TestBucket) -> None:
    there.client.put_bucket_versioning(Bucket=there.name, VersioningConfiguration={"Status": "Enabled"})
    by_etag, by_version = S3Source(there.bucket), S3Source(there.bucket, identity_fields=["key", "version"])
    there.put("a.csv")
    first = await by_etag.identity(await _only(by_etag)), await by_version.identity(await _only(by_version))
    again = await by_etag.identity(await _only(by_etag)), await by_version.identity(await _only(by_version))
    assert first == again
    there.put("a.csv")
    second = await by_etag.identity(await _only(by_etag)), await by_version.identity(await _only(by_version))
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)


async def test_an_identity_by_time_shows_in_the_listing_too(there: TestBucket) -> None:
    there.put("a.csv")
    plain = await _only(S3Source(there.bucket))
    timed = await _only(S3Source(there.bucket, identity_fields=["key", "lastModified"]))
    assert timed.etag == f"{plain.etag}@{plain.modified_epoch_ms}"
    source = S3Source(there.bucket, identity_fields=["key", "lastModified"])
    assert await source.read_bytes(timed, 10) == b"x"
    later = evolve(timed, modified_epoch_ms=timed.modified_epoch_ms + 1)
    assert await source.identity(timed) != await source.identity(later)


async def test_a_version_of_what_was_not_listed_is_not_taken(there: TestBucket) -> None:
    source = S3Source(there.bucket, identity_fields=["version"])
    there.put("a.csv", "old")
    listed = await _only(source)
    there.put("a.csv", "new")
    with pytest.raises(Conflict):
        await source.identity(listed)
    there.delete("a.csv")
    with pytest.raises(Conflict):
        await source.identity(listed)


# ── reading by ranges ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("size_bytes", [1, 999, 1_000, 1_001, 3_000, 3_001])
async def test_ranges_make_the_whole_object(aws: StandIn, there: TestBucket, size_bytes: int) -> None:
    data = bytes(number % 251 for number in range(size_bytes))
    there.put("a.bin", data)
    seen: list[str] = []
    source = S3Source(_counting(aws, there, seen))
    listed = await _only(source)
    assert await source.read_bytes(listed, size_bytes) == data
    assert len(seen) == -(-size_bytes // RANGE_BYTES)
    assert (await source.reference(listed)).sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.usefixtures("small_ranges")
async def test_a_body_that_breaks_off_is_read_again_from_its_range(aws: StandIn, there: TestBucket) -> None:
    class Broken:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def read(self) -> bytes:
            raise lost()

    seen: list[str] = []

    def get_object(real: Any, **params: Any) -> Any:
        seen.append(params["Range"])
        answer = real(**params)
        return {**answer, "Body": Broken()} if len(seen) == 2 else answer

    data = bytes(2_500)
    there.put("a.bin", data)
    source = S3Source(around(aws, there, get_object=get_object))
    assert await source.read_bytes(await _only(source), 10_000) == data
    assert seen == ["bytes=0-999", "bytes=1000-1999", "bytes=1000-1999", "bytes=2000-2499"]


@pytest.mark.usefixtures("small_ranges")
async def test_an_object_replaced_between_two_ranges_is_never_a_mixture(aws: StandIn, there: TestBucket) -> None:
    def get_object(real: Any, **params: Any) -> Any:
        answer = real(**params)
        there.put("a.bin", b"n" * 2_500)
        return answer

    there.put("a.bin", b"o" * 2_500)
    source = S3Source(around(aws, there, get_object=get_object))
    with pytest.raises(Conflict, match="has changed"):
        await source.read_bytes(await _only(source), 10_000)


@pytest.mark.usefixtures("small_ranges")
async def test_a_step_reads_lines_by_ranges_and_notices_a_change(aws: StandIn, there: TestBucket) -> None:
    lines = [f"line {number}\n".encode() for number in range(500)]
    there.put("a.csv", b"".join(lines))
    seen: list[str] = []
    source = S3Source(_counting(aws, there, seen))

    def read(change: bool) -> list[bytes]:
        with source.open_object(f"s3://{there.name}/p/a.csv") as file:
            first = file.readline()
            if change:
                there.put("a.csv", b"other")
            return [first, *file]

    assert await trio.to_thread.run_sync(read, False) == lines
    assert len(seen) == -(-len(b"".join(lines)) // RANGE_BYTES)
    with pytest.raises(NonRetryableError, match="was changed while it was read") as caught:
        await trio.to_thread.run_sync(read, True)
    assert caught.value.code == "object_changed"


async def test_a_step_is_told_that_the_storage_is_away(aws: StandIn, there: TestBucket) -> None:
    def head_object(_real: Any, **_params: Any) -> Any:
        raise refusal("AccessDenied", 403)

    source = S3Source(around(aws, there, head_object=head_object))
    with pytest.raises(OutsideError) as caught:
        await trio.to_thread.run_sync(source.open_object, f"s3://{there.name}/p/a.csv")
    assert caught.value.retryable


# ── after ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_object_replaced_in_the_last_moment_is_not_deleted(aws: StandIn, there: TestBucket) -> None:
    def delete_object(real: Any, **params: Any) -> Any:
        there.put("a.csv", "new")
        return real(**params)

    there.put("a.csv", "old")
    source = S3Source(around(aws, there, delete_object=delete_object))
    assert not await source.after(await _only(source), DELETE)
    assert there.read("a.csv") == b"new"


async def test_an_object_replaced_in_the_last_moment_is_not_moved(aws: StandIn, there: TestBucket) -> None:
    def copy_object(real: Any, **params: Any) -> Any:
        there.put("a.csv", "new")
        return real(**params)

    there.put("a.csv", "old")
    source = S3Source(around(aws, there, copy_object=copy_object))
    assert not await source.after(await _only(source), MOVE)
    assert there.all_keys() == ["a.csv"]


async def test_a_move_ends_what_a_killed_one_began(there: TestBucket) -> None:
    there.put("a.csv", "x")
    there.put("done/a.csv", "x")
    source = S3Source(there.bucket)
    assert await source.after(await _only(source), MOVE)
    assert there.all_keys() == ["done/a.csv"]


async def test_what_s3_does_not_copy_at_once_is_refused(there: TestBucket) -> None:
    there.put("a.csv", "x")
    source = S3Source(there.bucket)
    huge = evolve(await _only(source), size_bytes=5 * 2**30 + 1)
    with pytest.raises(NonRetryableError, match="5 GiB"):
        await source.after(huge, MOVE)
    assert there.all_keys() == ["a.csv"]


async def test_a_service_that_cannot_delete_conditionally_deletes_nothing(aws: StandIn, there: TestBucket) -> None:
    def delete_object(_real: Any, **_params: Any) -> Any:
        raise refusal("NotImplemented", 501)

    there.put("a.csv", "x")
    source = S3Source(around(aws, there, delete_object=delete_object))
    with pytest.raises(NonRetryableError, match="after: keep"):
        await source.after(await _only(source), DELETE)
    assert there.all_keys() == ["a.csv"]
