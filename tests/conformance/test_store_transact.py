"""What one transaction promises, on every store."""

from __future__ import annotations

import functools
import threading

import pytest
import trio
from attrs import evolve

from tests.conformance.samples import (
    EXECUTION_ID,
    OTHER,
    TENANT,
    add_one,
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
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import ExecutionStatus
from tpfd.core.transact import MAX_NEED_ROUNDS, MAX_TOUCHED, Decision, Key, Need, Read, Snapshot
from tpfd.errors import InternalError, NotFound
from tpfd.stores.protocol import Store


async def test_what_is_put_is_read_back_equal(store: Store) -> None:
    whole = execution(
        execution_key="ключ \N{SNOWMAN}\0",
        search={"customer": "Ünï", "": "empty"},
        next_check_epoch_ms=5,
        lease_expires_epoch_ms=2**62,
    )
    await put(store, whole)
    assert await store.get(EXECUTION.key_of(whole)) == whole


async def test_a_missing_record_is_none(store: Store) -> None:
    assert await store.get(counter_key()) is None


async def test_a_put_replaces_the_whole_record(store: Store) -> None:
    await put(store, execution(error_code="boom"))
    await put(store, execution(version=2))
    assert await store.get(EXECUTION.key(TENANT, EXECUTION_ID)) == execution(version=2)


async def test_a_decision_writes_all_its_records_and_facts(store: Store) -> None:
    await put(store, counter(9, 9))
    decision = Decision("done", (counter(0, 1), execution()), (counter_key(9),), (fact("a"), fact("b")))
    assert await store.transact([], always(decision)) == "done"
    assert await store.get(counter_key(0)) == counter(0, 1)
    assert await store.get(EXECUTION.key(TENANT, EXECUTION_ID)) == execution()
    assert await store.get(counter_key(9)) is None
    assert [found.fact for found in await store.feed(after=0, limit=9)] == [fact("a"), fact("b")]


async def test_a_refusal_writes_nothing(store: Store) -> None:
    await put(store, counter(0, 7), facts=(fact("kept"),))
    assert await store.transact([Read(counter_key())], always(Decision("refused"))) == "refused"
    assert await store.get(counter_key()) == counter(0, 7)
    assert await store.last_seq() == 1


async def test_a_decide_that_raises_writes_nothing_and_its_error_comes_back(store: Store) -> None:
    wrong = NotFound("nothing here")

    def decide(_snapshot: Snapshot) -> Decision[None]:
        raise wrong

    with pytest.raises(NotFound) as caught:
        await store.transact([Read(counter_key())], decide)
    assert caught.value is wrong
    assert await increment(store) == 1


async def test_a_deleted_record_is_gone_and_can_come_back(store: Store) -> None:
    await put(store, counter(0, 1))
    await remove(store, counter_key())
    assert await store.get(counter_key()) is None
    await remove(store, counter_key())  # nothing to delete is no error
    assert await increment(store) == 1


async def test_an_undeclared_read_is_refused(store: Store) -> None:
    with pytest.raises(KeyError):
        await store.transact([Read(counter_key(0))], lambda snapshot: Decision(snapshot.get(counter_key(1))))


async def test_concurrent_increments_are_all_counted(store: Store) -> None:
    async def many() -> None:
        for _ in range(20):
            await increment(store)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(many)
    found = await store.get(counter_key())
    assert found is not None
    assert found.continued_count == 64 * 20


async def test_one_of_many_claims_wins(store: Store) -> None:
    key = EXECUTION.key(TENANT, EXECUTION_ID)
    await put(store, execution())
    winners = []

    async def claim(name: str) -> None:
        def decide(snapshot: Snapshot) -> Decision[bool]:
            found = snapshot.get(key)
            assert found is not None
            if found.status is not ExecutionStatus.QUEUED:
                return Decision(False)
            won = evolve(found, status=ExecutionStatus.RUNNING, fence=found.fence + 1, lease_owner=name)
            return Decision(True, (won,))

        if await store.transact([Read(key)], decide):
            winners.append(name)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(claim, str(number))
    found = await store.get(key)
    assert found is not None
    assert winners == [found.lease_owner]
    assert found.fence == 1


async def test_a_record_that_is_only_read_guards_the_decision(store: Store) -> None:
    """Write skew: two decisions that each read what the other writes cannot both find the place free."""
    keys = [counter_key(0), counter_key(1)]
    results = []

    async def take(mine: int) -> None:
        def decide(snapshot: Snapshot) -> Decision[bool]:
            if snapshot.get(keys[1 - mine]) is not None:
                return Decision(False)
            return Decision(True, (counter(mine, 1),))

        results.append(await store.transact([Read(key) for key in keys], decide))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, 0)
        nursery.start_soon(take, 1)
    assert sorted(results) == [False, True]


async def test_need_reads_on_from_what_was_found(store: Store) -> None:
    record = interaction()
    await put(store, record, execution(), counter(0, 5))
    interaction_key = INTERACTION.key_of(record)
    execution_key = EXECUTION.key(TENANT, EXECUTION_ID)
    rounds = []

    def decide(snapshot: Snapshot) -> Decision[int] | Need:
        rounds.append(snapshot.has_read(execution_key))
        found = snapshot.get(interaction_key)
        assert found is not None
        if not snapshot.has_read(execution_key):
            return Need((Read(EXECUTION.key(TENANT, found.execution_id)),))
        if not snapshot.has_read(counter_key()):
            return Need((Read(counter_key()), Read(interaction_key)))
        count = snapshot.get(counter_key())
        assert count is not None
        return Decision(count.continued_count, (evolve(found, version=2),))

    assert await store.transact([Read(interaction_key)], decide) == 5
    assert rounds == [False, True, True]
    assert await store.get(interaction_key) == evolve(record, version=2)


async def test_need_is_bounded(store: Store) -> None:
    def ask(times: int, snapshot: Snapshot) -> Decision[int] | Need:
        known = sum(snapshot.has_read(counter_key(number)) for number in range(1, times + 1))
        return Need((Read(counter_key(known + 1)),)) if known < times else Decision(known, (counter(0, known),))

    assert await store.transact([], functools.partial(ask, MAX_NEED_ROUNDS)) == MAX_NEED_ROUNDS
    await remove(store, counter_key())
    with pytest.raises(InternalError):
        await store.transact([], functools.partial(ask, MAX_NEED_ROUNDS + 1))
    assert await store.get(counter_key()) is None


async def test_records_of_a_decision_are_bounded(store: Store) -> None:
    full = tuple(counter(index) for index in range(MAX_TOUCHED))
    await store.transact([], always(Decision(None, full)))
    more = (*full[1:], counter(40))
    with pytest.raises(InternalError, match=str(MAX_TOUCHED + 1)):
        await store.transact([], lambda _snapshot: Decision(None, more, (counter_key(0),)))
    assert await store.get(counter_key(40)) is None
    assert await store.get(counter_key(0)) == counter(0)


@pytest.mark.parametrize(
    ("puts", "deletes"),
    [((counter(0, 1), counter(0, 2)), ()), ((counter(0, 1),), (counter_key(0),)), (("no record",), ())],
    ids=["put twice", "put and deleted", "not a record"],
)
async def test_an_ambiguous_decision_is_refused(
    store: Store, puts: tuple[object, ...], deletes: tuple[Key[object], ...]
) -> None:
    with pytest.raises(InternalError):
        await store.transact([], lambda _snapshot: Decision(None, puts, deletes, (fact("a"),)))
    assert await store.get(counter_key()) is None
    assert await store.last_seq() == 0


async def test_tenants_do_not_meet(store: Store) -> None:
    await increment(store)
    await increment(store, tenant=OTHER)
    await increment(store, tenant=OTHER)
    assert await store.get_many([counter_key(), counter_key(tenant=OTHER)]) == [counter(0, 1), counter(0, 2, OTHER)]
    await remove(store, counter_key())
    assert await store.get(counter_key(tenant=OTHER)) == counter(0, 2, OTHER)


async def test_get_many_keeps_the_order_of_its_keys(store: Store) -> None:
    await put(store, *(counter(index, index) for index in range(30)))
    keys = [counter_key(index) for index in (29, 3, 99, 0, 3)]
    assert await store.get_many(keys) == [counter(29, 29), counter(3, 3), None, counter(0, 0), counter(3, 3)]
    assert await store.get_many([]) == []


async def test_a_cancel_before_a_transaction_stops_it(store: Store) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await increment(store)
    assert scope.cancelled_caught
    assert await store.get(counter_key()) is None


async def test_a_cancel_during_a_transaction_does_not_hide_its_outcome(store: Store) -> None:
    """Once the store has it, the caller sees what became of it, and the cancel comes at the next checkpoint."""
    token = trio.lowlevel.current_trio_token()
    home = threading.get_ident()
    outcomes = []
    with trio.CancelScope() as scope:

        def decide(snapshot: Snapshot) -> Decision[int]:
            if threading.get_ident() == home:
                scope.cancel()
            else:  # a store that decides in a thread
                trio.from_thread.run_sync(scope.cancel, trio_token=token)
            decision = add_one()(snapshot)
            assert isinstance(decision, Decision)
            return decision

        outcomes.append(await store.transact([Read(counter_key())], decide))
        await trio.lowlevel.checkpoint()
        outcomes.append(-1)
    assert outcomes == [1]
    assert scope.cancelled_caught
    assert await store.get(counter_key()) == counter(0, 1)
