"""Many callers, one transaction: what each of them sees, whatever fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.conformance.samples import (
    TENANT,
    always,
    counter,
    counter_key,
    execution,
    fact,
    increment,
    put,
)
from tests.stores.faults import Faults, one_group
from tpfd.core.transact import Decide, Decision, Read, Snapshot
from tpfd.errors import InternalError, NotFound, StoreError
from tpfd.stores.sqlite import SqliteStore, open_sqlite

CALLERS = 64
Outcomes = dict[int, Any]


async def call(store: SqliteStore, outcomes: Outcomes, number: int, decide: Decide[Any]) -> None:
    """Notes what the caller got: a result or an error."""
    try:
        outcomes[number] = await store.transact([Read(counter_key(number))], decide)
    except (StoreError, InternalError, NotFound) as error:
        outcomes[number] = error


async def all_call(store: SqliteStore, decide_of: Callable[[int], Decide[Any]]) -> Outcomes:
    outcomes: Outcomes = {}
    async with one_group(store) as nursery:
        for number in range(CALLERS):
            nursery.start_soon(call, store, outcomes, number, decide_of(number))
    assert len(outcomes) == CALLERS
    return outcomes


def put_counter(number: int) -> Decide[int]:
    return always(Decision(number, (counter(number, number),), facts=(fact(str(number)),)))


async def stored(store: SqliteStore) -> set[int]:
    found = await store.get_many([counter_key(number) for number in range(CALLERS)])
    return {number for number, record in enumerate(found) if record is not None}


async def facts_of(store: SqliteStore) -> set[int]:
    return {int(found.fact.key) for found in await store.feed(after=0, limit=999)}


async def test_many_callers_share_one_commit(sqlite_store: SqliteStore, faults: Faults) -> None:
    before = faults.count("COMMIT")
    outcomes = await all_call(sqlite_store, put_counter)
    assert outcomes == {number: number for number in range(CALLERS)}
    assert faults.count("COMMIT") - before == 2  # the one that held the writer, and the group
    statistics = sqlite_store.statistics()
    assert statistics.largest_group_count == CALLERS
    assert statistics.commit_count == 1  # holding wrote nothing
    assert statistics.member_count == CALLERS + 1
    assert await stored(sqlite_store) == set(range(CALLERS))


async def test_the_group_limit_is_kept(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "store.db", group_commit_max=10) as store:
        await all_call(store, put_counter)
        assert store.statistics().largest_group_count == 10
        assert store.statistics().commit_count == 7


async def test_members_see_what_the_ones_before_them_wrote(sqlite_store: SqliteStore) -> None:
    results: list[int] = []

    async def count_up() -> None:
        results.append(await increment(sqlite_store))

    async with one_group(sqlite_store) as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(count_up)
    assert sorted(results) == list(range(1, CALLERS + 1))
    assert sqlite_store.statistics().commit_count == 1
    assert await sqlite_store.get(counter_key()) == counter(0, CALLERS)


async def test_each_record_is_written_once_per_group(sqlite_store: SqliteStore, faults: Faults) -> None:
    async with one_group(sqlite_store) as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(increment, sqlite_store)
    assert faults.count("INSERT INTO block") == 1
    assert faults.count("SELECT body FROM block") == 1


async def test_a_record_that_comes_and_goes_within_a_group(sqlite_store: SqliteStore) -> None:
    await put(sqlite_store, counter(1, 1))
    async with one_group(sqlite_store) as nursery:
        for decision in (
            Decision(None, (counter(0, 1), counter(1, 2))),
            Decision(None, deletes=(counter_key(0), counter_key(1))),
            Decision(None, (counter(1, 3),)),
        ):
            nursery.start_soon(sqlite_store.transact, [], always(decision))
            await trio.testing.wait_all_tasks_blocked()
    assert await sqlite_store.get_many([counter_key(0), counter_key(1)]) == [None, counter(1, 3)]


async def test_a_decide_that_raises_undoes_only_itself(sqlite_store: SqliteStore) -> None:
    def decide_of(number: int) -> Decide[Any]:
        if number % 8:
            return put_counter(number)

        def raises(_snapshot: Snapshot) -> Decision[None]:
            raise NotFound(str(number))

        return raises

    outcomes = await all_call(sqlite_store, decide_of)
    for number, outcome in outcomes.items():
        if number % 8:
            assert outcome == number
        else:
            assert isinstance(outcome, NotFound)
            assert outcome.message == str(number)
    good = {number for number in range(CALLERS) if number % 8}
    assert await stored(sqlite_store) == await facts_of(sqlite_store) == good
    assert sqlite_store.statistics().commit_count == 1


async def test_a_refused_member_waits_for_the_commit(sqlite_store: SqliteStore, faults: Faults) -> None:
    """It has seen what a neighbour was about to write; if that fails, so does the refusal."""
    faults.arm("COMMIT", sqlite3.SQLITE_IOERR, spared=1)
    outcomes = await all_call(
        sqlite_store, lambda number: always(Decision("refused")) if number else put_counter(number)
    )
    assert {type(outcome) for outcome in outcomes.values()} == {StoreError}


@pytest.mark.parametrize(
    ("statement", "spared"),
    [("BEGIN", 1), ("SELECT body FROM block", 10), ("INSERT INTO block", 0), ("INSERT INTO fact", 0), ("COMMIT", 1)],
)
@pytest.mark.parametrize(
    ("code", "expected", "retryable"),
    [
        (sqlite3.SQLITE_FULL, "store_full", True),
        (sqlite3.SQLITE_IOERR_FSYNC, "store_io", True),
        (sqlite3.SQLITE_CORRUPT, "store_corrupt", False),
    ],
)
async def test_when_the_store_fails_nobody_is_told_otherwise(
    sqlite_store: SqliteStore,
    faults: Faults,
    statement: str,
    spared: int,
    code: int,
    expected: str,
    retryable: bool,
) -> None:
    faults.arm(statement, code, spared=spared)
    outcomes = await all_call(sqlite_store, put_counter)
    for outcome in outcomes.values():
        assert isinstance(outcome, StoreError)
        assert outcome.code == expected
        assert outcome.retryable is retryable
        assert isinstance(outcome.__cause__, sqlite3.Error)
    assert len({id(outcome) for outcome in outcomes.values()}) == CALLERS  # tracebacks do not mix
    assert await stored(sqlite_store) == set()
    assert await facts_of(sqlite_store) == set()
    assert await all_call(sqlite_store, put_counter) == {number: number for number in range(CALLERS)}
    assert await stored(sqlite_store) == await facts_of(sqlite_store) == set(range(CALLERS))


async def test_a_row_that_cannot_be_stored_fails_only_its_decision(sqlite_store: SqliteStore, faults: Faults) -> None:
    """SQLite refuses the row of one member: the transaction is undone and run again, member by member."""

    def decide_of(number: int) -> Decide[Any]:
        if number != 20:
            return put_counter(number)
        return always(Decision(None, (counter(number, number), execution(error_message="x" * 6_000))))

    outcomes = await all_call(sqlite_store, decide_of)
    failed = outcomes.pop(20)
    assert isinstance(failed, StoreError)
    assert (failed.code, failed.retryable) == ("store_rejected", False)
    assert outcomes == {number: number for number in range(CALLERS) if number != 20}
    assert await stored(sqlite_store) == await facts_of(sqlite_store) == set(outcomes)
    statistics = sqlite_store.statistics()
    assert (statistics.rerun_count, statistics.failed_count) == (1, 1)
    faults.statements.clear()
    await all_call(sqlite_store, put_counter)
    assert faults.count("COMMIT") == 2  # groups again


@pytest.mark.parametrize(
    "record",
    [execution("\ud800"), execution(error_message="\udfff"), execution(next_check_epoch_ms=2**63)],
    ids=["id", "text", "number"],
)
async def test_a_value_that_nothing_can_hold_fails_only_its_decision(sqlite_store: SqliteStore, record: Any) -> None:
    outcomes = await all_call(
        sqlite_store, lambda number: put_counter(number) if number else always(Decision(None, (record,)))
    )
    assert isinstance(outcomes.pop(0), InternalError)
    assert await stored(sqlite_store) == set(outcomes) == set(range(1, CALLERS))


async def test_a_fact_that_nothing_can_hold_fails_only_its_decision(sqlite_store: SqliteStore) -> None:
    outcomes = await all_call(
        sqlite_store,
        lambda number: put_counter(number) if number else always(Decision(None, facts=(fact("\ud800", n=2**64),))),
    )
    assert isinstance(outcomes.pop(0), InternalError)
    assert await facts_of(sqlite_store) == set(outcomes) == set(range(1, CALLERS))


async def test_a_damaged_row_fails_who_looks_at_it(sqlite_store: SqliteStore, tmp_path: Path) -> None:
    await put(sqlite_store, counter(0), counter(1))
    damage = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    damage.execute("UPDATE block SET body = '{\"unit_id\":' WHERE id = ?", (counter_key(0).record_id,))
    damage.close()
    outcomes = await all_call(sqlite_store, put_counter)
    failed = outcomes.pop(0)
    assert isinstance(failed, StoreError)
    assert (failed.code, failed.retryable) == ("store_corrupt", False)
    assert counter_key(0).record_id in failed.message
    assert TENANT in failed.message
    assert set(outcomes) == set(range(1, CALLERS))
    with pytest.raises(StoreError, match="cannot be read"):
        await sqlite_store.get(counter_key(0))
    assert await sqlite_store.get(counter_key(1)) == counter(1, 1)


async def test_a_lock_that_is_not_had_in_time_is_a_store_error(sqlite_store: SqliteStore, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="busy timeout") as caught:
        await increment(sqlite_store)
    assert (caught.value.code, caught.value.retryable) == ("store_busy", True)
    other.execute("ROLLBACK")
    other.close()
    assert await increment(sqlite_store) == 1


async def test_the_queue_is_bounded_and_in_order(tmp_path: Path) -> None:
    order: list[int] = []

    async def one(number: int) -> None:
        def decide(_snapshot: Snapshot) -> Decision[None]:
            order.append(number)
            return Decision(None)

        await store.transact([], decide)

    async with open_sqlite(tmp_path / "store.db", queue_max=5) as store:
        async with one_group(store) as nursery:
            for number in range(20):
                nursery.start_soon(one, number)
                await trio.testing.wait_all_tasks_blocked()
            assert store.statistics().waiting_count == 4  # one place is the holder's
        assert store.statistics().largest_group_count <= 5
    assert max(abs(place - number) for place, number in enumerate(order)) < 5  # who got a place together may swap


async def test_leaving_commits_what_is_queued(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery, open_sqlite(tmp_path / "store.db") as store:
        for _ in range(10):
            nursery.start_soon(increment, store)
        await trio.testing.wait_all_tasks_blocked()
    async with open_sqlite(tmp_path / "store.db") as store:
        assert await store.get(counter_key()) == counter(0, 10)


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "store.db") as store:
        pass
    for use in (increment(store), store.get(counter_key()), store.last_seq()):
        with pytest.raises(StoreError, match="closed") as caught:
            await use
        assert caught.value.code == "store_closed"


async def test_a_cancelled_owner_still_closes_the_file(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_sqlite(tmp_path / "store.db") as store:
            await increment(store)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    left = await trio.Path(tmp_path).iterdir()
    assert [path.name for path in left] == ["store.db"]  # the last connection removed the WAL


async def test_a_bug_in_the_writer_reaches_everybody(tmp_path: Path) -> None:
    """A writer that dies must not leave callers parked, and its death must be heard."""

    class Broken(sqlite3.Connection):
        def executemany(self, *_args: Any) -> sqlite3.Cursor:
            raise AssertionError("a bug")

    async def use() -> None:
        async with open_sqlite(tmp_path / "store.db", connection_class=Broken) as store, trio.open_nursery() as nursery:
            nursery.start_soon(listen, store)
            outcomes = await all_call(store, put_counter)
            assert {type(outcome) for outcome in outcomes.values()} == {InternalError}
            with pytest.raises(InternalError, match="a bug"):
                await increment(store)

    heard: list[InternalError] = []

    async def listen(store: SqliteStore) -> None:
        try:
            await store.watch(lambda: None)
        except InternalError as error:
            heard.append(error)

    with pytest.raises(InternalError, match="a bug"):
        await use()
    assert len(heard) == 1
