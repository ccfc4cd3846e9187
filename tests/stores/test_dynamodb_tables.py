"""Names, keys and texts of the DynamoDB store. No service."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aws.standin import StandIn
from tests.conformance.samples import counter, counter_key, execution
from tests.golden.write_dynamodb_v1 import FILE, described
from tpfd.core.kinds import CHUNK, EXECUTION, EXECUTION_DUE, KINDS, MANIFEST, PERMIT, SEARCH_BY_VALUE, UNIT_DUE
from tpfd.core.records import TenantId
from tpfd.core.transact import Kind
from tpfd.stores.dynamodb_beliefs import Beliefs
from tpfd.stores.dynamodb_facts import bundle_of, fact_item, fact_key, sequenced
from tpfd.stores.dynamodb_items import Body, Items, Seen, names_write, next_version
from tpfd.stores.dynamodb_tables import (
    KEY_BYTES,
    SORT_BYTES,
    TableSpec,
    cut,
    first_text,
    joined,
    kind_tables,
    last_text,
    partition_text,
    shards_of,
    sort_text,
    tables,
)

GOLDEN = json.loads(FILE.read_text())
SPECS = tables("tpf_", {"execution": "ours", "await_unit": ""})
ITEMS = Items(kind_tables(SPECS))
TEXTS = st.text(alphabet=st.sampled_from("\0\1ab#%é\U0010ffff"), max_size=4)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


def spec(suffix: str) -> TableSpec:
    (found,) = [one for one in SPECS if one.suffix == suffix]
    return found


def test_the_tables_have_the_frameworks_names() -> None:
    assert {one.suffix: one.name for one in SPECS} == {
        "execution": "ours",
        "execution_key": "tpf_execution_key",
        "execution_payload": "tpf_execution_payload",
        "search": "tpf_search",
        "await_unit": "tpf_await_unit",
        "await_block": "tpf_await_block",
        "await_interaction": "tpf_await_interaction",
        "await_late": "tpf_await_late",
        "await_admission": "tpf_await_admission",
        "socket": "tpf_socket",
        "ingested": "tpf_ingested",
        "journal": "tpf_journal",
    }
    assert set(kind_tables(SPECS)) == set(KINDS)


def test_a_table_is_made_with_its_keys_and_indexes() -> None:
    made = spec("execution").create_parameters()
    assert made["TableName"] == "ours"
    assert made["BillingMode"] == "PAY_PER_REQUEST"
    assert made["KeySchema"] == [{"AttributeName": "pk", "KeyType": "HASH"}]
    (due, *_) = made["GlobalSecondaryIndexes"]
    assert due["IndexName"] == "due"
    assert [key["AttributeName"] for key in due["KeySchema"]] == ["due_p", "due_s"]
    assert due["Projection"] == {"ProjectionType": "ALL"}
    named = {attribute["AttributeName"] for attribute in made["AttributeDefinitions"]}
    assert named == {"pk"} | {f"{index.name}_{end}" for index in EXECUTION.indexes for end in "ps"}
    assert spec("execution").ttl_parameters()["TimeToLiveSpecification"]["AttributeName"] == "ttl_epoch_s"
    payload = spec("execution_payload").create_parameters()
    assert [key["AttributeName"] for key in payload["KeySchema"]] == ["payload_id", "payload_part"]
    (by_owner,) = payload["GlobalSecondaryIndexes"]
    assert by_owner["IndexName"] == "by_owner"
    (by_place,) = spec("journal").create_parameters()["LocalSecondaryIndexes"]
    assert by_place["IndexName"] == "by_place"


def test_every_table_can_be_made(aws: StandIn) -> None:
    client = aws.client("dynamodb")
    prefix = aws.name("made") + "_"
    for one in tables(prefix, {}):
        client.create_table(**one.create_parameters())
        client.update_time_to_live(**one.ttl_parameters())
    assert {one.name for one in tables(prefix, {})} <= set(client.list_tables()["TableNames"])


def test_keys_stand_as_the_framework_has_them() -> None:
    acme = TenantId("acme")
    assert ITEMS.key_item(EXECUTION.key(acme, "01JD")) == {"pk": {"S": "acme#01JD"}}
    manifest = {"payload_id": {"S": "acme#e.input.d"}, "payload_part": {"S": "MANIFEST"}}
    assert ITEMS.key_item(MANIFEST.key(acme, "e.input.d")) == manifest
    chunk = {"payload_id": {"S": "acme#e.input.d"}, "payload_part": {"S": "CHUNK#00000007"}}
    assert ITEMS.key_item(CHUNK.key(acme, "e.input.d#00000007")) == chunk
    permit = {"scope_key": {"S": "*#orders/ask"}, "slot": {"S": "000012"}}
    assert ITEMS.key_item(PERMIT.key(TenantId("*"), "orders/ask#000012")) == permit


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_keys_of_tenants_never_meet(tenant: str, rest: str, other_tenant: str, other_rest: str) -> None:
    assert (joined(tenant, rest) == joined(other_tenant, other_rest)) == (
        (tenant, rest) == (other_tenant, other_rest)
    )


@pytest.mark.parametrize("sorts", [TEXTS, NUMBERS], ids=["text", "number"])
def test_texts_sort_as_places_do(sorts: st.SearchStrategy[Any]) -> None:
    place = st.tuples(sorts, TEXTS, TEXTS)

    @given(place, place)
    def compare(one: tuple[Any, str, str], other: tuple[Any, str, str]) -> None:
        # DynamoDB compares bytes.
        left, right = sort_text(*one).encode(), sort_text(*other).encode()
        assert (left < right) == (one < other)
        assert (first_text(other[0]).encode() <= left) == (one[0] >= other[0])
        assert (left <= last_text(other[0]).encode()) == (one[0] <= other[0])

    compare()


def test_a_sort_value_that_is_too_long_keeps_its_place_as_far_as_it_goes() -> None:
    long, longer = "x" * 5_000, "x" * 5_000 + "y"
    text = sort_text(long, "t", "i")
    assert len(text.encode()) <= SORT_BYTES
    assert text != sort_text(longer, "t", "i") != sort_text(longer, "t", "j")
    assert sort_text("w" * 5_000, "t", "i") < text < sort_text("y", "t", "i")
    assert first_text(long) <= text <= last_text(long)


@given(st.text(max_size=3_000))
def test_what_is_cut_fits_and_stays_different(text: str) -> None:
    assert len(cut(text, 100).encode()) <= 100
    assert cut(text + "é", 100) != cut(text, 100)


def test_partitions_name_their_shard() -> None:
    assert [partition_text("due", shard) for shard in shards_of(EXECUTION_DUE)][-1] == "due#7"
    assert len(shards_of(UNIT_DUE)) == 8
    assert list(shards_of(SEARCH_BY_VALUE)) == [0]
    assert len(partition_text("x" * 5_000, 7).encode()) <= KEY_BYTES


def test_an_item_holds_the_record_its_token_and_its_places() -> None:
    record = execution("e1", next_check_epoch_ms=5, ttl_epoch_s=99)
    key = EXECUTION.key_of(record)
    item = ITEMS.item(key, record, ITEMS.body(key, record), "w1")
    assert item["v"] == {"S": "w1"}
    assert item["ttl_epoch_s"] == {"N": str(99 + 7 * 86_400)}
    assert item["due_p"]["S"].startswith("due#")
    assert "by_unit_p" not in item
    assert ITEMS.seen(EXECUTION, item) == Seen(record, "w1")
    assert "ttl_epoch_s" not in ITEMS.item(key, execution("e1"), Body({}, 0), "w1")


def test_a_token_names_the_last_writes() -> None:
    version = None
    for number in range(6):
        version = next_version(f"w{number}", Seen("record", version))
    assert version == "w5 w4 w3 w2"
    assert names_write(version, "w2")
    assert not names_write(version, "w1")
    assert not names_write(None, "w1")
    assert next_version("w9", None) == "w9"


def test_own_writes_are_bounded_by_count_and_bytes() -> None:
    cache = Beliefs(count_max=3, bytes_max=100)
    keys = [counter_key(number) for number in range(5)]
    for number, key in enumerate(keys[:3]):
        cache.keep(key, Seen(counter(number), "v"), 30)
    assert cache.get(keys[0]) is not None  # used, so the next one goes first
    cache.keep(keys[3], Seen(counter(3), "v"), 10)
    assert [cache.get(key) is None for key in keys] == [False, True, False, False, True]
    cache.keep(keys[4], Seen(counter(4), "v"), 95)
    assert (cache.count, cache.size_bytes) == (1, 95)
    cache.keep(keys[4], Seen(counter(4), "w"), 20)
    assert (cache.count, cache.size_bytes) == (1, 20)
    cache.drop(keys[4])
    cache.drop(keys[4])
    assert (cache.count, cache.size_bytes) == (0, 0)


# ── what released versions have written ──────────────────────────────────────────────────────────────────────────────


def test_tables_of_version_1_are_those_of_this_code() -> None:
    assert GOLDEN["tables"] == described()["tables"]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_an_item_of_version_1_loads_and_stands_where_it_stood(kind: Kind[Any]) -> None:
    item = GOLDEN["items"][kind.name]
    seen = ITEMS.seen(kind, item)
    assert seen.version == "w2 w1"
    key = kind.key_of(seen.record)
    again = ITEMS.item(key, seen.record, ITEMS.body(key, seen.record), "w2 w1")
    assert {name: value for name, value in again.items() if name != "body"} == {
        name: value for name, value in item.items() if name != "body"
    }
    written, old = json.loads(again["body"]["S"]), json.loads(item["body"]["S"])
    assert {name: written[name] for name in old} == old


def test_facts_of_version_1_load() -> None:
    found = sequenced(GOLDEN["fact"])
    assert found.seq == 7
    assert fact_item(fact_key(found.fact), found.fact, 7) == GOLDEN["fact"]
    assert bundle_of(GOLDEN["bundle"]).facts == (found.fact,)
