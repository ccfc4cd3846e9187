"""Reading without a transaction of the writer: committed records, index pages, the journal.

Each call is one short read transaction on a connection of its own, so that it neither waits for the writer nor keeps
the WAL from being written back. The threads are in ``sqlite_readers``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TypeVar

from tpfd.core.records import SequencedFact
from tpfd.core.transact import Index, Key, Page, Sort
from tpfd.stores.paging import Place, kind_of_index, write_cursor
from tpfd.stores.sqlite_tables import SELECTED_FACT, TABLES, sequenced_fact

R = TypeVar("R")


def read_records(connection: sqlite3.Connection, keys: Sequence[Key[R]]) -> list[R | None]:
    """The records under the keys, all as of one moment."""
    found: list[R | None] = []
    connection.execute("BEGIN")
    try:
        for key in keys:
            table = TABLES[key.kind]
            row = connection.execute(table.select, (key.tenant_id, key.record_id)).fetchone()
            found.append(None if row is None else table.record(row[0], key.tenant_id, key.record_id))
    finally:
        connection.execute("ROLLBACK")
    return found


def read_page(
    connection: sqlite3.Connection,
    index: Index[R],
    partition: str,
    *,
    limit: int,
    behind: Place | None,
    first: Sort | None,
    last: Sort | None,
    descending: bool,
) -> Page[R]:
    """See ``Store.query``; `behind` is the place of the record before the page."""
    kind = kind_of_index(index)
    sort = f"{index.name}_s"
    conditions = [f"{index.name}_p = ?"]
    values: list[str | int] = [partition]
    if behind is not None:
        conditions.append(f"({sort}, tenant, id) {'<' if descending else '>'} (?, ?, ?)")
        values += behind
    if first is not None:
        conditions.append(f"{sort} >= ?")
        values.append(first)
    if last is not None:
        conditions.append(f"{sort} <= ?")
        values.append(last)
    order = " DESC" if descending else ""
    statement = (
        f"SELECT body, {sort}, tenant, id FROM {kind.name} WHERE {' AND '.join(conditions)} "  # noqa: S608  our own names
        f"ORDER BY {sort}{order}, tenant{order}, id{order} LIMIT ?"
    )
    rows = connection.execute(statement, (*values, limit + 1)).fetchall()
    table = TABLES[kind]
    records = tuple([table.record(body, tenant, record_id) for body, _, tenant, record_id in rows[:limit]])
    return Page(records, write_cursor(index, Place(*rows[limit - 1][1:])) if len(rows) > limit else None)


def read_history(
    connection: sqlite3.Connection, tenant_id: str, execution_id: str, *, after: int, limit: int
) -> list[SequencedFact]:
    """See ``Store.history``."""
    rows = connection.execute(
        f"SELECT {SELECTED_FACT} FROM fact WHERE tenant = ? AND execution = ? AND seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
        (tenant_id, execution_id, after, limit),
    )
    return [sequenced_fact(row) for row in rows.fetchall()]


def read_feed(connection: sqlite3.Connection, *, after: int, limit: int) -> list[SequencedFact]:
    """See ``Store.feed``."""
    rows = connection.execute(
        f"SELECT {SELECTED_FACT} FROM fact WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
        (after, limit),
    )
    return [sequenced_fact(row) for row in rows.fetchall()]


def read_last_seq(connection: sqlite3.Connection) -> int:
    """The highest sequence number ever given; also right after that fact was deleted."""
    row: tuple[int] | None = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'fact'").fetchone()
    return 0 if row is None else row[0]
