"""How records stand in DynamoDB: one table per kind, generated from ``tpfd.core.kinds``. Pure: names, keys and texts.

A record is an item: its key, the record as one JSON text (``body``, or compressed ``z``), the version token of its last
write (``v``), the time it may go (``ttl_epoch_s``), and for each index two texts, ``<index>_p`` and ``<index>_s``,
which a sparse global index of that name is keyed by. Fields that an item lacks take their defaults, so a new optional
field needs no migration; a new index needs one more global index.

``<index>_s`` compares as (sort, tenant, id) does. ``<index>_p`` ends in a shard number, chosen by the record's id where
the index is sharded, so that an index of few partitions has no single hot key; who reads it asks every shard.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import field, frozen

from tpfd.core.kinds import CHUNK, KINDS, MANIFEST, PERMIT
from tpfd.core.transact import Index, Key, Kind, Sort

SHARD_COUNT: Final = 8
"""Keys that a sharded index is spread over. To change it is a migration."""
KEY_BYTES: Final = 2_048
"""Longest hash key."""
SORT_BYTES: Final = 1_024
"""Longest range key."""
TTL: Final = "ttl_epoch_s"
JOURNAL: Final = "journal"

Item = dict[str, dict[str, Any]]
"""Attributes as the wire has them: ``{"pk": {"S": "acme#01J…"}}``."""

_SUFFIXES: Final[Mapping[str, str]] = {
    "payload_manifest": "execution_payload",
    "payload_chunk": "execution_payload",
    "unit": "await_unit",
    "block": "await_block",
    "interaction": "await_interaction",
    "late": "await_late",
    "permit": "await_admission",
}
"""Tables whose names are not their kind's: those of the framework, and their neighbours."""


@frozen
class TableSpec:
    """One table as it must be.

    Attributes:
        suffix: what follows the prefix, and the key of its own setting.
        hash_key: attribute, a text.
        range_key: attribute, a text; None: the table has none.
        indexes: sparse global indexes, each over `<name>_p` and `<name>_s`, with all attributes.
        local_range_key: range key of the one local index, `by_<name>`; None: there is none.
    """

    name: str
    suffix: str
    hash_key: str = "pk"
    range_key: str | None = None
    indexes: tuple[str, ...] = ()
    local_range_key: str | None = None

    @property
    def local_index(self) -> str:
        """Name of the local index."""
        return f"by_{self.local_range_key}"

    def create_parameters(self) -> dict[str, Any]:
        """What CreateTable takes. The expiry is set apart (`ttl_parameters`), once the table is active."""
        ranges = [name for name in (self.range_key, self.local_range_key) if name is not None]
        named = [self.hash_key, *ranges, *(f"{index}_{end}" for index in self.indexes for end in "ps")]
        parameters: dict[str, Any] = {
            "TableName": self.name,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in named],
            "KeySchema": _key_schema(self.hash_key, self.range_key),
        }
        everything = {"ProjectionType": "ALL"}
        if self.indexes:
            parameters["GlobalSecondaryIndexes"] = [
                {"IndexName": name, "KeySchema": _key_schema(f"{name}_p", f"{name}_s"), "Projection": everything}
                for name in self.indexes
            ]
        if self.local_range_key is not None:
            schema = _key_schema(self.hash_key, self.local_range_key)
            parameters["LocalSecondaryIndexes"] = [
                {"IndexName": self.local_index, "KeySchema": schema, "Projection": everything}
            ]
        return parameters

    def ttl_parameters(self) -> dict[str, Any]:
        """What UpdateTimeToLive takes."""
        return {"TableName": self.name, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL}}


def _key_schema(hash_key: str, range_key: str | None) -> list[dict[str, str]]:
    schema = [{"AttributeName": hash_key, "KeyType": "HASH"}]
    if range_key is not None:
        schema.append({"AttributeName": range_key, "KeyType": "RANGE"})
    return schema


_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "execution_payload": ("payload_id", "payload_part"),
    "await_admission": ("scope_key", "slot"),
    JOURNAL: ("pk", "sk"),
}
"""Tables with a range key."""


def suffix_of(kind: Kind[Any]) -> str:
    """What follows the prefix in the name of the kind's table."""
    return _SUFFIXES.get(kind.name, kind.name)


def tables(prefix: str, overrides: Mapping[str, str]) -> tuple[TableSpec, ...]:
    """Every table that the store uses.

    Args:
        prefix: begins the names.
        overrides: whole names by suffix; an empty one counts as none.
    """
    indexes: dict[str, list[str]] = {}
    for kind in KINDS:
        indexes.setdefault(suffix_of(kind), []).extend(index.name for index in kind.indexes)
    specs = []
    for suffix in (*indexes, JOURNAL):
        hash_key, range_key = _KEYS.get(suffix, ("pk", None))
        specs.append(
            TableSpec(
                name=overrides.get(suffix) or prefix + suffix,
                suffix=suffix,
                hash_key=hash_key,
                range_key=range_key,
                indexes=tuple(indexes.get(suffix, ())),
                local_range_key="place" if suffix == JOURNAL else None,
            )
        )
    return tuple(specs)


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def joined(tenant_id: str, rest: str) -> str:
    """A hash key that no other tenant and rest have."""
    return cut(f"{escaped(tenant_id)}#{rest}", KEY_BYTES)


def escaped(text: str) -> str:
    """The text without `#`."""
    return text.replace("%", "%25").replace("#", "%23")


def cut(text: str, limit_bytes: int) -> str:
    """The text, or its beginning and a digest of all of it where it is too long for a key."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    digest = hashlib.sha256(data).hexdigest()
    return data[: limit_bytes - len(digest) - 4].decode(errors="ignore") + "…" + digest


def shards_of(index: Index[Any]) -> range:
    """The shard numbers of an index."""
    return range(SHARD_COUNT if index.sharded else 1)


def partition_text(partition: str, shard: int) -> str:
    """`<index>_p` of a partition's shard."""
    return f"{cut(partition, KEY_BYTES - 4)}#{shard}"


def shard_of(index: Index[Any], key: Key[Any]) -> int:
    """Where a record of a sharded index stands, for ever."""
    if not index.sharded:
        return 0
    return zlib.crc32(f"{key.tenant_id}/{key.record_id}".encode()) % SHARD_COUNT


# A part ends in two NULs, and a NUL within it is followed by 1, so that a longer part sorts behind its beginning.
_END = "\0\0"
_BEHIND = "\0\1"


def sort_text(sort: Sort, tenant_id: str, record_id: str) -> str:
    """`<index>_s` of a place. What is too long is ordered by its beginning, then by digest."""
    text = _sort_part(sort) + _END + _part(tenant_id) + _END + _part(record_id)
    return cut(text, SORT_BYTES)


def first_text(sort: Sort) -> str:
    """Not behind any place with this sort value, and behind all with a lower one."""
    return _beginning(_sort_part(sort) + _END)


def last_text(sort: Sort) -> str:
    """Behind every place with this sort value, and before all with a higher one."""
    part = _sort_part(sort) + _BEHIND
    start = _beginning(part)
    return part if start == part else start + "\U0010ffff"


def _beginning(text: str) -> str:
    """The text, or as much of it as `cut` leaves of any longer one."""
    return text.encode()[: SORT_BYTES - 100].decode(errors="ignore")


def _sort_part(sort: Sort) -> str:
    return f"{sort + 2**63:020d}" if isinstance(sort, int) else _part(sort)


def _part(text: str) -> str:
    return text.replace("\0", "\0\1")


@frozen
class KindTable:
    """One kind of record and the table it stands in."""

    kind: Kind[Any]
    spec: TableSpec
    _split: Callable[[str], tuple[str, str]] | None = field(init=False)

    @_split.default
    def _find_split(self) -> Callable[[str], tuple[str, str]] | None:
        return _SPLITS.get(self.kind)

    def key_item(self, key: Key[Any]) -> Item:
        """The attributes that name a record."""
        if self._split is None or self.spec.range_key is None:
            return {self.spec.hash_key: {"S": joined(key.tenant_id, key.record_id)}}
        owner, part = self._split(key.record_id)
        return {self.spec.hash_key: {"S": joined(key.tenant_id, owner)}, self.spec.range_key: {"S": part}}

    def place_items(self, key: Key[Any], record: Any) -> Item:
        """The attributes by which the indexes find a record."""
        found: Item = {}
        for index in self.kind.indexes:
            if (entry := index.entry(record)) is not None:
                found[f"{index.name}_p"] = {"S": partition_text(entry.partition, shard_of(index, key))}
                found[f"{index.name}_s"] = {"S": sort_text(entry.sort, key.tenant_id, key.record_id)}
        return found


def _split_chunk(record_id: str) -> tuple[str, str]:
    stored_id, _, number = record_id.rpartition("#")
    return stored_id, f"CHUNK#{number}"


def _split_permit(record_id: str) -> tuple[str, str]:
    scope, _, slot = record_id.rpartition("#")
    return scope, slot


_SPLITS: Final[Mapping[Kind[Any], Callable[[str], tuple[str, str]]]] = {
    MANIFEST: lambda record_id: (record_id, "MANIFEST"),
    CHUNK: _split_chunk,
    PERMIT: _split_permit,
}


def kind_tables(specs: tuple[TableSpec, ...]) -> dict[Kind[Any], KindTable]:
    """The table of every kind."""
    by_suffix = {spec.suffix: spec for spec in specs}
    return {kind: KindTable(kind, by_suffix[suffix_of(kind)]) for kind in KINDS}
