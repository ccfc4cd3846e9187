"""How facts stand in the journal's table. Pure.

::

    pk "acme#01J…" (the root execution)   sk "p#<write>"            a bundle: facts as they were committed
                                          sk "f#<execution>#<key>"  a fact; its place in the local index by_place
    pk "feed:<n>"                         sk "<first number>"       a page of the feed: which facts these are
    pk "head"                             sk "head"                 the last sequence number
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from attrs import frozen

from tpfd.core.records import Fact, SequencedFact
from tpfd.errors import InternalError, StoreError
from tpfd.stores.dynamodb_tables import SORT_BYTES, Item, cut, escaped, joined

BUNDLE_CHARS: Final = 200_000
"""Text of a bundle; with more facts there are several."""
HEAD_KEY: Final[Item] = {"pk": {"S": "head"}, "sk": {"S": "head"}}

FactKey = tuple[str, str]
"""Under which a fact stands: a repeat has the same."""

_encoder = msgspec.json.Encoder()
_facts_decoder = msgspec.json.Decoder(list[Fact])
_fact_decoder = msgspec.json.Decoder(Fact)
_page_decoder = msgspec.json.Decoder(list[FactKey])


@frozen
class Bundle:
    """Facts of one transaction and one root execution that have still to be moved."""

    key: Item
    facts: tuple[Fact, ...]

    def item(self) -> Item:
        """The whole item."""
        return {**self.key, "facts": {"S": "[" + ",".join(text_of(fact) for fact in self.facts) + "]"}}


def bundle_of(item: Item) -> Bundle:
    """A bundle that was read. Raises StoreError: it is damaged."""
    try:
        facts = _facts_decoder.decode(item["facts"]["S"])
    except msgspec.DecodeError as error:
        raise _damaged(item, error) from error
    return Bundle({name: item[name] for name in ("pk", "sk")}, tuple(facts))


def root_of(tenant_id: str, execution_id: str) -> str:
    """Partition of an execution and all its children."""
    return joined(tenant_id, escaped(execution_id.partition(".")[0]))


def fact_key(fact: Fact) -> FactKey:
    """Under which a fact stands."""
    sort = cut(f"f#{escaped(fact.execution_id)}#{fact.key}", SORT_BYTES)
    return root_of(fact.tenant_id, fact.execution_id), sort


def key_item(key: FactKey) -> Item:
    """The attributes that name a fact."""
    return {"pk": {"S": key[0]}, "sk": {"S": key[1]}}


def fact_item(key: FactKey, fact: Fact, seq: int) -> Item:
    """The whole item of a fact."""
    place = {"S": place_of(fact.execution_id, seq)}
    return {**key_item(key), "place": place, "seq": {"N": str(seq)}, "body": {"S": text_of(fact)}}


def place_of(execution_id: str, seq: int) -> str:
    """Where a fact stands in the history of its execution."""
    return f"{escaped(execution_id)}#{seq:020d}"


def sequenced(item: Mapping[str, Any]) -> SequencedFact:
    """A fact that was read. Raises StoreError: it is damaged."""
    try:
        return SequencedFact(int(item["seq"]["N"]), _fact_decoder.decode(item["body"]["S"]))
    except msgspec.DecodeError as error:
        raise _damaged(item, error) from error


def page_text(keys: Sequence[FactKey]) -> str:
    """What a page of the feed holds."""
    return _encoder.encode(keys).decode()


def page_keys(item: Mapping[str, Any]) -> list[FactKey]:
    """What a page of the feed says. Raises StoreError: it is damaged."""
    try:
        return _page_decoder.decode(item["facts"]["S"])
    except msgspec.DecodeError as error:
        raise _damaged(item, error) from error


def text_of(fact: Fact) -> str:
    """A fact as JSON. Raises InternalError: it holds something that is not JSON."""
    try:
        return _encoder.encode(fact).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise InternalError(f"a {fact.type} fact holds a value that cannot be stored: {error}") from error


def parts_of(facts: Iterable[Fact]) -> list[tuple[str, list[Fact]]]:
    """The facts in their order, in parts of one root and at most BUNDLE_CHARS."""
    parts: list[tuple[str, list[Fact]]] = []
    length = 0
    for fact in facts:
        root, size = root_of(fact.tenant_id, fact.execution_id), len(text_of(fact))
        if not parts or parts[-1][0] != root or length + size > BUNDLE_CHARS:
            parts.append((root, []))
            length = 0
        parts[-1][1].append(fact)
        length += size
    return parts


def _damaged(item: Mapping[str, Any], error: Exception) -> StoreError:
    return StoreError(
        f"the journal's {item['pk']['S']} {item['sk']['S']} cannot be read: {error}: "
        "the item is damaged or was written by a newer version",
        retryable=False,
        code="store_corrupt",
    )
