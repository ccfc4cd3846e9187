"""Opening the file: new, ours, somebody else's, too new, damaged, out of reach. And copying it."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
import trio

from tests.conformance.samples import counter, counter_key, fact, increment, put
from tpfd.errors import ConfigError, Conflict, InternalError, StoreError
from tpfd.stores import sqlite_backup, sqlite_file
from tpfd.stores.sqlite import open_sqlite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def run(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


async def refused(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        async with open_sqlite(path):
            pass
    (problem,) = caught.value.problems
    assert problem.path == "$.store.sqlite.path"
    return caught.value


async def test_what_is_committed_is_there_after_reopening(path: Path) -> None:
    async with open_sqlite(path) as store:
        await put(store, counter(0, 7), facts=(fact("a"),))
    async with open_sqlite(path, synchronous="normal") as store:
        assert await store.get(counter_key()) == counter(0, 7)
        assert await store.last_seq() == 1


async def test_the_file_is_private_and_says_whose_it_is(path: Path) -> None:
    async with open_sqlite(path) as store:
        await increment(store)
        files = list(await trio.Path(path.parent).iterdir())
        assert len(files) == 3
        for file in files:
            assert stat.S_IMODE((await file.stat()).st_mode) == 0o600
    assert run(path, "PRAGMA application_id") == [(0x74706664,)]
    assert run(path, "PRAGMA user_version") == [(sqlite_file.SCHEMA_VERSION,)]


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
async def test_the_writer_is_set_up_as_asked(path: Path, synchronous: str, level: int) -> None:
    file = sqlite_file.SqliteFile(
        path=path,
        synchronous=synchronous,  # type: ignore[arg-type]
        busy_timeout_ms=10,
        connection_class=sqlite3.Connection,
    )
    with closing(file.open_writer()) as writer, closing(file.open_reader()) as reader:
        assert writer.execute("PRAGMA synchronous").fetchone() == (level,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM fact")


async def test_bodies_can_be_asked_for_with_sql(path: Path) -> None:
    """An operator at night has the sqlite3 shell."""
    async with open_sqlite(path) as store:
        await put(store, counter(0, 7))
    assert run(path, "SELECT json_extract(body, '$.continued_count') FROM block") == [(7,)]


async def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    async with open_sqlite(path) as store:
        await increment(store)
    run(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    error = await refused(path)
    assert "version 99" in error.message
    assert f"version {sqlite_file.SCHEMA_VERSION}" in error.message
    assert path.read_bytes() == before


async def test_an_older_file_is_brought_forward_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_sqlite(path) as store:
        await put(store, counter(0, 7))
    steps: list[str] = []

    def to_2(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE added (id TEXT)")
        steps.append("to 2")

    def to_3(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO added VALUES ('x')")
        steps.append("to 3")

    monkeypatch.setattr(sqlite_file, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", {1: to_2, 2: to_3})
    for _ in range(2):
        async with open_sqlite(path) as store:
            assert await store.get(counter_key()) == counter(0, 7)
    assert steps == ["to 2", "to 3"]
    assert run(path, "PRAGMA user_version") == [(3,)]


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_sqlite(path):
        pass

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE added (id TEXT)")
        connection.execute("SELECT nonsense")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_file, "SCHEMA_VERSION", 2)
        patched.setattr(sqlite_file, "MIGRATIONS", {1: fails})
        with pytest.raises(StoreError, match="nonsense"):
            async with open_sqlite(path):
                pass
    assert run(path, "SELECT count(*) FROM sqlite_master WHERE name = 'added'") == [(0,)]
    async with open_sqlite(path) as store:
        await increment(store)


async def test_a_file_that_is_migrated_under_us_stops_us(path: Path) -> None:
    """A rolling upgrade on one host: the old process must not go on writing rows the new one cannot find."""

    async def use() -> None:
        async with open_sqlite(path) as store:
            await increment(store)
            run(path, "PRAGMA user_version = 99")
            await increment(store)

    with pytest.raises(InternalError, match="version 99"):
        await use()


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    run(path, "CREATE TABLE customers (name TEXT)")
    before = path.read_bytes()
    error = await refused(path)
    assert "another program's" in error.message
    assert path.read_bytes() == before


async def test_something_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("name,amount\n" * 500)
    assert "not an SQLite database" in (await refused(path)).message


async def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.touch()
    async with open_sqlite(path) as store:
        assert await increment(store) == 1


async def test_a_missing_folder_is_named(path: Path) -> None:
    error = await refused(path.parent / "no" / "store.db")
    assert f"{path.parent / 'no'} does not exist" in error.message


async def test_a_folder_in_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir()
    assert "Is a directory" in (await refused(path)).message


async def test_a_folder_that_cannot_be_written_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "cannot be written" in (await refused(path)).message


async def test_a_file_that_cannot_be_written_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert "Permission denied" in (await refused(path)).message


async def test_a_damaged_file_is_a_store_error(path: Path) -> None:
    async with open_sqlite(path) as store:
        await put(store, *(counter(index) for index in range(500)))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        async with open_sqlite(path) as store:
            await store.get(counter_key())
    assert (caught.value.code, caught.value.retryable) == ("store_corrupt", False)


async def test_odd_characters_in_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#c %41é.db"
    async with open_sqlite(path) as store:
        assert await increment(store) == 1
        assert await store.get(counter_key()) == counter(0, 1)
    assert path.stat().st_size > 0


async def test_a_backup_is_whole_while_the_store_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows one moment, and does not start over with each commit, or a busy store could never be copied."""
    copy = tmp_path / "copy.db"
    (tmp_path / "copy.db.unfinished").write_text("left behind by a crash")
    records = [counter(index, index) for index in range(1, 500)]
    steps = 0

    def commit_between_steps() -> None:
        nonlocal steps
        steps += 1
        assert steps < 1_000
        trio.from_thread.run(increment, store)

    monkeypatch.setattr(sqlite_backup, "_STEP_PAGES", 1)
    monkeypatch.setattr(trio.from_thread, "check_cancelled", commit_between_steps)
    async with open_sqlite(path) as store:
        await put(store, counter(0, 7), *records, facts=(fact("a"),))
        await store.backup(copy)
        assert steps > 10
        assert await store.get(counter_key()) == counter(0, 7 + steps)
    assert run(copy, "PRAGMA integrity_check") == [("ok",)]
    async with open_sqlite(copy) as restored:
        found = await restored.get_many([counter_key(index) for index in range(500)])
        assert found == [counter(0, 7), *records]
        assert await restored.last_seq() == 1
    assert sorted(file.name for file in await trio.Path(tmp_path).iterdir()) == ["copy.db", "store.db"]


async def test_a_backup_never_overwrites(path: Path, tmp_path: Path) -> None:
    async with open_sqlite(path) as store:
        with pytest.raises(Conflict, match="never overwritten"):
            await store.backup(path)
        with pytest.raises(StoreError):
            await store.backup(tmp_path / "no" / "copy.db")


async def test_a_cancelled_backup_leaves_no_trace(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_backup, "_STEP_PAGES", 1)
    steps = 0
    check = trio.from_thread.check_cancelled
    with trio.CancelScope() as scope:

        def cancel_then_check() -> None:
            nonlocal steps
            steps += 1
            trio.from_thread.run_sync(scope.cancel)
            check()

        monkeypatch.setattr(trio.from_thread, "check_cancelled", cancel_then_check)
        async with open_sqlite(path) as store:
            await put(store, *(counter(index) for index in range(200)))
            await store.backup(tmp_path / "copy.db")
    assert scope.cancelled_caught
    assert steps == 1
    assert [file.name for file in await trio.Path(tmp_path).iterdir()] == ["store.db"]
