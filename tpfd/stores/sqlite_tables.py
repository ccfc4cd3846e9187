"""How records and facts stand in tables: one table per kind, generated from ``tpfd.core.kinds``.

A record is one JSON text plus, for each index, two columns: the partition (``<index>_p``, NULL keeps the row out) and
the sort value (``<index>_s``). Fields that a row lacks take their defaults and fields that are not known are ignored,
so a new optional field needs no migration; a new or changed index does.

The tables have row ids on purpose: in a WITHOUT ROWID table of 4 KiB pages a row over about 1,000 bytes spills into
overflow pages, which measured 3.4 times the file and a quarter less speed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from attrs import frozen

from tpfd.core.kinds import KINDS
from tpfd.core.records import Fact, FactType, FactValue, SequencedFact
from tpfd.core.transact import Index, Kind
from tpfd.errors import InternalError, StoreError

Column = str | int | None
SELECTED_FACT = "seq, tenant, execution, key, type, at, pipeline, data"

_encoder = msgspec.json.Encoder()
_fact_data = msgspec.json.Decoder(dict[str, FactValue])


@frozen
class Row:
    """A record as its table holds it.

    Attributes:
        places: for each index of the kind: partition and sort value, or two Nones.
    """

    body: str
    places: tuple[tuple[str | None, Column], ...]


class Table:
    """One kind of record: its statements, and the way from record to row and back."""

    def __init__(self, kind: Kind[Any]) -> None:
        self.kind = kind
        self.select = f"SELECT body FROM {kind.name} WHERE tenant = ? AND id = ?"  # noqa: S608  our own names
        self.delete = f"DELETE FROM {kind.name} WHERE tenant = ? AND id = ?"  # noqa: S608
        self.all_places = tuple(range(len(kind.indexes)))
        self._decoder = msgspec.json.Decoder(kind.record_type)
        self._upserts: dict[tuple[int, ...], str] = {}

    def row(self, record: Any) -> Row:
        """The row of a record.

        Raises:
            InternalError: it holds something that is not JSON.
        """
        try:
            body = _encoder.encode(record).decode()
        except (TypeError, ValueError, OverflowError) as error:
            raise InternalError(f"a {self.kind.name} holds a value that cannot be stored: {error}") from error
        return Row(body, self.places(record))

    def places(self, record: Any) -> tuple[tuple[str | None, Column], ...]:
        """Where the record stands in each index, in the order of the kind's indexes."""
        entries = [index.entry(record) for index in self.kind.indexes]
        return tuple([(None, None) if entry is None else (entry.partition, entry.sort) for entry in entries])

    def record(self, body: str, tenant_id: str, record_id: str) -> Any:
        """The record of a row.

        Raises:
            StoreError: the row cannot be read as this kind of record.
        """
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"the {self.kind.name} {record_id!r} of tenant {tenant_id!r} cannot be read: {error}: "
                "the row is damaged or was written by a newer version",
                retryable=False,
                code="store_corrupt",
            ) from error

    def upsert(self, changed: tuple[int, ...]) -> str:
        """The statement that inserts a row, or replaces its body and the columns of the `changed` indexes.

        Only what a statement names costs: an index whose columns are left out is not touched. A row that may be new
        needs `all_places`.
        """
        statement = self._upserts.get(changed)
        if statement is None:
            named = ["body", *_columns(self.kind.indexes[number] for number in changed)]
            statement = (
                f"INSERT INTO {self.kind.name} (tenant, id, {', '.join(named)}) "  # noqa: S608
                f"VALUES (?, ?{', ?' * len(named)}) ON CONFLICT (tenant, id) DO UPDATE SET "
                + ", ".join(f"{name} = excluded.{name}" for name in named)
            )
            self._upserts[changed] = statement
        return statement

    def create(self) -> Iterator[str]:
        """The statements that make the table and its indexes."""
        columns = ["tenant TEXT NOT NULL", "id TEXT NOT NULL", "body TEXT NOT NULL"]
        for index in self.kind.indexes:
            columns += [f"{index.name}_p TEXT", f"{index.name}_s"]
        yield f"CREATE TABLE {self.kind.name} ({', '.join(columns)}, PRIMARY KEY (tenant, id))"
        for index in self.kind.indexes:
            yield (
                f"CREATE INDEX {self.kind.name}_{index.name} ON {self.kind.name} "
                f"({index.name}_p, {index.name}_s, tenant, id) WHERE {index.name}_p IS NOT NULL"
            )


def _columns(indexes: Iterable[Index[Any]]) -> Iterator[str]:
    for index in indexes:
        yield f"{index.name}_p"
        yield f"{index.name}_s"


TABLES: dict[Kind[Any], Table] = {kind: Table(kind) for kind in KINDS}

CREATE_FACTS = (
    # AUTOINCREMENT: a sequence number is never given twice, even after the newest facts were deleted.
    """CREATE TABLE fact (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, execution TEXT NOT NULL, key TEXT NOT NULL,
        type TEXT NOT NULL, at INTEGER NOT NULL, pipeline TEXT NOT NULL, data TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX fact_once ON fact (tenant, execution, key)",
    "CREATE INDEX fact_history ON fact (tenant, execution, seq)",
)
INSERT_FACT = (
    "INSERT INTO fact (tenant, execution, key, type, at, pipeline, data) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (tenant, execution, key) DO NOTHING"
)
DELETE_FACTS = (
    "DELETE FROM fact WHERE seq IN (SELECT seq FROM fact WHERE tenant = ? AND execution >= ? AND execution < ? "
    "AND (execution = ? OR execution >= ?) LIMIT ?)"
)


def fact_row(fact: Fact) -> tuple[Column, ...]:
    """The parameters of INSERT_FACT.

    Raises:
        InternalError: its data is not JSON.
    """
    try:
        data = _encoder.encode(fact.data).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise InternalError(f"a {fact.type} fact holds a value that cannot be stored: {error}") from error
    return (fact.tenant_id, fact.execution_id, fact.key, fact.type, fact.at_epoch_ms, fact.pipeline_id, data)


def sequenced_fact(row: tuple[Any, ...]) -> SequencedFact:
    """A fact from the columns of SELECTED_FACT.

    Raises:
        StoreError: the row cannot be read as a fact.
    """
    seq, tenant_id, execution_id, key, fact_type, at_epoch_ms, pipeline_id, data = row
    try:
        return SequencedFact(
            seq,
            Fact(
                tenant_id=tenant_id,
                execution_id=execution_id,
                pipeline_id=pipeline_id,
                key=key,
                type=FactType(fact_type),
                at_epoch_ms=at_epoch_ms,
                data=_fact_data.decode(data),
            ),
        )
    except (ValueError, msgspec.DecodeError) as error:
        raise StoreError(
            f"fact {seq} cannot be read: {error}: the row is damaged or was written by a newer version",
            retryable=False,
            code="store_corrupt",
        ) from error


def create_schema(connection: sqlite3.Connection) -> None:
    """Makes every table of this version, within the caller's transaction."""
    for table in TABLES.values():
        for statement in table.create():
            connection.execute(statement)
    for statement in CREATE_FACTS:
        connection.execute(statement)
