"""Input objects in an S3 bucket.

Only what stands directly below the prefix is listed, not what stands in folders below it: ``after: move`` puts finished
objects there. An object is settled as soon as it is listed, because S3 shows an object when all of it has arrived.

Moving and deleting are bound to the etag that was taken in: an object that replaced it meanwhile stays for its own
execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import trio

from tpfd.aws.failures import AwsFailure, Failure
from tpfd.errors import Conflict, NonRetryableError
from tpfd.objects.keys import check_key, key_problem, next_version
from tpfd.objects.protocol import (
    DEFAULT_IDENTITY,
    AfterAction,
    AfterKind,
    IgnoredObject,
    ListedObject,
    ObjectReference,
    Page,
)
from tpfd.objects.s3_bucket import PROVIDER, Bucket, Entry, reporting
from tpfd.objects.s3_opened import open_ranges
from tpfd.objects.selecting import check_size, checked_fields, identity_of, name_filter, text_of

IDENTITY_FIELDS = ("provider", "container", "key", "etag", "version", "size", "lastModified", "checksum")

_COPY_BYTES = 5 * 2**30
"""More S3 does not copy at once."""


class S3Source:
    """An `ObjectSource` on a prefix of a bucket."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        include: Sequence[str] = ("*",),
        exclude: Sequence[str] = (),
        identity_fields: Sequence[str] = DEFAULT_IDENTITY,
    ) -> None:
        """
        Args:
            bucket: the location.
            include: globs of names to take, case-sensitive.
            exclude: globs of names to leave; stronger than `include`.
            identity_fields: some of `IDENTITY_FIELDS`. With `version` or `lastModified` the same bytes, put once more,
                are another object.

        Raises:
            ValueError: an identity field is not known.
        """
        self._bucket = bucket
        self._takes = name_filter(include, exclude)
        self._identity_fields = checked_fields(identity_fields, IDENTITY_FIELDS)
        self._by_time = not {"version", "lastModified"}.isdisjoint(self._identity_fields)

    async def list_page(self, limit: int, after: str | None) -> Page:
        objects: list[ListedObject] = []
        ignored: list[IgnoredObject] = []
        token: str | None = None
        last = after
        while True:
            page = await self._bucket.page("", after=after, token=token, flat=True)
            for entry in page.entries:
                if not entry.key or not self._takes(entry.key):
                    continue  # without a name: what consoles put to show an empty folder
                if len(objects) + len(ignored) == limit:
                    return Page(objects=tuple(objects), next_after=last, ignored=tuple(ignored))
                last = entry.key
                if (reason := key_problem(entry.key)) is None:
                    objects.append(self._listed(entry))
                else:
                    ignored.append(IgnoredObject(name=ascii(entry.key), reason=reason))
            if (token := page.next_token) is None:
                return Page(objects=tuple(objects), next_after=None, ignored=tuple(ignored))

    def _listed(self, entry: Entry) -> ListedObject:
        # The etag alone does not change when the same bytes are put again.
        etag = f"{entry.etag}@{entry.modified_epoch_ms}" if self._by_time else entry.etag
        return ListedObject(
            key=entry.key,
            size_bytes=entry.size_bytes,
            modified_epoch_ms=entry.modified_epoch_ms,
            etag=etag,
            settled=True,
        )

    async def identity(self, listed: ListedObject) -> str:
        values: dict[str, object] = {
            "provider": PROVIDER,
            "container": self._bucket.url,
            "key": listed.key,
            "etag": _s3_etag(listed),
            "size": listed.size_bytes,
            "lastModified": listed.modified_epoch_ms,
        }
        if "version" in self._identity_fields:
            head = await self._bucket.head(listed.key)
            if head is None or head.etag != _s3_etag(listed):
                raise Conflict(f"{listed.key} has changed since it was listed", code="object_changed")
            values["version"] = head.version
        if "checksum" in self._identity_fields:
            values["checksum"] = await self._digest(listed)
        await trio.lowlevel.checkpoint()
        return identity_of(self._identity_fields, values)

    async def read_bytes(self, listed: ListedObject, max_bytes: int) -> bytes:
        check_size(listed.key, listed.size_bytes, max_bytes)
        found = bytearray()

        async def take(chunk: bytes) -> None:
            found.extend(chunk)

        await self._bucket.read_all(listed.key, _s3_etag(listed), listed.size_bytes, take)
        return bytes(found)

    async def read_text(self, listed: ListedObject, max_bytes: int) -> str:
        return text_of(listed.key, await self.read_bytes(listed, max_bytes))

    async def reference(self, listed: ListedObject) -> ObjectReference:
        return ObjectReference(
            provider=PROVIDER,
            container=self._bucket.url,
            key=listed.key,
            path=self._bucket.url_of(listed.key),
            size_bytes=listed.size_bytes,
            sha256=await self._digest(listed),
            etag=_s3_etag(listed),
        )

    async def _digest(self, listed: ListedObject) -> str:
        return await self._bucket.digest(listed.key, _s3_etag(listed), listed.size_bytes)

    async def verify(self, reference: ObjectReference) -> None:
        check_key(reference.key)
        url = self._bucket.url_of(reference.key)
        head = await self._bucket.head(reference.key)
        if head is None:
            raise NonRetryableError(f"input object {url} is gone: put it back and re-drive", code="object_missing")
        if head.etag == reference.etag:
            return  # it names the bytes
        digest = await self._bucket.digest(reference.key, head.etag, head.size_bytes)
        if (head.size_bytes, digest) != (reference.size_bytes, reference.sha256):
            raise NonRetryableError(
                f"input object {url} has changed since it was taken in (now {head.size_bytes} bytes, sha256 {digest}; "
                f"then {reference.size_bytes} bytes, sha256 {reference.sha256})",
                code="object_changed",
            )

    def open_object(self, path: str) -> BinaryIO:
        if not path.startswith(self._bucket.url):
            raise NonRetryableError(f"{path} is not in {self._bucket.url}, the source", code="object_outside_source")
        key = path.removeprefix(self._bucket.url)
        check_key(key)
        return open_ranges(self._bucket, key)

    async def after(self, listed: ListedObject, action: AfterAction) -> bool:
        if action.kind is AfterKind.KEEP:
            await trio.lowlevel.checkpoint()
            return False
        check_key(listed.key)
        if action.kind is AfterKind.MOVE and not await self._copy(listed, f"{action.folder}/{listed.key}"):
            return False
        return await self._delete(listed)

    async def _copy(self, listed: ListedObject, key: str) -> bool:
        """Copies an object beside what may stand there already; False: it has changed."""
        check_key(key)
        if listed.size_bytes > _COPY_BYTES:
            raise NonRetryableError(
                f"{listed.key} has {listed.size_bytes} bytes; S3 copies 5 GiB at once: use 'after: delete' or 'keep'",
                code="object_too_large",
            )
        while (there := await self._bucket.head(key)) is not None:
            if (there.etag, there.size_bytes) == (_s3_etag(listed), listed.size_bytes):
                return True  # an earlier try got as far as this
            key = next_version(key)
        url = self._bucket.url_of(listed.key)
        with reporting(f"copying {url} to {self._bucket.url_of(key)}"):
            return await self._unless_changed(
                "copy_object",
                key,
                CopySource={"Bucket": self._bucket.name, "Key": self._bucket.prefix + listed.key},
                CopySourceIfMatch=f'"{_s3_etag(listed)}"',
            )

    async def _delete(self, listed: ListedObject) -> bool:
        """Deletes an object; False: it is gone or has changed."""
        head = await self._bucket.head(listed.key)
        if head is None or head.etag != _s3_etag(listed):
            return False
        with reporting(f"deleting {self._bucket.url_of(listed.key)}"):
            return await self._unless_changed("delete_object", listed.key, IfMatch=f'"{head.etag}"')

    async def _unless_changed(self, operation: str, key: str, **params: Any) -> bool:
        try:
            await self._bucket.request(operation, key, **params)
        except AwsFailure as error:
            if error.failure is Failure.CONDITION or error.aws_code == "NoSuchKey":
                return False
            raise
        return True


def _s3_etag(listed: ListedObject) -> str:
    return listed.etag.partition("@")[0]
