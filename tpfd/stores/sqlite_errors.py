"""What SQLite's errors mean to us.

Three groups matter. Some say that the *store* cannot work now (disk full, I/O, lock not had in time): every member of
the transaction fails. Some say that one *row* cannot be stored: only its decision fails. The rest says that the file
is not what it should be.
"""

from __future__ import annotations

import sqlite3

from tpfd.errors import InternalError, StoreError

ROW_ERRORS = (ValueError, OverflowError)
"""Raised by the driver, beside sqlite3.Error, for a value that SQLite cannot hold: lone surrogates, 65-bit numbers."""

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_MEANING: dict[int, tuple[str, bool, str]] = {  # primary result code: our code, retryable, what to do
    sqlite3.SQLITE_FULL: ("store_full", True, "the disk is full: free some space, work goes on without a restart"),
    sqlite3.SQLITE_IOERR: ("store_io", True, "the disk reported an I/O error: look at the kernel log"),
    sqlite3.SQLITE_BUSY: ("store_busy", True, "another process held the write lock for longer than the busy timeout"),
    sqlite3.SQLITE_LOCKED: ("store_busy", True, "a table is locked"),
    sqlite3.SQLITE_NOMEM: ("store_unavailable", True, "out of memory"),
    sqlite3.SQLITE_CANTOPEN: ("store_unavailable", True, "the file cannot be opened: look at its folder and rights"),
    sqlite3.SQLITE_READONLY: ("store_read_only", False, "the file or its folder cannot be written"),
    sqlite3.SQLITE_PERM: ("store_read_only", False, "the file may not be used: look at its rights"),
    sqlite3.SQLITE_CORRUPT: ("store_corrupt", False, "the file is damaged: stop tpfd, keep the file, restore a backup"),
    sqlite3.SQLITE_NOTADB: ("store_corrupt", False, "the file is not an SQLite database: restore a backup"),
}


def primary_code(error: Exception) -> int | None:
    """SQLite's primary result code; None when the error did not come from SQLite itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_locked(error: sqlite3.Error) -> bool:
    """Another connection has the lock; trying again may help."""
    return primary_code(error) in _LOCKED


def spares_neighbours(error: Exception) -> bool:
    """The error is about one row, so that the other decisions of the transaction can be tried without it."""
    return primary_code(error) not in _MEANING


def outside_error(error: sqlite3.Error) -> StoreError:
    """What the caller of the store gets; the driver's error is its cause."""
    code, retryable, hint = _MEANING.get(primary_code(error) or 0, ("store_rejected", False, "SQLite refused it"))
    translated = StoreError(f"{hint} ({error})", retryable=retryable, code=code)
    translated.__cause__ = error
    return translated


def member_error(error: Exception) -> StoreError | InternalError:
    """What a caller of ``transact`` gets when its decision could not be written. A fresh one for each caller."""
    if isinstance(error, sqlite3.Error):
        return outside_error(error)
    translated = InternalError(f"a record holds a value that cannot be stored: {error}")
    translated.__cause__ = error
    return translated
