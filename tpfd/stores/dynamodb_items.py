"""Records as items and back, and the tokens by which a write is known again."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import frozen

from tpfd.core.transact import Key, Kind
from tpfd.errors import InternalError, StoreError
from tpfd.stores.dynamodb_tables import TTL, Item, KindTable

ITEM_BYTES: Final = 400 * 1024 - 8 * 1024
"""Largest body: DynamoDB's limit for an item, less its keys and places in indexes."""
PLAIN_BYTES: Final = 64 * 1024
"""A longer body is compressed: JSON within JSON doubles its quotes, and would not fit."""
TTL_GRACE_S: Final = 7 * 24 * 3600
"""What has lived its time is removed by a daemon, with all that belongs to it; only what it has missed by DynamoDB."""
REMEMBERED_WRITES: Final = 4
"""Write ids in a version token: the last write's, and those before it."""

_FAST: Final = 1
_encoder = msgspec.json.Encoder()


@frozen
class Seen:
    """A record as it was read.

    Attributes:
        record: None: there was none.
        version: the token of its last write; None: there was no item.
    """

    record: Any
    version: str | None


ABSENT: Final = Seen(None, None)


@frozen
class Body:
    """A record as its item holds it.

    Attributes:
        attribute: `body`, a JSON text; or `z`, the same compressed.
    """

    attribute: Mapping[str, Any]
    size_bytes: int


def next_version(write_id: str, seen: Seen | None) -> str:
    """The token of a write over what was seen; None: it was not looked at.

    It goes on naming the writes before, so that a write whose reply was lost is found even when another one has
    followed it meanwhile.
    """
    before = "" if seen is None or seen.version is None else seen.version
    return " ".join([write_id, *before.split()[: REMEMBERED_WRITES - 1]])


def names_write(version: str | None, write_id: str) -> bool:
    """Whether the write is the last one, or one of those before it."""
    return version is not None and write_id in version.split()


class Items:
    """The way from record to item and back, for every kind."""

    def __init__(self, tables: Mapping[Kind[Any], KindTable]) -> None:
        self._tables = tables
        self._decoders = {kind: msgspec.json.Decoder(kind.record_type) for kind in tables}

    def table(self, key: Key[Any]) -> str:
        """Name of the table that a record stands in."""
        return self._tables[key.kind].spec.name

    def table_of(self, kind: Kind[Any]) -> KindTable:
        """The table of a kind."""
        return self._tables[kind]

    def key_item(self, key: Key[Any]) -> Item:
        """The attributes that name a record."""
        return self._tables[key.kind].key_item(key)

    def body(self, key: Key[Any], record: Any) -> Body:
        """A record as its item holds it.

        Raises:
            InternalError: it holds something that is not JSON.
            StoreError: it is too large for an item.
        """
        try:
            data = _encoder.encode(record)
        except (TypeError, ValueError, OverflowError) as error:
            raise InternalError(f"a {key.kind.name} holds a value that cannot be stored: {error}") from error
        if len(data) <= PLAIN_BYTES:
            return Body({"body": {"S": data.decode()}}, len(data))
        packed = zlib.compress(data, _FAST)
        if len(packed) > ITEM_BYTES:
            raise StoreError(
                f"the {key.kind.name} {key.record_id!r} has {len(data):,} bytes, compressed {len(packed):,}; an item "
                f"of DynamoDB holds {ITEM_BYTES:,}",
                retryable=False,
                code="store_too_large",
            )
        return Body({"z": {"B": packed}}, len(packed))

    def item(self, key: Key[Any], record: Any, body: Body, version: str) -> Item:
        """The whole item of a record."""
        table = self._tables[key.kind]
        item = {
            **table.key_item(key),
            **table.place_items(key, record),
            **body.attribute,
            "v": {"S": version},
        }
        if (ttl_epoch_s := getattr(record, TTL, None)) is not None:
            item[TTL] = {"N": str(ttl_epoch_s + TTL_GRACE_S)}
        return item

    def seen(self, kind: Kind[Any], item: Mapping[str, Any] | None) -> Seen:
        """What an item says.

        Raises:
            StoreError: it cannot be read as this kind of record.
        """
        if not item:
            return ABSENT
        try:
            data = zlib.decompress(item["z"]["B"]) if "z" in item else item["body"]["S"]
            return Seen(self._decoders[kind].decode(data), item["v"]["S"])
        except (msgspec.DecodeError, KeyError, zlib.error) as error:
            raise StoreError(
                f"the {kind.name} {_named(item)} cannot be read: {error}: "
                "the item is damaged or was written by a newer version",
                retryable=False,
                code="store_corrupt",
            ) from error


def _named(item: Mapping[str, Any]) -> str:
    texts = [repr(next(iter(value.values()))) for name, value in item.items() if name not in {"body", "z", "v"}]
    return " ".join(texts) or "without a name"
