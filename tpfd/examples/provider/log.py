"""The provider's own books: one JSON line per request, on its way to disk before the answer is sent."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tpfd.errors import OutsideError


class RequestLog:
    """An append-only file; each batch is one write in a worker thread.

    What was written survives the death of this process, not that of the host: it is not synced.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._limiter = trio.CapacityLimiter(1)

    async def write(self, lines: Sequence[bytes]) -> None:
        """Hands complete lines to the operating system.

        Raises:
            OutsideError: the file cannot be written; nothing may be answered then.

        **Cancellation**: not abandoned; a write that was begun ends.
        """
        try:
            await trio.to_thread.run_sync(_write_all, self._descriptor, b"".join(lines), limiter=self._limiter)
        except OSError as error:
            raise OutsideError(f"cannot write the log {self._path}: {error.strerror}", retryable=False) from error


@asynccontextmanager
async def open_log(path: Path) -> AsyncIterator[RequestLog]:
    """Opens the log for appending.

    A torn last line, left by a kill in the middle of a write, is cut off: its request was not answered yet.

    Raises:
        OutsideError: the file cannot be opened.
    """
    try:
        descriptor = await trio.to_thread.run_sync(_open, path)
    except OSError as error:
        raise OutsideError(f"cannot open the log {path}: {error.strerror}", retryable=False) from error
    try:
        yield RequestLog(path, descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return descriptor  # a terminal or a pipe has no last line to look at
    size = found.st_size
    tail = os.pread(descriptor, 64 * 1024, max(0, size - 64 * 1024))
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(descriptor, size - len(tail) + tail.rfind(b"\n") + 1)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
