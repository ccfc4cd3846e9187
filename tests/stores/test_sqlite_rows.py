"""Rows and files of released versions still load."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conformance.samples import execution
from tests.golden.write_v1 import whole
from tpfd.core.kinds import EXECUTION, KINDS
from tpfd.core.transact import Kind
from tpfd.errors import StoreError
from tpfd.stores.sqlite import open_sqlite
from tpfd.stores.sqlite_file import APPLICATION_ID
from tpfd.stores.sqlite_tables import TABLES

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [kind.name for kind in KINDS]


def golden(kind: Kind[Any]) -> str:
    return (GOLDEN / "rows_v1" / f"{kind.name}.json").read_text()


def schema(path: Path) -> list[tuple[str, ...]]:
    """Every table and index, however it was made: white space does not count."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return [tuple(" ".join(str(value).split()) for value in row) for row in rows]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_row_of_version_1_loads_with_nothing_lost(kind: Kind[Any]) -> None:
    body = golden(kind)
    record = TABLES[kind].record(body, "t", "i")
    again = json.loads(TABLES[kind].row(record).body)
    assert {name: again[name] for name in json.loads(body)} == json.loads(body)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_field_comes_back_equal(kind: Kind[Any]) -> None:
    record = whole(kind.record_type)
    assert TABLES[kind].record(TABLES[kind].row(record).body, "t", "i") == record


def test_fields_that_a_row_lacks_take_their_defaults_and_unknown_ones_are_ignored() -> None:
    row = msgspec.to_builtins(execution())
    del row["search"], row["attempt"], row["publication"]
    row["from_the_future"] = {"a": [1]}
    assert TABLES[EXECUTION].record(json.dumps(row), "t", "i") == execution()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"status": "DANCING"}, "status"), ({"version": "one"}, "version"), ({"input": None}, "input")],
)
def test_a_row_that_does_not_fit_says_where(change: dict[str, Any], words: str) -> None:
    row = msgspec.to_builtins(execution()) | change
    with pytest.raises(StoreError, match=words) as caught:
        TABLES[EXECUTION].record(json.dumps(row), "acme", "e1")
    assert "'e1' of tenant 'acme'" in caught.value.message


async def test_a_file_of_version_1_opens(tmp_path: Path) -> None:
    """It ends with the tables of a new file, and every row is found under its key and through its indexes."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript((GOLDEN / "schema_v1.sql").read_text())
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        for kind in KINDS:
            table = TABLES[kind]
            record = table.record(golden(kind), "t", "i")
            columns = [*kind.id_of(record), golden(kind), *(value for place in table.places(record) for value in place)]
            connection.execute(table.upsert(table.all_places), columns)
    async with open_sqlite(path) as store:
        for kind in KINDS:
            record = TABLES[kind].record(golden(kind), "t", "i")
            assert await store.get(kind.key_of(record)) == record
            for index in kind.indexes:
                entry = index.entry(record)
                if entry is not None:
                    assert (await store.query(index, entry.partition, limit=2)).records == (record,)
    async with open_sqlite(tmp_path / "new.db"):
        pass
    assert schema(path) == schema(tmp_path / "new.db")


async def test_every_index_is_used(tmp_path: Path) -> None:
    """A page is read from its index alone, whatever its bounds: no scan, no sorting."""
    async with open_sqlite(tmp_path / "store.db"):
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            for kind in KINDS:
                for index in kind.indexes:
                    sort = f"{index.name}_s"
                    plan = connection.execute(
                        f"EXPLAIN QUERY PLAN SELECT body FROM {kind.name} WHERE {index.name}_p = 'x' "
                        f"AND ({sort}, tenant, id) > (1, 'a', 'b') AND {sort} <= 5 ORDER BY {sort}, tenant, id LIMIT 9"
                    ).fetchall()
                    (step,) = [row[3] for row in plan]
                    assert f"USING INDEX {kind.name}_{index.name} ({index.name}_p=? AND " in step
