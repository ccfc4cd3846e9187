"""Records that the writer need not read again: what it last read or wrote, as long as nobody else writes.

The writing connection holds the file's only write lock while it decides, and SQLite tells it when another connection
has committed since. Until then a row is what this connection last saw of it. Most records are written several times
within a second and read before each, so that most reads are saved, with the decoding.
"""

from __future__ import annotations

from typing import Any, Final

from tpfd.core.transact import Key

_COUNT_MAX: Final = 2048
_CHARS_MAX: Final = 4096  # of one row; at most 8 MiB are kept

UNKNOWN: Final = object()
"""The file has to be asked."""


class Recent:
    """See the module. Used by the writer's thread alone."""

    def __init__(self) -> None:
        self._records: dict[Key[Any], Any] = {}  # the oldest first

    def get(self, key: Key[Any]) -> Any:
        """The record as the file has it, or UNKNOWN."""
        return self._records.get(key, UNKNOWN)

    def note(self, key: Key[Any], record: Any, char_count: int) -> None:
        """The file has this record now."""
        self._records.pop(key, None)
        if char_count > _CHARS_MAX:
            return
        if len(self._records) >= _COUNT_MAX:
            del self._records[next(iter(self._records))]
        self._records[key] = record

    def drop(self, key: Key[Any]) -> None:
        """The record was removed."""
        self._records.pop(key, None)

    def clear(self) -> None:
        """Somebody else has written; nobody knows what."""
        self._records.clear()
