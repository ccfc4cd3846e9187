"""Writes ``dynamodb_v1.json``: the tables of version 1, and an item of each kind as it stands in them.

    python -m tests.golden.write_dynamodb_v1

For use until version 1 is released. From then on the file is history: what is in such tables must stay readable, and
findable under the same keys and in the same shards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from tests.golden.write_v1 import whole
from tpfd.core.kinds import KINDS
from tpfd.core.records import Fact
from tpfd.stores.dynamodb_facts import Bundle, fact_item, fact_key, key_item
from tpfd.stores.dynamodb_items import Items
from tpfd.stores.dynamodb_tables import kind_tables, tables

FILE = Path(__file__).parent / "dynamodb_v1.json"


def described() -> dict[str, Any]:
    """The tables and items, as this code makes them."""
    specs = tables("tpf_", {})
    items = Items(kind_tables(specs))
    made = {}
    for kind in KINDS:
        record = whole(kind.record_type)
        if kind.name == "payload_chunk":
            record = attrs.evolve(record, chunk_id="e.input.d#00000007")
        if kind.name == "permit":
            record = attrs.evolve(record, scope="orders/ask", slot=12)
        key = kind.key_of(record)
        made[kind.name] = items.item(key, record, items.body(key, record), "w2 w1")
    fact = whole(Fact)
    return {
        "tables": {spec.suffix: spec.create_parameters() for spec in specs},
        "items": made,
        "fact": fact_item(fact_key(fact), fact, 7),
        "bundle": Bundle(key_item((fact_key(fact)[0], "p#w1.000")), (fact,)).item(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(described(), indent=2, sort_keys=True) + "\n")
