"""Each way in which a call of DynamoDB can fail, at each call: nothing is lost, doubled, or pretended."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from tests.aws.standin import StandIn
from tests.conformance.samples import (
    TENANT,
    add_one,
    always,
    counter,
    counter_key,
    execution,
    fact,
    increment,
    put,
    remove,
)
from tests.stores.dynamodb_faults import AFTER, BEFORE, CONFLICT, Faults, opened, refused
from tests.stores.tables import making_tables
from tpfd.core.kinds import DUE_PARTITION, EXECUTION, EXECUTION_DUE
from tpfd.core.records import ExecutionId
from tpfd.core.transact import Decision, Read, Snapshot
from tpfd.errors import StoreError
from tpfd.stores.dynamodb import DynamodbStore

OWNER = ExecutionId("01JDEXECUTION")
EVERY = [(name, error, after) for errors, after in ((BEFORE, False), (AFTER, True)) for name, error in errors.items()]


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


async def add_two(store: DynamodbStore) -> int:
    """Counts two counters up in one transaction."""
    keys = [counter_key(0), counter_key(1)]

    def decide(snapshot: Snapshot) -> Decision[int]:
        counts = [0 if (found := snapshot.get(key)) is None else found.continued_count for key in keys]
        return Decision(counts[0] + 1, tuple(counter(place, count + 1) for place, count in enumerate(counts)))

    return await store.transact([Read(key) for key in keys], decide)


@pytest.mark.parametrize(("name", "error", "after"), EVERY, ids=[name for name, _, _ in EVERY])
@pytest.mark.parametrize("before", [0, 1], ids=["new", "known"])
async def test_a_failing_put_counts_once(
    store: DynamodbStore, faults: Faults, name: str, error: Callable[[], Exception], after: bool, before: int
) -> None:
    for _ in range(before):
        await increment(store)
    calls = faults.calls["put_item"]
    faults.plan("put_item", error, after=after)
    assert await increment(store) == before + 1
    assert faults.calls["put_item"] == calls + 2
    assert await store.get(counter_key()) == counter(0, before + 1)


@pytest.mark.parametrize(("name", "error", "after"), EVERY, ids=[name for name, _, _ in EVERY])
async def test_a_failing_transaction_counts_once(
    store: DynamodbStore, faults: Faults, name: str, error: Callable[[], Exception], after: bool
) -> None:
    await add_two(store)
    faults.plan("transact_write_items", error, after=after)
    assert await add_two(store) == 2
    assert faults.calls["transact_write_items"] == 3
    assert await store.get_many([counter_key(0), counter_key(1)]) == [counter(0, 2), counter(1, 2)]


@pytest.mark.parametrize(("name", "error", "after"), EVERY, ids=[name for name, _, _ in EVERY])
async def test_a_failing_delete_deletes(
    store: DynamodbStore, faults: Faults, name: str, error: Callable[[], Exception], after: bool
) -> None:
    await increment(store)
    decided: list[bool] = []

    def decide(snapshot: Snapshot) -> Decision[bool]:
        decided.append(snapshot.get(counter_key()) is not None)
        return Decision(decided[-1], deletes=(counter_key(),))

    faults.plan("delete_item", error, after=after)
    assert await store.transact([Read(counter_key())], decide)
    assert decided == [True]
    assert await store.get(counter_key()) is None


@pytest.mark.parametrize("operation", ["get_item", "batch_get_item", "query"])
@pytest.mark.parametrize(("name", "error"), list(BEFORE.items()), ids=list(BEFORE))
async def test_a_failing_read_is_repeated(
    store: DynamodbStore, faults: Faults, operation: str, name: str, error: Callable[[], Exception]
) -> None:
    await put(store, counter(0, 1), counter(1, 2), execution("e1", next_check_epoch_ms=5))
    faults.plan(operation, error)
    assert await store.get(counter_key()) == counter(0, 1)
    assert await store.get_many([counter_key(0), counter_key(1)]) == [counter(0, 1), counter(1, 2)]
    assert len((await store.query(EXECUTION_DUE, DUE_PARTITION, limit=5)).records) == 1
    assert not faults.planned[operation]


@pytest.mark.parametrize(("name", "error", "after"), EVERY, ids=[name for name, _, _ in EVERY])
async def test_facts_are_there_once_whatever_fails_on_their_way(
    store: DynamodbStore, faults: Faults, name: str, error: Callable[[], Exception], after: bool
) -> None:
    faults.plan("transact_write_items", error, after=after, times=2)
    faults.plan("batch_write_item", error, after=after)
    await put(store, execution(), facts=(fact("a"), fact("b")))
    await put(store, execution(version=2), facts=(fact("b"), fact("c")))
    assert [found.fact.key for found in await store.history(TENANT, OWNER, after=0, limit=9)] == ["a", "b", "c"]
    assert await store.last_seq() == 3
    await store.forget(TENANT, OWNER)
    assert await store.feed(after=0, limit=9) == []


async def test_a_conflict_is_no_lost_race(store: DynamodbStore, faults: Faults) -> None:
    decisions = 0

    def decide(snapshot: Snapshot) -> Decision[None]:
        nonlocal decisions
        decisions += snapshot.has_read(counter_key())
        return Decision(None, (counter(0, 1), counter(1, 1)))

    faults.plan("transact_write_items", CONFLICT, times=3)
    await store.transact([Read(counter_key())], decide)
    assert decisions == 1
    assert store.statistics().refused_count == 0


async def test_a_put_that_landed_and_was_written_over_is_known_as_ours(
    aws: StandIn, prefix: str, store: DynamodbStore, faults: Faults
) -> None:
    """Its reply is lost, and before it is sent again another process has already gone on from it."""
    async with opened(aws, prefix, seed=9) as other:
        meddled = False

        def meddle(operation: str, params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            nonlocal meddled
            if operation == "put_item" and not meddled:
                meddled = True
                trio.from_thread.run(increment, other)
            return answer

        faults.answers.append(meddle)
        faults.plan("put_item", AFTER["timed out after it was done"], after=True)
        assert await increment(store) == 1
        assert await other.get(counter_key()) == counter(0, 2)


async def test_a_transaction_that_landed_is_not_done_again_when_its_traces_are_gone(
    aws: StandIn, prefix: str, store: DynamodbStore, faults: Faults
) -> None:
    """Its reply is lost, and before it is sent again another process has removed what it wrote: its token tells."""
    async with opened(aws, prefix, seed=9) as other:
        meddled = False

        def meddle(operation: str, params: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            nonlocal meddled
            if operation == "transact_write_items" and not meddled:
                meddled = True
                trio.from_thread.run(remove, other, counter_key(0), counter_key(1))
            return answer

        faults.answers.append(meddle)
        faults.plan("transact_write_items", AFTER["timed out after it was done"], after=True)
        assert await add_two(store) == 1
        assert await other.get_many([counter_key(0), counter_key(1)]) == [None, None]


@pytest.mark.parametrize("operation", ["put_item", "get_item"])
async def test_what_fails_for_long_is_an_error_and_nothing_is_pretended(
    store: DynamodbStore, faults: Faults, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("requests", "commit", "groups"):
        monkeypatch.setattr(f"tpfd.stores.dynamodb_{module}.GIVE_UP_S", 0.0)
    faults.plan(operation, BEFORE["expired credentials"])
    with pytest.raises(StoreError, match="ExpiredTokenException") as caught:
        await increment(store)
    assert caught.value.retryable
    assert await increment(store) == 1


async def test_what_is_refused_for_good_says_so_at_once(store: DynamodbStore, faults: Faults) -> None:
    faults.plan("put_item", refused("AccessDeniedException"))
    with pytest.raises(StoreError, match="AccessDeniedException") as caught:
        await increment(store)
    assert not caught.value.retryable
    assert faults.calls["put_item"] == 1


def _writes(operation: str, params: dict[str, Any], record_id: str) -> list[bool]:
    """Whether each item of a write is the one under this id."""
    items = [params["Item"]] if operation == "put_item" else []
    if operation == "transact_write_items":
        members = [next(iter(member.values())) for member in params["TransactItems"]]
        items = [member.get("Item") or member["Key"] for member in members]
    return [item["pk"]["S"].endswith(record_id) for item in items]


async def _write_eight(store: DynamodbStore) -> dict[int, str]:
    """Eight decisions that go together, each about a record of its own; how each ended."""
    ends: dict[int, str] = {}

    async def one(number: int) -> None:
        try:
            await store.transact([Read(counter_key(99))], always(Decision(None, (counter(number),))))
        except StoreError as error:
            ends[number] = error.message
        else:
            ends[number] = "ok"

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(one, number)
    return ends


async def test_one_refused_member_does_not_take_the_others_with_it(store: DynamodbStore, faults: Faults) -> None:
    refusal = refused("ValidationException")
    faults.veto = lambda operation, params: (
        refusal() if any(_writes(operation, params, counter_key(3).record_id)) else None
    )
    ends = await _write_eight(store)
    assert "ValidationException" in ends.pop(3)
    assert set(ends.values()) == {"ok"}
    assert len(ends) == 7
    assert store.statistics().split_count == 3


async def test_a_throttled_key_holds_up_only_who_writes_to_it(store: DynamodbStore, faults: Faults) -> None:
    """The rest of the group goes on without it; it goes through when the throttling ends."""
    done: list[int] = []
    others_done = threading.Event()

    def veto(operation: str, params: dict[str, Any]) -> Exception | None:
        which = _writes(operation, params, counter_key(3).record_id)
        if not any(which) or others_done.is_set():
            return None
        if len(which) <= 2:  # alone, with the record that all looked at
            assert others_done.wait(20), "the others waited for it"
            return None
        reasons = [{"Code": "ThrottlingError" if is_it else "None"} for is_it in which]
        return refused("TransactionCanceledException", CancellationReasons=reasons)()

    faults.veto = veto

    async def one(number: int) -> None:
        await store.transact([Read(counter_key(99))], always(Decision(None, (counter(number),))))
        done.append(number)
        if len(done) == 7:
            others_done.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(one, number)
    assert done[-1] == 3
    assert len(done) == 8


async def test_many_faults_by_chance_and_two_processes(aws: StandIn, prefix: str) -> None:
    """Every increment counts once, although calls fail before and after their effect, in two processes at once."""
    faults = Faults(rate=0.15)
    results: list[int] = []

    async def count(store: DynamodbStore) -> None:
        results.extend([await store.transact([Read(counter_key())], add_one()) for _ in range(5)])

    async with opened(aws, prefix, faults, seed=1) as first, opened(aws, prefix, faults, seed=2) as second:
        async with trio.open_nursery() as nursery:
            for store in (first, second):
                for _ in range(8):
                    nursery.start_soon(count, store)
        faults.rate = 0.0
        found = await first.get(counter_key())
    assert found is not None
    assert found.continued_count == len(results) == 80
    assert sorted(results) == list(range(1, 81))
    assert faults.happened


async def test_a_cancelled_caller_still_sees_the_outcome(store: DynamodbStore, faults: Faults) -> None:
    """Also when the write has to be sent again after the cancel."""
    outcomes: list[int] = []
    with trio.CancelScope() as scope:

        def decide(snapshot: Snapshot) -> Decision[int]:
            scope.cancel()
            decision = add_one()(snapshot)
            assert isinstance(decision, Decision)
            return decision

        faults.plan("put_item", BEFORE["throttled"], times=2)
        outcomes.append(await store.transact([Read(counter_key())], decide))
        await trio.lowlevel.checkpoint()
        outcomes.append(-1)
    assert outcomes == [1]
    assert await store.get(counter_key()) == counter(0, 1)


async def test_removed_records_come_back_through_faults(store: DynamodbStore, faults: Faults) -> None:
    faults.rate = 0.2
    for _ in range(10):
        assert await increment(store) == 1
        await remove(store, counter_key())
    await store.transact([], always(Decision(None, (execution(),))))
    assert await store.get(EXECUTION.key(TENANT, OWNER)) == execution()
