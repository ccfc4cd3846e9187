"""The DynamoDB store beside the contract: several processes, its cache, its journal, its indexes, its requests."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.aws.standin import StandIn
from tests.conformance.samples import (
    EXECUTION_ID,
    TENANT,
    always,
    counter,
    counter_key,
    execution,
    fact,
    increment,
    interaction,
    put,
    remove,
)
from tests.stores.dynamodb_faults import Faults, opened
from tests.stores.tables import making_tables
from tpfd.core.kinds import (
    CHUNK,
    DUE_PARTITION,
    EXECUTION,
    EXECUTION_BY_STATUS,
    EXECUTION_DUE,
    INTERACTION,
    INTERACTION_DUE,
    MANIFEST,
    status_partition,
)
from tpfd.core.records import ExecutionStatus, InteractionStatus, JsonText
from tpfd.core.stored import PayloadChunk, PayloadManifest
from tpfd.core.transact import Decision, Read, Snapshot
from tpfd.errors import InternalError, StoreError
from tpfd.stores.dynamodb import DynamodbStore
from tpfd.stores.dynamodb_items import Body
from tpfd.stores.dynamodb_tables import SHARD_COUNT, shard_of

ROUNDS = 300


@pytest.fixture
async def prefix(aws: StandIn) -> AsyncIterator[str]:
    async with making_tables(aws) as made:
        yield made


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def store(aws: StandIn, prefix: str, faults: Faults) -> AsyncIterator[DynamodbStore]:
    async with opened(aws, prefix, faults) as made:
        yield made


@pytest.fixture
async def other(aws: StandIn, prefix: str) -> AsyncIterator[DynamodbStore]:
    """Another process's store over the same tables."""
    async with opened(aws, prefix, seed=1) as made:
        yield made


# ── several processes ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_winner_in_each_round(aws: StandIn, prefix: str) -> None:
    """Eight contenders in four processes, a new place in each round."""
    winners: Counter[int] = Counter()

    async def contend(store: DynamodbStore, name: int) -> None:
        for number in range(ROUNDS):
            key = counter_key(number, unit="race")

            def decide(snapshot: Snapshot, key: Any = key, number: int = number) -> Decision[bool]:
                if snapshot.get(key) is not None:
                    return Decision(False)
                return Decision(True, (counter(number, name, unit="race"),))

            won = await store.transact([Read(key)], decide)
            winners[number] += won

    async with (
        opened(aws, prefix, seed=1) as one,
        opened(aws, prefix, seed=2) as two,
        opened(aws, prefix, seed=3) as three,
        opened(aws, prefix, seed=4) as four,
        trio.open_nursery() as nursery,
    ):
        for name, store in enumerate((one, one, two, two, three, three, four, four)):
            nursery.start_soon(contend, store, name)
    assert winners == dict.fromkeys(range(ROUNDS), 1)


async def test_what_others_wrote_is_seen_although_we_wrote_it_last(store: DynamodbStore, other: DynamodbStore) -> None:
    assert await increment(store) == 1
    assert await increment(other) == 2
    assert await store.get(counter_key()) == counter(0, 2)
    found = await store.transact([Read(counter_key())], lambda snapshot: Decision(snapshot.get(counter_key())))
    assert found == counter(0, 2)
    assert await increment(store) == 3


async def test_who_raises_over_an_old_record_decides_again(store: DynamodbStore, other: DynamodbStore) -> None:
    await increment(store)
    await remove(other, counter_key())

    def decide(snapshot: Snapshot) -> Decision[str]:
        if snapshot.get(counter_key()) is not None:
            raise AssertionError("it saw what is no more")
        return Decision("fresh")

    assert await store.transact([Read(counter_key())], decide) == "fresh"


async def test_facts_that_nobody_keeps_prove_nothing(aws: StandIn, prefix: str, other: DynamodbStore) -> None:
    """A decision that writes only facts, which the journal leaves out, has to see fresh records."""
    async with opened(aws, prefix, seed=3, keep_fact=lambda _fact: False) as store:
        await increment(store)
        await increment(other)

        def decide(snapshot: Snapshot) -> Decision[Any]:
            return Decision(snapshot.get(counter_key()), facts=(fact("looked"),))

        assert await store.transact([Read(counter_key())], decide) == counter(0, 2)


async def test_a_bug_leaves_nobody_waiting(aws: StandIn, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits, in a group or for a place, hears of it, and the store ends."""
    failures: list[str] = []

    def broken(*_args: object) -> None:
        raise ZeroDivisionError

    async def one(store: DynamodbStore, number: int) -> None:
        try:
            await increment(store, number)
        except StoreError as error:
            failures.append(error.code)

    async def many() -> None:
        async with opened(aws, prefix) as store, trio.open_nursery() as nursery:
            monkeypatch.setattr("tpfd.stores.dynamodb_groups.next_version", broken)
            for number in range(20):
                nursery.start_soon(one, store, number)

    with trio.fail_after(30), pytest.raises(BaseExceptionGroup) as caught:
        await many()
    assert caught.value.split(ZeroDivisionError)[0] is not None
    assert failures == ["store_broken"] * 20


async def test_a_record_that_is_only_read_guards_across_processes(store: DynamodbStore, other: DynamodbStore) -> None:
    """Both look at both places and take their own if the other is free: never both."""
    keys = [counter_key(0), counter_key(1)]
    for round_number in range(10):
        await remove(store, *keys)
        results: list[bool] = []

        async def take(from_store: DynamodbStore, mine: int, results: list[bool] = results) -> None:
            def decide(snapshot: Snapshot) -> Decision[bool]:
                if snapshot.get(keys[1 - mine]) is not None:
                    return Decision(False)
                return Decision(True, (counter(mine, 1),))

            results.append(await from_store.transact([Read(key) for key in keys], decide))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, store, 0)
            nursery.start_soon(take, other, 1)
        assert sorted(results) == [False, True], round_number


async def test_numbers_of_facts_rise_whoever_moves_them(store: DynamodbStore, other: DynamodbStore) -> None:
    async def write(to: DynamodbStore, name: str) -> None:
        for number in range(15):
            await to.transact([], always(Decision(None, facts=(fact(f"{name}{number}", name),))))

    seen: list[str] = []

    async def follow() -> None:
        after = 0
        while len(seen) < 60:
            for found in await store.feed(after=after, limit=7):
                seen.append(found.fact.key)
                assert found.seq > after
                after = found.seq

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for name, to in zip("abcd", (store, store, other, other), strict=True):
                nursery.start_soon(write, to, name)
    assert len(set(seen)) == 60
    for name in "abcd":
        assert [key for key in seen if key[0] == name] == [f"{name}{number}" for number in range(15)]


async def test_facts_of_a_dead_process_are_found(aws: StandIn, prefix: str, store: DynamodbStore) -> None:
    """It committed and died before it moved them: whoever reads that history moves them."""
    dying = Faults()
    async with opened(aws, prefix, dying, seed=7) as dead:
        await put(dead, execution(), facts=(fact("a"), fact("b")))
        # Nothing works any more for it, from the commit on.
        dying.rate = 1.0
    assert await store.last_seq() == 0
    assert [found.fact.key for found in await store.history(TENANT, EXECUTION_ID, after=0, limit=9)] == ["a", "b"]
    assert [found.seq for found in await store.feed(after=0, limit=9)] == [1, 2]


# ── groups and requests ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_meets_goes_together(store: DynamodbStore, faults: Faults) -> None:
    results: list[int] = []

    async def one() -> None:
        results.append(await increment(store))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one)
    assert sorted(results) == list(range(1, 51))
    assert faults.calls["put_item"] <= 2
    assert store.statistics().refused_count == 0


class Held:
    """Holds back the first write after this call: before it is sent, or its answer.

    Attributes:
        there: it has come that far.
    """

    def __init__(self, faults: Faults, *, answer: bool) -> None:
        self.there = threading.Event()
        self._go = threading.Event()
        if answer:
            faults.answers.append(self._answer)
        else:
            faults.veto = self._veto

    def release(self) -> None:
        self._go.set()

    async def come(self) -> None:
        assert await trio.to_thread.run_sync(self.there.wait, 10)

    def _hold(self, operation: str) -> None:
        if operation in {"put_item", "transact_write_items"} and not self.there.is_set():
            self.there.set()
            assert self._go.wait(10)

    def _answer(self, operation: str, _params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        self._hold(operation)
        return answer

    def _veto(self, operation: str, _params: dict[str, Any]) -> None:
        self._hold(operation)


async def test_who_waits_decides_while_the_write_before_is_on_its_way(store: DynamodbStore, faults: Faults) -> None:
    await increment(store)
    held = Held(faults, answer=False)
    decided = trio.Event()
    results: list[int] = []

    def decide(snapshot: Snapshot) -> Decision[int]:
        before = snapshot.get(counter_key())
        assert before is not None
        decided.set()
        after = counter(0, before.continued_count + 1)
        return Decision(after.continued_count, (after,))

    async def second() -> None:
        results.append(await store.transact([Read(counter_key())], decide))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(increment, store)
        await held.come()
        nursery.start_soon(second)
        with trio.fail_after(5):
            await decided.wait()
        assert results == [], "it is not durable before the write that it builds upon"
        held.release()
    assert results == [3]
    assert (faults.calls["put_item"], faults.calls["get_item"]) == (3, 1)
    assert store.statistics().refused_count == 0


async def test_what_was_decided_over_a_write_that_failed_is_decided_again(
    store: DynamodbStore, other: DynamodbStore, faults: Faults
) -> None:
    await increment(store)
    await increment(other)
    held = Held(faults, answer=False)
    results: list[int] = []

    async def one() -> None:
        results.append(await increment(store))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await held.come()
        for _ in range(3):
            nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        held.release()
    assert sorted(results) == [3, 4, 5, 6]
    assert await store.get(counter_key()) == counter(0, 6)


async def test_who_only_looks_is_not_told_what_was_true_before_it_came(
    store: DynamodbStore, other: DynamodbStore, faults: Faults
) -> None:
    await increment(store)
    held = Held(faults, answer=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(increment, store)
        await held.come()
        assert await increment(other) == 3
        looking: list[Any] = []

        async def look() -> None:
            decide = lambda snapshot: Decision(snapshot.get(counter_key()))  # noqa: E731
            looking.append(await store.transact([Read(counter_key())], decide))

        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        held.release()
    assert looking == [counter(0, 3)]


async def test_who_needs_a_read_is_not_overtaken_for_ever(store: DynamodbStore, faults: Faults) -> None:
    await increment(store)
    held = Held(faults, answer=False)

    async def stream() -> None:
        for _ in range(100):
            await increment(store)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        await held.come()
        nursery.start_soon(stream)  # from here on there is always one on its way and one behind it
        await trio.testing.wait_all_tasks_blocked()
        held.release()
        before = store.statistics().commit_count
        reads = [Read(counter_key()), Read(EXECUTION.key(TENANT, EXECUTION_ID))]
        await store.transact(reads, lambda snapshot: Decision(None, (counter(9, 1),)))
        assert store.statistics().commit_count - before <= 10


async def test_a_record_of_our_own_costs_no_read(store: DynamodbStore, faults: Faults) -> None:
    for _ in range(5):
        await increment(store)
    assert faults.calls["get_item"] == 1
    assert faults.calls["put_item"] == 5


async def test_new_records_of_a_kind_cost_no_read(store: DynamodbStore, faults: Faults) -> None:
    for number in range(5):
        assert await increment(store, number) == 1
    assert faults.calls["get_item"] == 1
    assert faults.calls["put_item"] == 5


async def test_a_record_that_was_believed_absent_is_found_out(
    store: DynamodbStore, other: DynamodbStore, faults: Faults
) -> None:
    assert await increment(store, 0) == 1  # its kind's new keys are not there, it seems
    for number in (1, 2):
        await increment(other, number)
    assert await increment(store, 1) == 2
    assert store.statistics().refused_count == 1
    found = await store.transact([Read(counter_key(2))], lambda snapshot: Decision(snapshot.get(counter_key(2))))
    assert found == counter(2, 1)
    # What was there makes the next one be read.
    reads = faults.calls["get_item"]
    assert await increment(store, 3) == 1
    assert faults.calls["get_item"] == reads + 1


async def test_requests_are_counted_by_operation_and_table(store: DynamodbStore, prefix: str) -> None:
    await increment(store)
    await store.transact([], always(Decision(None, (execution(), counter(1)))))
    assert store.requests.requests == {"get_item": 1, "put_item": 1, "transact_write_items": 1}
    assert store.requests.items["transact_write_items", f"{prefix}execution"] == 1


async def test_more_than_one_transaction_holds_goes_in_several(store: DynamodbStore, faults: Faults) -> None:
    """Fifty decisions that meet on one record, each with three of its own: none is too many, together they are."""
    meeting = counter_key(0)

    async def one(number: int) -> None:
        mine = [counter(number * 3 + place + 1) for place in range(3)]

        def decide(snapshot: Snapshot) -> Decision[None]:
            found = snapshot.get(meeting)
            return Decision(None, (counter(0, 1 if found is None else found.continued_count + 1), *mine))

        await store.transact([Read(meeting)], decide)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    assert await store.get(meeting) == counter(0, 50)
    assert None not in await store.get_many([counter_key(place) for place in range(1, 151)])
    assert 2 <= faults.calls["transact_write_items"] <= 6


async def test_a_record_that_is_too_large_harms_nobody_else(store: DynamodbStore) -> None:
    noise = Random(1).randbytes(450_000).hex()  # half of it, compressed
    large = PayloadChunk(tenant_id=TENANT, chunk_id="a#00000000", text=noise)

    async def too_large() -> None:
        with pytest.raises(StoreError, match="holds 401,408") as caught:
            await store.transact([Read(counter_key())], always(Decision(None, (large,))))
        assert not caught.value.retryable

    async with trio.open_nursery() as nursery:
        nursery.start_soon(increment, store)
        nursery.start_soon(too_large)
        nursery.start_soon(increment, store)
    assert await store.get(counter_key()) == counter(0, 2)


async def test_a_decision_that_looks_at_too_much_says_so(store: DynamodbStore) -> None:
    reads = [Read(counter_key(number)) for number in range(101)]
    with pytest.raises(InternalError, match="touches 102 records"):
        await store.transact(reads, always(Decision(None, (execution(),))))


async def test_a_damaged_item_is_reported_to_who_looks_at_it(store: DynamodbStore, aws: StandIn, prefix: str) -> None:
    await put(store, counter(0, 1), counter(1, 1))
    aws.client("dynamodb").put_item(
        TableName=f"{prefix}await_block",
        Item={"pk": {"S": f"acme#{counter_key(0).record_id}"}, "body": {"S": '{"half'}, "v": {"S": "x"}},
    )
    with pytest.raises(StoreError, match=r"acme#.* cannot be read") as caught:
        await store.get(counter_key(0))
    assert (caught.value.code, caught.value.retryable) == ("store_corrupt", False)
    assert await store.get(counter_key(1)) == counter(1, 1)
    with pytest.raises(StoreError, match="cannot be read"):
        await store.transact([Read(counter_key(0))], always(Decision(None, (counter(0, 9),))))
    assert await increment(store, 1) == 2


# ── indexes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("only_shard", [None, 3], ids=["spread", "all in one shard"])
async def test_shards_are_merged_in_order(
    store: DynamodbStore, faults: Faults, only_shard: int | None, descending: bool
) -> None:
    """Also where one shard has everything, so that its share of a page is not enough."""
    names = (f"e{number:05d}" for number in itertools.count())
    keys = (EXECUTION.key(TENANT, name) for name in names)
    chosen = [key for key in itertools.islice(keys, 2_000) if only_shard in (None, shard_of(EXECUTION_DUE, key))][:60]
    records = [execution(key.record_id, next_check_epoch_ms=place // 4) for place, key in enumerate(chosen)]
    await put(store, *Random(1).sample(records, len(records)))
    found: list[str] = []
    cursor = None
    while True:
        page = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=25, cursor=cursor, descending=descending)
        found += [record.execution_id for record in page.records]
        if (cursor := page.cursor) is None:
            break
        assert len(page.records) == 25
    expected = [record.execution_id for record in records]
    assert found == (expected[::-1] if descending else expected)


async def test_a_page_reads_little_more_than_it_shows(store: DynamodbStore, prefix: str) -> None:
    await put(store, *(execution(f"e{number:05d}", next_check_epoch_ms=number) for number in range(400)))
    before = store.requests.items["query", f"{prefix}execution"]
    await store.query(EXECUTION_DUE, DUE_PARTITION, limit=100)
    assert store.requests.items["query", f"{prefix}execution"] - before < 200


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [300 * 2**10, 2**20, 15 * 2**20])
async def test_large_payloads_come_back(store: DynamodbStore, prefix: str, aws: StandIn, size: int) -> None:
    chunk_chars = 64 * 2**10
    text = "".join(f'{{"n":{number:08d}}}' for number in range(size // 14 + 1))[:size]
    parts = [text[at : at + chunk_chars] for at in range(0, size, chunk_chars)]
    chunks = [
        PayloadChunk(tenant_id=TENANT, chunk_id=f"e.input.d1#{number:08d}", text=part)
        for number, part in enumerate(parts)
    ]
    for first in range(0, len(chunks), 16):
        await store.transact([], always(Decision(None, tuple(chunks[first : first + 16]))))
    manifest = PayloadManifest(
        tenant_id=TENANT,
        stored_id="e.input.d1",
        chunk_count=len(chunks),
        size_bytes=size,
        digest="d1",
        created_epoch_ms=1,
    )
    await put(store, manifest)
    assert await store.get(MANIFEST.key_of(manifest)) == manifest
    found = await store.get_many([CHUNK.key_of(chunk) for chunk in chunks])
    assert "".join(chunk.text for chunk in found if chunk is not None) == text
    # As the framework names them: all parts of one payload stand together.
    answer = aws.client("dynamodb").query(
        TableName=f"{prefix}execution_payload",
        KeyConditionExpression="payload_id = :id",
        ExpressionAttributeValues={":id": {"S": "acme#e.input.d1"}},
        ProjectionExpression="payload_part",
        ScanIndexForward=False,
        Limit=2,
    )
    assert [item["payload_part"]["S"] for item in answer["Items"]] == ["MANIFEST", f"CHUNK#{len(chunks) - 1:08d}"]


async def test_a_large_record_is_compressed_and_comes_back(store: DynamodbStore, aws: StandIn, prefix: str) -> None:
    """Escapes double a JSON text that stands in another one; so full, its row would not fit uncompressed."""
    text = JsonText(json.dumps([{"name": '"' * 40}] * 2_500))
    whole = interaction(request=text, response=text)
    await put(store, whole)
    assert await store.get(INTERACTION.key_of(whole)) == whole
    (item,) = aws.client("dynamodb").scan(TableName=f"{prefix}await_interaction")["Items"]
    assert "body" not in item
    assert len(item["z"]["B"]) < 64 * 1024


# ── reports from the field ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a18_an_index_of_one_status_is_spread(store: DynamodbStore, faults: Faults) -> None:
    """10,000 executions of one status, due at one time: no key gets all the traffic, a sweep sees every key."""
    per_key: Counter[str] = Counter()
    records = [execution(f"01JD{number:08d}", next_check_epoch_ms=5) for number in range(10_000)]
    items = store._queries.items
    for record in records:
        key = EXECUTION.key_of(record)
        item = items.item(key, record, Body({}, 0), "")
        for name in ("due_p", "by_status_p"):
            per_key[item[name]["S"]] += 1
    for number in range(10_000):  # of one step of one execution, held by one socket
        row = interaction(number, delivery="ws-1", next_check_epoch_ms=5)
        item = items.item(INTERACTION.key_of(row), row, Body({}, 0), "")
        for name in ("due_p", "by_step_p", "held_p", "by_unit_p"):
            per_key[f"{name} {item[name]['S']}"] += 1
    assert len(per_key) == 6 * SHARD_COUNT
    for count in per_key.values():
        assert abs(count - 10_000 / SHARD_COUNT) < 0.2 * 10_000 / SHARD_COUNT

    await put(store, *records[:40])
    asked: set[str] = set()

    def look(operation: str, params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if operation == "query":
            asked.add(params["ExpressionAttributeValues"][":p"]["S"])
        return answer

    faults.answers.append(look)
    page = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=50, last=10)
    assert len(page.records) == 40
    assert asked == {key for key in per_key if key.startswith("due#")}
    partition = status_partition(TENANT, "orders", "QUEUED")
    assert len((await store.query(EXECUTION_BY_STATUS, partition, limit=50)).records) == 40


async def test_a19_unprocessed_items_are_sent_again(aws: StandIn, prefix: str, faults: Faults) -> None:
    """40 % of each batch comes back unprocessed twice; all is there in the end, each repeat waits longer."""
    slept: list[float] = []
    turned_down: Counter[str] = Counter()

    def refuse(operation: str, params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        # What was written is written again: the store must take "unprocessed" at its word.
        if operation == "batch_write_item":
            (((table, requests),),) = (params["RequestItems"].items(),)
            name = json.dumps(requests[0], sort_keys=True)
            if turned_down[name] < 2:
                kept = requests[: max(1, int(len(requests) * 0.4))]
                turned_down[name] += 1
                return {**answer, "UnprocessedItems": {table: kept}}
        if operation == "batch_get_item" and turned_down["get"] < 2:
            turned_down["get"] += 1
            (((table, items),),) = (answer["Responses"].items(),)
            keys = [{"pk": item["pk"]} for item in items[:40]]
            unread = {table: {"Keys": keys, "ConsistentRead": True}}
            return {**answer, "Responses": {table: items[40:]}, "UnprocessedKeys": unread}
        return answer

    faults.answers.append(refuse)
    async with opened(aws, prefix, faults, slept=slept) as store:
        requests = store._loader.requests
        table = f"{prefix}await_block"
        names = [f"k{number:05d}" for number in range(1_000)]
        writes = [(table, {"PutRequest": {"Item": {"pk": {"S": name}}}}) for name in names]
        await requests.write_all(writes)
        assert len(slept) == 2 * 40
        for first, second in zip(slept[::2], slept[1::2], strict=True):
            assert first >= 0.05
            assert second >= 0.1
        await put(store, *(counter(number) for number in range(100)))
        assert None not in await store.get_many([counter_key(number) for number in range(100)])
        assert turned_down["get"] == 2
    client = aws.client("dynamodb")
    found = client.scan(TableName=table, ProjectionExpression="pk", ConsistentRead=True)["Items"]
    assert {item["pk"]["S"] for item in found} >= set(names)


async def test_a19_what_stays_unprocessed_is_an_error(
    store: DynamodbStore, faults: Faults, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpfd.stores.dynamodb_requests.GIVE_UP_S", 0.0)

    def refuse(operation: str, params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "UnprocessedItems": params["RequestItems"]} if operation == "batch_write_item" else answer

    faults.answers.append(refuse)
    writes = [(f"{prefix}await_block", {"PutRequest": {"Item": {"pk": {"S": "k"}}}})]
    with pytest.raises(StoreError, match=f"left items unwritten .*: {prefix}await_block") as caught:
        await store._loader.requests.write_all(writes)
    assert caught.value.retryable


async def test_a20_an_index_that_lags_only_hints(store: DynamodbStore, faults: Faults) -> None:
    """It still shows as due what was completed: the table refuses. What it does not show yet, a later look finds."""
    old = interaction(1, next_check_epoch_ms=5)
    late = execution("01JDLATE", next_check_epoch_ms=5)
    await put(store, old)
    lagging: dict[str, Any] = {}

    def lag(operation: str, params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if operation == "query" and lagging.get("on"):
            name = json.dumps([params["TableName"], params["ExpressionAttributeValues"]], sort_keys=True)
            return dict(lagging.setdefault(name, answer))
        return answer

    faults.answers.append(lag)
    lagging["on"] = True
    assert (await store.query(INTERACTION_DUE, DUE_PARTITION, limit=9, last=9)).records == (old,)
    assert (await store.query(EXECUTION_DUE, DUE_PARTITION, limit=9, last=9)).records == ()
    completed = evolve(old, status=InteractionStatus.COMPLETED, version=2, next_check_epoch_ms=None)
    await put(store, completed, late)

    key = INTERACTION.key_of(old)
    (shown,) = (await store.query(INTERACTION_DUE, DUE_PARTITION, limit=9, last=9)).records
    assert shown.status.open, "the index lags"

    def time_out(snapshot: Snapshot) -> Decision[bool]:
        found = snapshot.get(key)
        assert found is not None
        if not found.status.open:
            return Decision(False)
        return Decision(True, (evolve(found, status=InteractionStatus.TIMED_OUT, version=found.version + 1),))

    assert not await store.transact([Read(key)], time_out)
    assert await store.get(key) == completed
    lagging.clear()
    assert (await store.query(INTERACTION_DUE, DUE_PARTITION, limit=9, last=9)).records == ()
    (found,) = (await store.query(EXECUTION_DUE, DUE_PARTITION, limit=9, last=9)).records
    claim_key = EXECUTION.key_of(found)
    claims = [functools.partial(_claim, claim_key) for _ in range(2)]
    assert [await store.transact([Read(claim_key)], claim) for claim in claims] == [True, False]


def _claim(key: Any, snapshot: Snapshot) -> Decision[bool]:
    found = snapshot.get(key)
    if found is None or found.status is not ExecutionStatus.QUEUED:
        return Decision(False)
    return Decision(True, (evolve(found, status=ExecutionStatus.RUNNING, fence=found.fence + 1),))
