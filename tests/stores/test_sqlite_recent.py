"""Rows that the writer does not read again: many, and never one that has changed meanwhile."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.conformance.samples import counter_key, increment, remove
from tests.stores.faults import Faults
from tpfd.errors import StoreError
from tpfd.stores import sqlite_recent
from tpfd.stores.sqlite import open_sqlite
from tpfd.stores.sqlite_recent import UNKNOWN, Recent


async def test_what_was_written_is_not_read_again(tmp_path: Path) -> None:
    faults = Faults()
    async with open_sqlite(tmp_path / "one.db", connection_class=faults.connection_class()) as store:
        for count in range(1, 10):
            assert await increment(store) == count
    assert faults.count("SELECT body FROM block") == 1, "the first found nothing"


async def test_what_another_process_wrote_is_read(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "one.db") as ours, open_sqlite(tmp_path / "one.db") as theirs:
        for count in range(1, 20, 2):
            assert await increment(ours) == count
            assert await increment(theirs) == count + 1


async def test_what_was_removed_is_gone(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "one.db") as store:
        await increment(store)
        await remove(store, counter_key())
        assert await increment(store) == 1


@pytest.mark.parametrize("statement", ["COMMIT", "INSERT"])
async def test_what_was_not_committed_never_was(tmp_path: Path, statement: str) -> None:
    faults = Faults()
    async with open_sqlite(tmp_path / "one.db", connection_class=faults.connection_class()) as store:
        await increment(store)
        faults.arm(statement, sqlite3.SQLITE_FULL)
        with pytest.raises(StoreError):
            await increment(store)
        assert await increment(store) == 2


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_recent, "_COUNT_MAX", 3)
    recent = Recent()
    for index in range(4):
        recent.note(counter_key(index), index, 10)
    assert [recent.get(counter_key(index)) for index in range(4)] == [UNKNOWN, 1, 2, 3]
    recent.note(counter_key(1), "again", 10)
    recent.note(counter_key(4), 4, 10)
    assert recent.get(counter_key(1)) == "again", "the oldest goes first"
    recent.note(counter_key(1), "large", sqlite_recent._CHARS_MAX + 1)
    assert recent.get(counter_key(1)) is UNKNOWN, "nor is what was there before still true"
