"""One prefix of one S3 bucket, as Trio calls that say in our own terms how they failed.

Objects are read by ranges, each a request of its own under the object's etag: memory is bounded, a broken connection
costs one range, a cancel is heard between two, and an object that is replaced meanwhile is never read as a mixture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from attrs import frozen

from tpfd.aws.calls import AwsCalls
from tpfd.aws.failures import TRANSIENT, AwsFailure, Failure
from tpfd.blocking import Blocking
from tpfd.errors import Conflict, NonRetryableError, OutsideError

PROVIDER = "s3"
RANGE_BYTES = 8 * 2**20
"""Read at a time."""
WITHIN_S = 30.0
"""How long a request that failed for a passing reason is repeated."""

_MISSING = frozenset({"404", "NoSuchKey"})
_CORRECTABLE = frozenset({"NoSuchBucket", "AccessDenied", "403"})


@frozen(kw_only=True)
class Head:
    """What S3 tells of an object without its content."""

    etag: str  # without quotes
    size_bytes: int
    version: str  # "null" in a bucket that keeps no versions
    metadata: Mapping[str, str]


@frozen(kw_only=True)
class Entry:
    """An object in a listing."""

    key: str  # relative to the prefix
    etag: str
    size_bytes: int
    modified_epoch_ms: int


@frozen(kw_only=True)
class Entries:
    """One page of a listing."""

    entries: tuple[Entry, ...]
    next_token: str | None  # None: this was the last


@contextmanager
def reporting(doing: str) -> Iterator[None]:
    """Turns a failed call into the errors of ``tpfd.objects.protocol``.

    Args:
        doing: what is tried, with the URL, as ``listing s3://b/in/``.

    Raises:
        OutsideError: ``object_storage_failed``.
        NonRetryableError: ``conditional_writes_missing``.
    """
    try:
        yield
    except AwsFailure as error:
        if error.aws_code == "NotImplemented":
            raise NonRetryableError(
                f"{doing}: this service does not know conditional requests ({error.message}); use "
                "'onExisting: replace' and 'after: keep' with it",
                code="conditional_writes_missing",
            ) from error
        # A bucket or a permission that is missing can be given without a change here, like a folder or a mount.
        retryable = error.retryable or error.aws_code in _CORRECTABLE
        raise OutsideError(f"{doing}: {error.message}", retryable=retryable, code="object_storage_failed") from error


class ReadingClient:
    """A client of the SDK whose reads include the body, so that a body that breaks off is a failed attempt."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._client, operation)

    def read_object(self, **params: Any) -> dict[str, Any]:
        """`get_object` with the bytes of the body under ``Data``."""
        answer: dict[str, Any] = self._client.get_object(**params)
        with answer["Body"] as body:
            return {**answer, "Data": body.read()}


class Bucket:
    """The objects below a prefix. Keys are relative to it and were checked by the caller."""

    def __init__(self, calls: AwsCalls, blocking: Blocking, name: str, prefix: str) -> None:
        """
        Args:
            calls: of S3, with a `ReadingClient`.
            blocking: runs what takes the processor for long.
            name: of the bucket.
            prefix: a folder: ``in/2026`` means keys that begin with ``in/2026/``; empty: the whole bucket.
        """
        folder = prefix.strip("/")
        self.name = name
        self.prefix = f"{folder}/" if folder else ""
        self.blocking = blocking
        self._calls = calls

    @property
    def url(self) -> str:
        """Of the location: ``s3://bucket/prefix/``."""
        return f"s3://{self.name}/{self.prefix}"

    def url_of(self, key: str) -> str:
        """Of an object."""
        return self.url + key

    async def request(
        self,
        operation: str,
        key: str | None = None,
        *,
        retry_on: Collection[Failure] = TRANSIENT,
        **params: Any,
    ) -> dict[str, Any]:
        """A request that may happen twice.

        Args:
            operation: the client's method.
            key: the object that it is about; None: the bucket.
            retry_on: failures that are tried again.
            params: as AWS names them, without bucket and key.

        Raises:
            AwsFailure: see `reporting`.
        """
        where = {"Bucket": self.name} if key is None else {"Bucket": self.name, "Key": self.prefix + key}
        return await self._calls.repeated(operation, within_s=WITHIN_S, retry_on=retry_on, **where, **params)

    async def head(self, key: str) -> Head | None:
        """Looks at an object; None: there is none."""
        with reporting(f"looking at {self.url_of(key)}"):
            try:
                answer = await self.request("head_object", key)
            except AwsFailure as error:
                if error.aws_code in _MISSING:
                    return None
                raise
        return Head(
            etag=answer["ETag"].strip('"'),
            size_bytes=answer["ContentLength"],
            version=answer.get("VersionId", "null"),
            metadata=answer.get("Metadata", {}),
        )

    async def read(self, key: str, etag: str, start: int, size_bytes: int) -> bytes:
        """Reads a range, which must not be empty.

        Args:
            key: of the object.
            etag: of the content that is meant.
            start: of the first byte.
            size_bytes: less comes only at the object's end.

        Raises:
            Conflict: ``object_changed``: it is gone, or not what it was.
            OutsideError: ``object_storage_failed``.
        """
        with reporting(f"reading {self.url_of(key)}"):
            try:
                answer = await self.request(
                    "read_object", key, IfMatch=f'"{etag}"', Range=f"bytes={start}-{start + size_bytes - 1}"
                )
            except AwsFailure as error:
                if error.aws_code in _MISSING:
                    raise Conflict(f"{self.url_of(key)} is gone", code="object_changed") from error
                if error.failure is Failure.CONDITION:
                    raise Conflict(f"{self.url_of(key)} has changed", code="object_changed") from error
                raise
        data: bytes = answer["Data"]
        return data

    async def read_all(self, key: str, etag: str, size_bytes: int, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Reads a whole object, `RANGE_BYTES` at a time, into `take`. Raises as `read` does."""
        for start in range(0, size_bytes, RANGE_BYTES):
            await take(await self.read(key, etag, start, min(RANGE_BYTES, size_bytes - start)))

    async def digest(self, key: str, etag: str, size_bytes: int) -> str:
        """Reads a whole object for its sha256, hex. Raises as `read` does."""
        found = hashlib.sha256()

        async def take(chunk: bytes) -> None:
            await self.blocking.run(found.update, chunk)

        await self.read_all(key, etag, size_bytes, take)
        return found.hexdigest()

    async def page(
        self, below: str, *, after: str | None = None, token: str | None = None, flat: bool = False
    ) -> Entries:
        """Lists at most a thousand objects, in key order.

        Args:
            below: a relative prefix.
            after: keys greater than this; None: all.
            token: of the page before; None: this is the first.
            flat: leave out what has a ``/`` behind `below`.

        Raises:
            OutsideError: ``object_storage_failed``.
        """
        params: dict[str, Any] = {"Prefix": self.prefix + below}
        if flat:
            params["Delimiter"] = "/"
        if token is not None:
            params["ContinuationToken"] = token
        elif after is not None:
            params["StartAfter"] = self.prefix + after
        with reporting(f"listing {self.url_of(below)}"):
            answer = await self.request("list_objects_v2", **params)
        return Entries(
            entries=tuple(self._entry(found) for found in answer.get("Contents", ())),
            next_token=answer["NextContinuationToken"] if answer["IsTruncated"] else None,
        )

    def _entry(self, found: Mapping[str, Any]) -> Entry:
        modified: datetime = found["LastModified"]
        return Entry(
            key=found["Key"].removeprefix(self.prefix),
            etag=found["ETag"].strip('"'),
            size_bytes=found["Size"],
            modified_epoch_ms=round(modified.timestamp() * 1000),
        )
