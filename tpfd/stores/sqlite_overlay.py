"""One SQLite transaction, as its members see it.

The members of a group decide one after another, each seeing what the ones before it wrote, but nothing is written
until all have decided: a decision that raises or refuses leaves nothing to undo. Then the last state of each record is
written once, with few and large calls, because each call into SQLite gives up the interpreter lock and has to win it
back from the event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tpfd.core.records import Fact
from tpfd.core.transact import Decide, Key, Read
from tpfd.stores.deciding import key_of, settle
from tpfd.stores.sqlite_recent import UNKNOWN, Recent
from tpfd.stores.sqlite_tables import DELETE_FACTS, INSERT_FACT, TABLES, Column, Row, Table, fact_row

T = TypeVar("T")


class Overlay:
    """The records that a transaction has touched, over those in the file. Lives as long as the transaction.

    Args:
        recent: what the file is known to have.
    """

    def __init__(self, connection: sqlite3.Connection, keep_fact: Callable[[Fact], bool], recent: Recent) -> None:
        self._connection = connection
        self._keep_fact = keep_fact
        self._recent = recent
        self._stored: dict[Key[Any], Any] = {}  # as the file has it; only what was read
        self._current: dict[Key[Any], Any] = {}  # as the next member sees it
        self._rows: dict[Key[Any], Row | None] = {}  # what `write` has to do; None deletes
        self._facts: list[tuple[Column, ...]] = []
        self._forgotten_count = 0

    def decide(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        """Runs one member's decision and keeps what it wants written. If it raises, it leaves no trace.

        Raises:
            sqlite3.Error: a read failed; then the whole transaction has.
            StoreError: a row it looks at is damaged.
            InternalError: see `settle`.
            Exception: whatever `decide` raised.
        """
        decision = settle(reads, decide, self._load)
        puts = [(key := key_of(record), record, TABLES[key.kind].row(record)) for record in decision.puts]
        facts = [fact_row(fact) for fact in decision.facts if self._keep_fact(fact)]
        # Nothing below can fail.
        for key, record, row in puts:
            self._current[key] = record
            self._rows[key] = row
        for key in decision.deletes:
            self._current[key] = None
            self._rows[key] = None
        self._facts += facts
        return decision.result

    def forget(self, tenant_id: str, execution_id: str, limit: int) -> int:
        """Removes up to `limit` facts of an execution and its children; returns how many.

        Raises:
            sqlite3.Error: the transaction has to be rolled back.
        """
        below = f"{execution_id}."
        after_below = f"{execution_id}/"  # "/" follows "."
        removed = self._connection.execute(
            DELETE_FACTS, (tenant_id, execution_id, after_below, execution_id, below, limit)
        ).rowcount
        self._forgotten_count += removed
        return removed

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._rows or self._facts or self._forgotten_count)

    def write(self) -> None:
        """Writes the last state of each touched record, and the facts.

        Raises:
            sqlite3.Error, ValueError, OverflowError: the transaction has to be rolled back.
        """
        batches: dict[str, list[tuple[Column, ...]]] = {}
        for key, row in self._rows.items():
            table = TABLES[key.kind]
            if row is None:
                batches.setdefault(table.delete, []).append((key.tenant_id, key.record_id))
                continue
            changed = self._changed_places(key, table, row)
            columns: list[Column] = [key.tenant_id, key.record_id, row.body]
            for number in changed:
                columns += row.places[number]
            batches.setdefault(table.upsert(changed), []).append(tuple(columns))
        for statement, rows in batches.items():
            self._connection.executemany(statement, rows)
        if self._facts:
            self._connection.executemany(INSERT_FACT, self._facts)

    def committed(self) -> None:
        """The file has it all now."""
        for key, row in self._rows.items():
            if row is None:
                self._recent.drop(key)
            else:
                self._recent.note(key, self._current[key], len(row.body))

    def _load(self, key: Key[Any]) -> Any:
        if key in self._current:
            return self._current[key]
        record = self._recent.get(key)
        if record is UNKNOWN:
            record = self._read(key)
        self._stored[key] = self._current[key] = record
        return record

    def _read(self, key: Key[Any]) -> Any:
        table = TABLES[key.kind]
        # One select per key: measured five times faster than one for all of a group's keys.
        found = self._connection.execute(table.select, (key.tenant_id, key.record_id)).fetchone()
        if found is None:
            return None
        record = table.record(found[0], key.tenant_id, key.record_id)
        self._recent.note(key, record, len(found[0]))
        return record

    def _changed_places(self, key: Key[Any], table: Table, row: Row) -> tuple[int, ...]:
        stored = self._stored.get(key)
        if stored is None:  # new, or written without having been read
            return table.all_places
        before = table.places(stored)
        return tuple([number for number in table.all_places if before[number] != row.places[number]])
