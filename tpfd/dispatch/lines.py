"""Dead letters and rejects as lines: of the log, or of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attrs import field, frozen

from tpfd.blocking import Blocking
from tpfd.dispatch.protocol import ItemReject, Letter
from tpfd.dispatch.wire import wire, wire_json
from tpfd.errors import DispatchError
from tpfd.ops.logs import Log, get_logger


@frozen
class LogLetters:
    """Dead letters as error lines of the log."""

    log: Log = field(factory=lambda: get_logger("tpfd.deadletter"))
    durable: bool = False

    async def publish(self, letter: Letter) -> None:
        """One line per letter."""
        self.log.error("dead_letter", **wire(letter))


@frozen
class LogRejects:
    """Rejects as warnings of the log."""

    log: Log = field(factory=lambda: get_logger("tpfd.reject"))
    durable: bool = False

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        """One line per reject."""
        for reject in rejects:
            self.log.warning("item_rejected", **wire(reject))


@frozen
class FileLines:
    """Appends JSON lines to a file, each call written whole and flushed to disk before it returns.

    Several processes may append to one file: a line is one write.
    """

    path: Path
    blocking: Blocking

    async def append(self, records: Sequence[Letter | ItemReject]) -> None:
        """Raises DispatchError when the file cannot be written."""
        data = b"".join(wire_json(record) + b"\n" for record in records)
        await self.blocking.run(self._append, data)

    def _append(self, data: bytes) -> None:
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                written = os.write(descriptor, data)
                if written != len(data):
                    raise DispatchError(f"{self.path}: only {written} of {len(data)} bytes could be written")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DispatchError(f"{self.path}: {error.strerror or error}") from error


@frozen
class FileLetters:
    """Dead letters in a file of JSON lines."""

    lines: FileLines
    durable: bool = True

    async def publish(self, letter: Letter) -> None:
        """Durable when it returns."""
        await self.lines.append((letter,))


@frozen
class FileRejects:
    """Rejects in a file of JSON lines."""

    lines: FileLines
    durable: bool = True

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        """Durable when it returns."""
        await self.lines.append(rejects)
