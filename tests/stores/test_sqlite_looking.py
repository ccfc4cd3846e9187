"""Looking at an SQLite store without being its writer."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.conformance.samples import execution
from tpfd.core.kinds import EXECUTION
from tpfd.core.transact import Decision
from tpfd.errors import ConfigError
from tpfd.stores.sqlite import open_sqlite
from tpfd.stores.sqlite_file import SCHEMA_VERSION
from tpfd.stores.sqlite_looking import look_at_sqlite


async def test_it_sees_what_a_running_store_commits_and_what_a_stopped_one_left(tmp_path: Path) -> None:
    path, record = tmp_path / "tpfd.db", execution()
    key = EXECUTION.key_of(record)
    async with open_sqlite(path) as store, look_at_sqlite(path) as look:
        assert await look.get(key) is None
        await store.transact((), lambda _: Decision(None, puts=(record,)))
        assert await look.get(key) == record
        assert (await look.file_state()).wal_bytes > 0
    async with look_at_sqlite(path) as look:
        assert await look.get_many([key]) == [record]
        state = await look.file_state()
    assert state.version == state.known_version == SCHEMA_VERSION
    assert 0 < state.file_bytes < state.free_bytes < state.disk_bytes


async def test_it_makes_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tpfd.db"
    with pytest.raises(ConfigError, match="there is no"):
        async with look_at_sqlite(path):
            pass
    assert list(tmp_path.iterdir()) == []
    path.touch()
    with pytest.raises(ConfigError, match="version 0"):
        async with look_at_sqlite(path):
            pass
    assert path.stat().st_size == 0


async def test_it_refuses_what_is_not_of_this_version(tmp_path: Path) -> None:
    path = tmp_path / "tpfd.db"
    async with open_sqlite(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="version 99"):
        async with look_at_sqlite(path):
            pass
