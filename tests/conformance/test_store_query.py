"""How records are found through indexes, on every store."""

from __future__ import annotations

import base64
from typing import Any, TypeVar

import pytest
import trio
from attrs import evolve

from tests.conformance.samples import (
    OTHER,
    TENANT,
    UNIT_ID,
    counter_key,
    execution,
    interaction,
    put,
    remove,
)
from tpfd.core.kinds import (
    DUE_PARTITION,
    EXECUTION,
    EXECUTION_BY_STATUS,
    EXECUTION_DUE,
    INTERACTION,
    INTERACTION_BY_ASSIGNEE,
    INTERACTION_BY_STEP,
    INTERACTION_BY_UNIT,
    INTERACTION_DUE,
    pending_partition,
    status_partition,
)
from tpfd.core.records import ExecutionRecord, ExecutionStatus, InteractionRecord, InteractionStatus
from tpfd.core.transact import Decision, Index, Read, Snapshot, Sort
from tpfd.errors import InternalError, MalformedError
from tpfd.stores.protocol import Store

R = TypeVar("R")


async def pages(
    store: Store,
    index: Index[R],
    partition: str,
    limit: int,
    *,
    first: Sort | None = None,
    last: Sort | None = None,
    descending: bool = False,
) -> list[tuple[R, ...]]:
    """Every page, following the cursor."""
    found: list[tuple[R, ...]] = []
    cursor: str | None = None
    while True:
        page = await store.query(
            index, partition, limit=limit, cursor=cursor, first=first, last=last, descending=descending
        )
        found.append(page.records)
        if page.cursor is None:
            return found
        assert page.cursor != cursor, "a cursor that does not move"
        cursor = page.cursor


def due(name: str, at: int, **changes: Any) -> ExecutionRecord:
    return execution(name, next_check_epoch_ms=at, **changes)


DUE = [due("e3", 30), due("e1", 10), due("e2a", 20), due("e2b", 20), due("e9", 9), due("e100", 100)]
BY_TIME = ["e9", "e1", "e2a", "e2b", "e3", "e100"]


def names(found: list[tuple[ExecutionRecord, ...]]) -> list[str]:
    return [record.execution_id for page in found for record in page]


async def test_an_unknown_partition_is_empty(store: Store) -> None:
    page = await store.query(EXECUTION_DUE, "nowhere", limit=5)
    assert (page.records, page.cursor) == ((), None)


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
async def test_pages_come_in_order_and_whole(store: Store, limit: int) -> None:
    await put(store, *DUE)
    found = await pages(store, EXECUTION_DUE, DUE_PARTITION, limit)
    assert names(found) == BY_TIME
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
    assert found[-1]  # a cursor means that something followed
    backwards = await pages(store, EXECUTION_DUE, DUE_PARTITION, limit, descending=True)
    assert names(backwards) == BY_TIME[::-1]


@pytest.mark.parametrize("limit", [1, 2, 9])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (20, None, ["e2a", "e2b", "e3", "e100"]),
        (None, 20, ["e9", "e1", "e2a", "e2b"]),
        (10, 30, ["e1", "e2a", "e2b", "e3"]),
        (31, 99, []),
        (30, 10, []),
    ],
)
async def test_bounds_are_inclusive(
    store: Store, first: int | None, last: int | None, expected: list[str], limit: int, descending: bool
) -> None:
    await put(store, *DUE)
    found = await pages(
        store, EXECUTION_DUE, DUE_PARTITION, limit, first=first, last=last, descending=descending
    )
    assert names(found) == (expected[::-1] if descending else expected)


async def test_equal_sort_values_are_ordered_by_tenant_and_id(store: Store) -> None:
    records = [due("b", 5, tenant=OTHER), due("c", 5), due("a", 5, tenant=OTHER), due("d", 5)]
    await put(store, *records)
    assert names(await pages(store, EXECUTION_DUE, DUE_PARTITION, 1)) == ["c", "d", "a", "b"]


async def test_numbers_sort_as_numbers_and_text_as_text(store: Store) -> None:
    await put(store, *(interaction(index) for index in (10, 9, 100, 1)))
    by_number = await pages(store, INTERACTION_BY_UNIT, UNIT_ID, 2)
    assert [record.item_index for page in by_number for record in page] == [1, 9, 10, 100]
    await put(store, execution("10"), execution("9"), execution("é"), execution("Z"), execution("a"))
    partition = status_partition(TENANT, "orders", "QUEUED")
    assert names(await pages(store, EXECUTION_BY_STATUS, partition, 2)) == ["10", "9", "Z", "a", "é"]


async def test_an_entry_follows_its_record(store: Store) -> None:
    """A record moves between partitions, along the order, out of an index and back in."""
    record = interaction(1, assignee="ann", next_check_epoch_ms=50)
    await put(store, record, interaction(2, assignee="ann", next_check_epoch_ms=60))
    ann = pending_partition(TENANT, "assignee", "ann")
    bob = pending_partition(TENANT, "assignee", "bob")

    async def items(index: Index[InteractionRecord], partition: str) -> list[int]:
        return [found.item_index for found in (await store.query(index, partition, limit=9)).records]

    assert await items(INTERACTION_BY_ASSIGNEE, ann) == [1, 2]
    moved = evolve(record, assignee="bob", next_check_epoch_ms=70)
    await put(store, moved)
    assert await items(INTERACTION_BY_ASSIGNEE, ann) == [2]
    assert await items(INTERACTION_BY_ASSIGNEE, bob) == [1]
    assert await items(INTERACTION_DUE, DUE_PARTITION) == [2, 1]
    await put(store, evolve(moved, status=InteractionStatus.COMPLETED, next_check_epoch_ms=None))
    assert await items(INTERACTION_BY_ASSIGNEE, bob) == []
    assert await items(INTERACTION_BY_STEP, pending_partition(TENANT, "step", "approve")) == [2]
    assert await items(INTERACTION_DUE, DUE_PARTITION) == [2]
    assert await items(INTERACTION_BY_UNIT, UNIT_ID) == [1, 2]  # this index keeps it
    await put(store, record)
    assert await items(INTERACTION_BY_ASSIGNEE, ann) == [1, 2]
    await remove(store, INTERACTION.key_of(record))
    assert await items(INTERACTION_BY_ASSIGNEE, ann) == [2]
    assert await items(INTERACTION_BY_UNIT, UNIT_ID) == [2]


async def test_an_entry_follows_a_record_that_was_read_first(store: Store) -> None:
    """A store may write less when it knows what stood there before."""
    record = due("e1", 10)
    key = EXECUTION.key_of(record)
    await put(store, record)
    for at, status in ((20, ExecutionStatus.RUNNING), (20, ExecutionStatus.QUEUED), (None, ExecutionStatus.QUEUED)):

        def decide(snapshot: Snapshot, at: int | None = at, status: ExecutionStatus = status) -> Decision[None]:
            found = snapshot.get(key)
            assert found is not None
            return Decision(None, (evolve(found, status=status, next_check_epoch_ms=at),))

        await store.transact([Read(key)], decide)
        shown = await store.query(EXECUTION_BY_STATUS, status_partition(TENANT, "orders", status), limit=9)
        assert [found.next_check_epoch_ms for found in shown.records] == [at]
        in_time = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=9, first=20, last=20)
        assert len(in_time.records) == (0 if at is None else 1)


async def test_a_cursor_holds_while_records_come_and_go(store: Store) -> None:
    await put(store, *DUE)
    page = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=3)
    assert names([page.records]) == ["e9", "e1", "e2a"]
    await put(store, due("early", 1), due("between", 20), due("late", 200))  # equal time, id before e2a
    await remove(store, EXECUTION.key_of(due("e2a", 20)), EXECUTION.key_of(due("e3", 30)))
    rest = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=9, cursor=page.cursor)
    assert names([rest.records]) == ["e2b", "e100", "late"]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "%%%",
        "bm90IGpzb24=",
        "W10=",
        "é",
        base64.urlsafe_b64encode(b'["execution.due",true,"t","i"]').decode(),
        base64.urlsafe_b64encode(b'["execution.due",1e3,"t","i"]').decode(),
        base64.urlsafe_b64encode(b'["execution.due",99999999999999999999,"t","i"]').decode(),
        base64.urlsafe_b64encode(b"[" * 5000).decode(),
        base64.urlsafe_b64encode(b'["execution.due",1,"t","i\\ud800"]').decode(),
    ],
)
async def test_a_broken_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(MalformedError, match="cursor"):
        await store.query(EXECUTION_DUE, DUE_PARTITION, limit=3, cursor=cursor)


async def test_a_cursor_of_another_index_is_refused(store: Store) -> None:
    await put(store, *DUE)
    page = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=1)
    with pytest.raises(MalformedError, match="cursor"):
        await store.query(INTERACTION_DUE, DUE_PARTITION, limit=1, cursor=page.cursor)


async def test_a_page_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(InternalError):
        await store.query(EXECUTION_DUE, DUE_PARTITION, limit=0)


async def test_many_rows_are_paged_in_even_pages(store: Store) -> None:
    count = 2_000
    await put(store, *(interaction(index) for index in range(count)))
    found = await pages(store, INTERACTION_BY_UNIT, UNIT_ID, 97)
    assert [record.item_index for page in found for record in page] == list(range(count))
    assert {len(page) for page in found[:-1]} == {97}


async def test_a_query_sees_every_commit_before_it(store: Store) -> None:
    """At once, or soon where the store says that its indexes lag; then it shows one state or the other."""
    lags = not store.capabilities.consistent_indexes
    for at in range(20):
        await put(store, due("e", at))
        with trio.fail_after(30):
            while True:
                page = await store.query(EXECUTION_DUE, DUE_PARTITION, limit=9)
                shown = [record.next_check_epoch_ms for record in page.records]
                if shown == [at] or not lags:
                    break
        assert shown == [at]


async def test_keys_of_other_kinds_do_not_meet(store: Store) -> None:
    await put(store, execution(counter_key().record_id))
    assert await store.get(counter_key()) is None
