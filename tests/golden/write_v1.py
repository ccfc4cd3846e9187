"""Writes ``schema_v1.sql`` and ``rows_v1/``: what a file of schema version 1 looks like.

    python -m tests.golden.write_v1

For use until version 1 is released. From then on these files are history: a change of the records must be able to
read them, a change of the tables comes with version 2 and a migration.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType

import attrs
import msgspec

from tpfd.core.kinds import KINDS
from tpfd.stores.sqlite_tables import CREATE_FACTS, TABLES

FOLDER = Path(__file__).parent


def whole(record_type: type[Any], number: int = 0) -> Any:
    """A record with a value in every field, none of them the default."""
    hints = typing.get_type_hints(record_type)
    fields = attrs.fields(record_type)
    return record_type(
        **{field.name: _value(hints[field.name], field.name, number + place) for place, field in enumerate(fields, 1)}
    )


def _value(hint: Any, name: str, number: int) -> Any:
    if isinstance(hint, NewType):
        return _value(hint.__supertype__, name, number)
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        return _value(next(one for one in typing.get_args(hint) if one is not NoneType), name, number)
    if typing.get_origin(hint) is Mapping:
        return {f"{name}-key": f"{name}-value"}
    if attrs.has(hint):
        return whole(hint, number * 100)
    if issubclass(hint, Enum):
        return list(hint)[-1]
    if hint is bool:
        return True
    if hint is int:
        return number
    assert hint is str, f"{name}: {hint}"
    return f"{name}-{number}"


def main() -> None:
    statements = [statement for table in TABLES.values() for statement in table.create()]
    schema = ";\n".join([*statements, *CREATE_FACTS]) + ";\n"
    (FOLDER / "schema_v1.sql").write_text(schema)
    rows = FOLDER / "rows_v1"
    rows.mkdir(exist_ok=True)
    for kind in KINDS:
        row = msgspec.to_builtins(whole(kind.record_type))
        (rows / f"{kind.name}.json").write_text(json.dumps(row, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
