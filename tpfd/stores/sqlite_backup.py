"""A copy of the database file, made while it is in use."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import trio

from tpfd.errors import Conflict, StoreError
from tpfd.stores.sqlite_errors import outside_error
from tpfd.stores.sqlite_file import SqliteFile

_STEP_PAGES = 1024


def back_up(file: SqliteFile, target: Path) -> None:
    """Writes the database as of one moment to `target`, which appears whole or not at all. Blocks.

    A held read transaction keeps the source at that moment, so that the copy need not start over with each commit. The
    WAL grows until the copy is done.

    Raises:
        Conflict: something has that name.
        StoreError: reading or writing failed.

    **Cancellation**: looked for between steps of a few MiB; ends the copy without a trace.
    """
    if target.exists():
        raise Conflict(f"{target} exists: backups are never overwritten, name a new file")
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        _copy(file, unfinished)
        _sync(unfinished)
        unfinished.rename(target)
        _sync(target.parent)
    except sqlite3.Error as error:
        raise outside_error(error) from error
    except OSError as error:
        raise StoreError(f"the backup {target} cannot be written: {error.strerror}", code="backup_failed") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _copy(file: SqliteFile, target: Path) -> None:
    with closing(file.open_reader()) as source, closing(sqlite3.connect(target, isolation_level=None)) as copy:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(copy, pages=_STEP_PAGES, progress=_stop_if_cancelled)


def _stop_if_cancelled(_status: int, _remaining: int, _total: int) -> None:
    trio.from_thread.check_cancelled()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
