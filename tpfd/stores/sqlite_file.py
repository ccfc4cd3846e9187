"""The database file: whose it is, which version it has, and how connections to it are set up.

Everything here blocks; ``tpfd.stores.sqlite`` calls it in a thread.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from tpfd.errors import ConfigError, Problem, StoreError
from tpfd.stores.sqlite_errors import is_locked, outside_error, primary_code
from tpfd.stores.sqlite_tables import create_schema

APPLICATION_ID = 0x74706664  # "tpfd", in the file's header
SCHEMA_VERSION = 1
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}
"""From each older version to the next, run in one transaction. A change of KINDS' indexes needs one: it adds the
columns, fills them from the bodies, and ends with the tables that `create_schema` makes for a new file."""

_LOCK_RETRY_S = 0.005
_WAL_LIMIT_BYTES = 64 * 1024 * 1024
_CACHE = "PRAGMA cache_size = -2000"  # KiB; more costs memory per row and brings no speed
_NOT_OURS = "check store.sqlite.path, or move that file away"


def _absolute(path: Path) -> Path:
    return path.absolute()


@frozen(kw_only=True)
class SqliteFile:
    """Where the file is and how it is used.

    Attributes:
        synchronous: `full` syncs the disk with every commit; `normal` may lose the last commits in a power cut, never
            in a crash of the process.
        busy_timeout_ms: how long to wait for another process.
        connection_class: a stand-in for tests of faults.
    """

    path: Path = field(converter=_absolute)
    synchronous: Literal["full", "normal"]
    busy_timeout_ms: int
    connection_class: type[sqlite3.Connection]

    def open(self, reader_count: int) -> tuple[sqlite3.Connection, list[sqlite3.Connection]]:
        """The writing connection and the reading ones: all of them, or none is left open.

        Raises:
            ConfigError, StoreError: see `open_writer` and `open_reader`.
        """
        with ExitStack() as opened:
            writer = opened.enter_context(closing(self.open_writer()))
            readers = [opened.enter_context(closing(self.open_reader())) for _ in range(reader_count)]
            opened.pop_all()
            return writer, readers

    def open_writer(self) -> sqlite3.Connection:
        """The writing connection; makes the file, or brings it to this version.

        The busy timeout is off: the writer waits for its turn by itself, because SQLite's way of waiting (longer and
        longer) loses against a busy neighbour.

        Raises:
            ConfigError: the file cannot be used, is not tpfd's, or is newer than this tpfd.
            StoreError: it is damaged, or locked for longer than the busy timeout.
        """
        self._check_writable()
        connection = self._connect(self.path.as_uri())
        try:
            self._identify(connection)
            self._use_wal(connection)
            if schema_version(connection) != SCHEMA_VERSION:
                self._bring_up(connection)
            connection.execute(_CACHE)
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
            connection.execute("PRAGMA busy_timeout = 0")
        except sqlite3.Error as error:
            connection.close()
            raise outside_error(error) from error
        except (ConfigError, StoreError):
            connection.close()
            raise
        return connection

    def open_reader(self) -> sqlite3.Connection:
        """A connection that cannot write. The file must have been opened for writing before.

        Raises:
            StoreError: it cannot be opened.
        """
        connection = self._connect(f"{self.path.as_uri()}?mode=ro")
        try:
            connection.execute(_CACHE)
        except sqlite3.Error as error:
            connection.close()
            raise outside_error(error) from error
        return connection

    def open_looking(self) -> sqlite3.Connection:
        """A connection that cannot write, to a file that may not have been opened before.

        Raises:
            ConfigError: there is no such file, or it is not one of this tpfd.
            StoreError: it cannot be read.
        """
        if not self.path.exists():
            raise _unusable(f"there is no {self.path}: no daemon has run with it yet, or the path is wrong")
        connection = self.open_reader()
        try:
            self._identify(connection)
            if (found := schema_version(connection)) != SCHEMA_VERSION:
                raise _unusable(
                    f"{self.path} has version {found}, this tpfd knows version {SCHEMA_VERSION}: use the tpfd that "
                    "wrote it, or start a daemon of this one, which brings it up"
                )
        except sqlite3.Error as error:
            connection.close()
            raise outside_error(error) from error
        except (ConfigError, StoreError):
            connection.close()
            raise
        return connection

    def _connect(self, uri: str) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                uri,
                uri=True,
                timeout=self.busy_timeout_ms / 1000,
                isolation_level=None,  # transactions are ours
                check_same_thread=False,  # handed from the opening thread to the using one
                cached_statements=512,
                factory=self.connection_class,
            )
        except sqlite3.Error as error:
            raise outside_error(error) from error

    def _check_writable(self) -> None:
        """SQLite says no more than "unable to open database file"; say what is wrong before it does."""
        folder = self.path.parent
        if not folder.is_dir():
            raise _unusable(f"the folder {folder} does not exist: create it, owned by the user that runs tpfd")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unusable(f"the folder {folder} cannot be written: SQLite keeps two more files beside {self.path}")
        try:
            # Made by us first, because SQLite would let everybody read it.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise _unusable(f"{self.path} cannot be opened for writing: {error.strerror}") from error

    def _identify(self, connection: sqlite3.Connection) -> None:
        """Refuses a file that is not ours, before anything in it is changed."""
        try:
            application_id = _pragma(connection, "application_id")
            found = schema_version(connection)
            empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        except sqlite3.DatabaseError as error:
            if primary_code(error) != sqlite3.SQLITE_NOTADB:
                raise
            raise _unusable(
                f"{self.path} is not an SQLite database: {_NOT_OURS}; if tpfd wrote it, it is damaged: restore a backup"
            ) from error
        if application_id != APPLICATION_ID and not (application_id == 0 and empty):
            raise _unusable(f"{self.path} is another program's database: {_NOT_OURS}")
        if found > SCHEMA_VERSION:
            raise _newer(self.path, found)

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return
        give_up_s = time.monotonic() + self.busy_timeout_ms / 1000
        while True:  # the switch does not wait by itself while another process opens the file
            try:
                mode = connection.execute("PRAGMA journal_mode = wal").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() >= give_up_s:
                    raise
            time.sleep(_LOCK_RETRY_S)
        if mode != "wal":
            raise _unusable(f"{self.path} is on a file system that SQLite's WAL cannot use (a network mount?): move it")

    def _bring_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        found = schema_version(connection)  # again: another process may have been quicker
        if found > SCHEMA_VERSION:
            raise _newer(self.path, found)
        if found == 0:
            create_schema(connection)
        else:
            for version in range(found, SCHEMA_VERSION):
                MIGRATIONS[version](connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")


def schema_version(connection: sqlite3.Connection) -> int:
    """The version in the file's header; 0 in a new file."""
    return _pragma(connection, "user_version")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _unusable(message: str) -> ConfigError:
    return ConfigError([Problem("$.store.sqlite.path", message)], code="store_unusable")


def _newer(path: Path, found: int) -> ConfigError:
    return _unusable(
        f"{path} has version {found}, this tpfd knows version {SCHEMA_VERSION}: start the newer tpfd that wrote it, or "
        "restore a backup made before the upgrade"
    )
