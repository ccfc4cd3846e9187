"""One output object on its way to S3: rows become bytes, bytes become parts of a multipart upload.

Memory: one part being filled, one being sent, one batch of rows.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from attrs import define, field, frozen

from tpfd.aws.failures import AwsFailure
from tpfd.core.publication import Staged
from tpfd.errors import InternalError, NonRetryableError, OutsideError
from tpfd.objects.formats import Encoder, Row
from tpfd.objects.protocol import FoundObject
from tpfd.objects.s3_bucket import Bucket, reporting

PART_BYTES = 8 * 2**20
"""All parts but the last; S3 wants 5 MiB at least, and some services want them equal."""
MAX_PARTS = 10_000

_HELD_ROW_COUNT = 512  # rows per thread call; about 100 KiB of payments


@frozen
class Placed:
    """What an upload became when it was completed."""

    etag: str
    found: FoundObject


def is_gone(error: AwsFailure) -> bool:
    """Whether an upload does not exist any more: it was aborted, or completed."""
    return error.aws_code == "NoSuchUpload"


@define(eq=False, kw_only=True)
class UploadSession:
    """A multipart upload being written, by one task; it is begun when its first part is there.

    Attributes:
        bucket: the location.
        key: where the object is going to stand.
        temporary: name of the upload's marker.
        begin: makes upload and marker, and sets `upload_id`; given the digest if it is known already.
        upload_id: None: not begun.
        parts: what was sent, as completing wants it.
        placed: None: not completed.
    """

    bucket: Bucket
    key: str
    temporary: str
    encoder: Encoder
    begin: Callable[[UploadSession, str | None], Awaitable[None]]
    upload_id: str | None = None
    parts: list[dict[str, Any]] = field(factory=list)
    placed: Placed | None = None
    _held: list[Row] = field(factory=list, init=False)
    _buffer: bytearray = field(factory=bytearray, init=False)
    _hash: Any = field(factory=hashlib.sha256, init=False)
    _size_bytes: int = field(default=0, init=False)
    _item_count: int = field(default=0, init=False)
    _writable: bool = field(default=True, init=False)  # False: finished, or a part is missing for good

    async def write(self, rows: Sequence[Row]) -> None:
        """See ``WriteSession``."""
        self._held.extend(rows)
        if len(self._held) < _HELD_ROW_COUNT:
            await trio.lowlevel.checkpoint()
            return
        await self._encode(last=False)
        while len(self._buffer) >= PART_BYTES:
            await self._send(None)

    async def finish(self) -> Staged:
        """See ``WriteSession``."""
        await self._encode(last=True)
        while len(self._buffer) > PART_BYTES:
            await self._send(None)
        digest: str = self._hash.hexdigest()
        if self._buffer or not self.parts:
            await self._send(digest)
        self._writable = False
        return Staged(
            temporary=self.temporary, digest=digest, size_bytes=self._size_bytes, item_count=self._item_count
        )

    async def _encode(self, *, last: bool) -> None:
        self._check_writable()
        held, self._held = self._held, []
        await self.bucket.blocking.run(self._append, held, last)

    def _append(self, rows: Sequence[Row], last: bool) -> None:
        text = self.encoder.header() if self._item_count == 0 else ""
        text += self.encoder.rows(rows)
        if last:
            text += self.encoder.footer()  # asked for after the rows: it may depend on them
        data = text.encode()
        self._hash.update(data)
        self._buffer += data
        self._size_bytes += len(data)
        self._item_count += len(rows)

    async def _send(self, digest: str | None) -> None:
        self._check_writable()
        self._writable = False  # until the part is there: an object must never be completed without it
        number = len(self.parts) + 1
        if number > MAX_PARTS:
            raise NonRetryableError(
                f"{self.bucket.url_of(self.key)} has more than {MAX_PARTS * PART_BYTES} bytes, the most of one upload",
                code="output_too_large",
            )
        if self.upload_id is None:
            await self.begin(self, digest)
        with memoryview(self._buffer) as view:
            data = bytes(view[:PART_BYTES])
        checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        with reporting(f"sending part {number} of {self.bucket.url_of(self.key)}"):
            try:
                answer = await self.bucket.request(
                    "upload_part",
                    self.key,
                    UploadId=self.upload_id,
                    PartNumber=number,
                    Body=data,
                    ChecksumCRC32=checksum,
                )
            except AwsFailure as error:
                if is_gone(error):
                    raise OutsideError(
                        f"the upload of {self.bucket.url_of(self.key)} was aborted, by a newer owner or by the "
                        "bucket's rule for incomplete uploads",
                        code="upload_aborted",
                    ) from error
                raise
        self.parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum})
        del self._buffer[:PART_BYTES]
        self._writable = True

    def _check_writable(self) -> None:
        if not self._writable:
            raise InternalError(f"upload {self.temporary} was written to after it was finished or had failed")
