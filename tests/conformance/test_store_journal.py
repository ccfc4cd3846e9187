"""The facts, on every store."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from tests.conformance.samples import EXECUTION_ID, OTHER, TENANT, always, execution, fact, increment, put
from tests.conformance.stores import STORES
from tpfd.core.records import ExecutionId, SequencedFact
from tpfd.core.transact import Decision
from tpfd.errors import InternalError
from tpfd.stores.protocol import Store


def keys(found: list[SequencedFact]) -> list[str]:
    return [sequenced.fact.key for sequenced in found]


async def test_an_empty_journal(store: Store) -> None:
    assert await store.last_seq() == 0
    assert await store.feed(after=0, limit=5) == []
    assert await store.history(TENANT, EXECUTION_ID, after=0, limit=5) == []


async def test_facts_come_back_equal_and_in_order(store: Store) -> None:
    facts = (
        fact("a", text="Ü\n\0", number=2**53, yes=True, none=None),
        fact("b", "01JDOTHER"),
        fact("a", tenant=OTHER),
        fact("c"),
    )
    await put(store, facts=facts)
    found = await store.feed(after=0, limit=9)
    assert [sequenced.fact for sequenced in found] == list(facts)
    assert sorted({sequenced.seq for sequenced in found}) == [sequenced.seq for sequenced in found]
    assert await store.last_seq() == found[-1].seq
    assert found[0].seq > 0
    assert keys(await store.history(TENANT, EXECUTION_ID, after=0, limit=9)) == ["a", "c"]
    assert keys(await store.history(OTHER, EXECUTION_ID, after=0, limit=9)) == ["a"]
    assert await store.history(OTHER, ExecutionId("01JDOTHER"), after=0, limit=9) == []


async def test_repeating_a_fact_is_a_no_op(store: Store) -> None:
    await put(store, facts=(fact("a", n=1), fact("a", n=2)))
    await put(store, facts=(fact("a", n=3), fact("b")))
    found = await store.feed(after=0, limit=9)
    assert [(sequenced.fact.key, sequenced.fact.data) for sequenced in found] == [("a", {"n": 1}), ("b", {})]


async def test_a_repeated_fact_does_not_stop_its_decision(store: Store) -> None:
    await put(store, facts=(fact("a"),))
    decision = Decision(7, (execution(),), facts=(fact("a"), fact("b")))
    assert await store.transact([], always(decision)) == 7
    assert keys(await store.feed(after=0, limit=9)) == ["a", "b"]


async def test_the_journal_is_paged_by_sequence_number(store: Store) -> None:
    await put(store, facts=tuple(fact(f"{n:02d}", EXECUTION_ID if n % 2 else "e2") for n in range(20)))
    seen: list[str] = []
    after = 0
    while page := await store.feed(after=after, limit=7):
        assert len(page) <= 7
        seen += keys(page)
        after = page[-1].seq
    assert seen == [f"{n:02d}" for n in range(20)]
    first = await store.history(TENANT, EXECUTION_ID, after=0, limit=4)
    rest = await store.history(TENANT, EXECUTION_ID, after=first[-1].seq, limit=99)
    assert keys(first + rest) == [f"{n:02d}" for n in range(1, 20, 2)]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(InternalError):
        await store.feed(after=0, limit=limit)
    with pytest.raises(InternalError):
        await store.history(TENANT, EXECUTION_ID, after=0, limit=limit)


async def test_a_reader_that_follows_the_feed_misses_nothing(store: Store) -> None:
    """Sequence numbers become visible in order: who has seen n never finds a smaller one later."""
    seen: list[str] = []

    async def write(name: str) -> None:
        for number in range(20):
            decision = Decision(None, facts=(fact(f"{name}{number}", name),))
            await store.transact([], always(decision))

    async def follow() -> None:
        after = 0
        while len(seen) < 8 * 20:
            for sequenced in await store.feed(after=after, limit=10):
                seen.append(sequenced.fact.key)
                after = sequenced.seq

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for name in "abcdefgh":
                nursery.start_soon(write, name)
    assert len(set(seen)) == 8 * 20


async def test_forgetting_takes_an_execution_with_its_children_and_nothing_else(store: Store) -> None:
    kept = ("01JDEXECUTIO", f"{EXECUTION_ID}x", f"{EXECUTION_ID}-1", f"{EXECUTION_ID}/1", "02")
    gone = (EXECUTION_ID, f"{EXECUTION_ID}.s001.c000000001", f"{EXECUTION_ID}.s001.c000000001.s002.c000000009")
    await put(store, facts=tuple(fact("a", owner) for owner in kept + gone))
    await put(store, facts=(fact("b"), fact("a", tenant=OTHER)))
    last = await store.last_seq()
    await store.forget(TENANT, EXECUTION_ID)
    left = [(found.fact.tenant_id, found.fact.execution_id) for found in await store.feed(after=0, limit=99)]
    assert left == [*((TENANT, owner) for owner in kept), (OTHER, EXECUTION_ID)]
    assert await store.history(TENANT, EXECUTION_ID, after=0, limit=9) == []
    assert await store.last_seq() == last
    await put(store, facts=(fact("b"),))  # a forgotten key may come again, under a new number
    assert [found.seq for found in await store.feed(after=last, limit=9)] == [last + 1]


async def test_forgetting_many_facts(store: Store) -> None:
    for start in range(0, 2_500, 500):
        await put(store, facts=tuple(fact(str(number)) for number in range(start, start + 500)))
    await store.forget(TENANT, EXECUTION_ID)
    assert await store.feed(after=0, limit=9) == []
    await store.forget(TENANT, EXECUTION_ID)  # nothing left is no error


@pytest.mark.parametrize("name", sorted(STORES))
async def test_the_journal_keeps_what_the_filter_passes(name: str, tmp_path: Path) -> None:
    async with STORES[name](tmp_path, keep_fact=lambda one: one.key != "small") as store:
        await put(store, execution(), facts=(fact("small"), fact("large")))
        assert keys(await store.feed(after=0, limit=9)) == ["large"]
        assert await store.last_seq() == 1


async def test_watching_goes_on_until_cancelled_and_own_commits_do_not_ring(store: Store) -> None:
    rung: list[None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.watch, lambda: rung.append(None))
        await trio.testing.wait_all_tasks_blocked()
        await increment(store)
        await increment(store)
        nursery.cancel_scope.cancel()
    assert rung == []
