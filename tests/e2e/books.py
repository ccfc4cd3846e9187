"""Everything that an SQLite store holds, read after the daemons are gone, to be judged by ``invariants``."""

from __future__ import annotations

import hashlib
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeVar, cast

from attrs import frozen

from tpfd.core.kinds import (
    CHILD_BY_UNIT,
    CHUNK,
    EXECUTION,
    EXECUTION_BY_STATUS,
    INTERACTION,
    KINDS,
    MANIFEST,
    status_partition,
)
from tpfd.core.records import ExecutionId, ExecutionRecord, Fact, FactType, InteractionRecord, TenantId, UnitId
from tpfd.core.transact import Index, Key, Kind
from tpfd.payloads import chunk_id
from tpfd.stores.sqlite import SqliteStore, open_sqlite
from tpfd.stores.sqlite_tables import TABLES

R = TypeVar("R")

PAGE = 500

Rows = dict[Key[Any], Any]


@frozen
class Books:
    """What stood in a store.

    Attributes:
        rows: every record under its key.
        facts: the journal of each execution, in order.
        damage: what is wrong with the file itself, in words.
    """

    rows: Rows
    facts: dict[ExecutionId, list[Fact]]
    damage: list[str]

    def all_of(self, kind: Kind[R]) -> list[R]:
        return [cast("R", record) for key, record in self.rows.items() if key.kind is kind]

    def get(self, key: Key[R]) -> R | None:
        return cast("R | None", self.rows.get(key))

    def roots(self, pipeline_id: str = "") -> list[ExecutionRecord]:
        """Executions that were submitted or ingested: all, or those of a pipeline."""
        return [
            record
            for record in self.all_of(EXECUTION)
            if record.parent_execution_id is None and pipeline_id in ("", record.pipeline_id)
        ]

    def interactions(self) -> dict[UnitId, list[InteractionRecord]]:
        """The interactions of each unit in the order of their items."""
        found: dict[UnitId, list[InteractionRecord]] = defaultdict(list)
        for record in sorted(self.all_of(INTERACTION), key=lambda record: record.item_index):
            found[record.unit_id].append(record)
        return found

    def children(self) -> dict[UnitId, list[ExecutionRecord]]:
        """The children of each unit in the order of their items."""
        found: dict[UnitId, list[ExecutionRecord]] = defaultdict(list)
        for record in sorted(self.all_of(EXECUTION), key=lambda record: record.item_index or 0):
            if record.unit_id is not None:
                found[record.unit_id].append(record)
        return found

    def count(self, fact_type: FactType, pipeline_id: str = "") -> int:
        """Facts of a type, of all pipelines or of one."""
        return sum(
            fact.type is fact_type and pipeline_id in ("", fact.pipeline_id)
            for facts in self.facts.values()
            for fact in facts
        )

    def stored_text(self, tenant_id: TenantId, stored_id: str) -> str | None:
        """A value that is stored apart; None when a part of it is missing or damaged."""
        manifest = self.get(MANIFEST.key(tenant_id, stored_id))
        if manifest is None:
            return None
        keys = [CHUNK.key(tenant_id, chunk_id(stored_id, number)) for number in range(manifest.chunk_count)]
        parts = [self.get(key) for key in keys]
        text = "".join(part.text for part in parts if part is not None)
        return text if hashlib.sha256(text.encode()).hexdigest() == manifest.digest else None


async def read_books(path: Path) -> Books:
    """Reads a store that no daemon has open."""
    async with open_sqlite(path) as store:
        rows, damage = _read_rows(path)
        damage += await _lost_from_sight(store, rows)
        facts: dict[ExecutionId, list[Fact]] = defaultdict(list)
        after = 0
        while page := await store.feed(after=after, limit=PAGE):
            after = page[-1].seq
            for one in page:
                facts[one.fact.execution_id].append(one.fact)
    return Books(rows, dict(facts), damage)


def _read_rows(path: Path) -> tuple[Rows, list[str]]:
    """Every row of every table, past the indexes; each must stand in every index where its record belongs."""
    rows: Rows = {}
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        damage = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
        for kind in KINDS:
            table = TABLES[kind]
            columns = "".join(f", {index.name}_p, {index.name}_s" for index in kind.indexes)
            stored = connection.execute(f"SELECT tenant, id, body{columns} FROM {kind.name}")
            for tenant, row_id, body, *stands in stored:
                record = table.record(body, tenant, row_id)
                rows[kind.key(tenant, row_id)] = record
                if kind.id_of(record) != (tenant, row_id):
                    damage.append(f"the {kind.name} {row_id} stands under an id that is not its own")
                belongs = [column for place in table.places(record) for column in place]
                if belongs != stands:
                    damage.append(f"the {kind.name} {row_id} stands in its indexes at {stands}, not at {belongs}")
    finally:
        connection.close()
    return rows, damage


async def _lost_from_sight(store: SqliteStore, rows: Rows) -> list[str]:
    """Lists of executions that do not show what there is."""
    there: dict[tuple[Index[ExecutionRecord], str], set[str]] = defaultdict(set)
    for key, record in rows.items():
        if key.kind is not EXECUTION:
            continue
        if record.parent_execution_id is None:
            partition = status_partition(record.tenant_id, record.pipeline_id, record.status)
            there[EXECUTION_BY_STATUS, partition].add(record.execution_id)
        else:
            there[CHILD_BY_UNIT, record.unit_id].add(record.execution_id)
    damage = []
    for (index, partition), wanted in there.items():
        shown: set[str] = set()
        cursor: str | None = None
        while True:
            page = await store.query(index, partition, limit=PAGE, cursor=cursor)
            shown |= {record.execution_id for record in page.records}
            if (cursor := page.cursor) is None:
                break
        if shown != wanted:
            damage.append(f"the list {partition} shows wrongly: {sorted(shown ^ wanted)}")
    return damage
