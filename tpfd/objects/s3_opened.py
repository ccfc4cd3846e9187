"""Input objects in S3 as files, for step functions.

A step function runs in a thread and reads as it would read a file; each range is fetched by the event loop, with its
limits, repeats and counts.
"""

from __future__ import annotations

import io
from typing import BinaryIO

import trio

from tpfd.errors import Conflict, NonRetryableError
from tpfd.objects.s3_bucket import RANGE_BYTES, Bucket


def open_ranges(bucket: Bucket, key: str) -> BinaryIO:
    """Opens an object for reading, in a worker thread of Trio. Raises as ``ObjectSource.open_object`` does."""
    head = trio.from_thread.run(bucket.head, key)
    if head is None:
        raise NonRetryableError(
            f"{bucket.url_of(key)} does not exist: put it back and re-drive", code="object_missing"
        )
    return io.BufferedReader(_Ranges(bucket, key, head.etag, head.size_bytes), RANGE_BYTES)


class _Ranges(io.RawIOBase):
    """An object as a file that is read by ranges, always of the content that it had when it was opened."""

    def __init__(self, bucket: Bucket, key: str, etag: str, size_bytes: int) -> None:
        super().__init__()
        self._bucket = bucket
        self._key = key
        self._etag = etag
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size_bytes = min(len(buffer), self._size_bytes - self._position)
        if size_bytes <= 0:
            return 0
        try:
            data = trio.from_thread.run(self._bucket.read, self._key, self._etag, self._position, size_bytes)
        except Conflict as error:
            raise NonRetryableError(
                f"{self._bucket.url_of(self._key)} was changed while it was read", code="object_changed"
            ) from error
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
