"""Random transactions on every store, compared with a dictionary after each one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.samples import OTHER, TENANT, counter, execution, fact, interaction
from tests.conformance.stores import STORES
from tpfd.core.kinds import KIND_OF
from tpfd.core.records import ExecutionStatus, Fact, InteractionStatus
from tpfd.core.transact import Decision, Index, Key, Need, Read, Snapshot
from tpfd.errors import NotFound
from tpfd.stores.paging import KIND_BY_INDEX
from tpfd.stores.protocol import Store

TENANTS = st.sampled_from([TENANT, OTHER])
TIMES = st.one_of(st.none(), st.integers(1, 5))

RECORDS: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        execution,
        name=st.sampled_from(["e1", "e2", "e3"]),
        tenant=TENANTS,
        status=st.sampled_from([ExecutionStatus.QUEUED, ExecutionStatus.RUNNING, ExecutionStatus.FAILED]),
        next_check_epoch_ms=TIMES,
    ),
    st.builds(
        interaction,
        item_index=st.integers(0, 3),
        tenant=TENANTS,
        status=st.sampled_from([InteractionStatus.WAITING, InteractionStatus.DISPATCHED, InteractionStatus.COMPLETED]),
        assignee=st.sampled_from([None, "ann", "bob"]),
        delivery=st.sampled_from([None, "socket"]),
        next_check_epoch_ms=TIMES,
    ),
    st.builds(counter, index=st.integers(0, 2), count=st.integers(0, 9), tenant=TENANTS),
)
FACTS = st.builds(fact, key=st.sampled_from("abcd"), owner=st.sampled_from(["e1", "e2"]), n=st.integers(0, 9))


@frozen
class Step:
    """One transaction: what it looks at, what it writes, and whether it raises in the end."""

    puts: tuple[Any, ...]
    deletes: tuple[Any, ...]  # records whose keys are deleted
    facts: tuple[Fact, ...]
    read_first: bool  # declares the keys; otherwise writes blindly
    needed: bool  # asks for the keys by Need
    raises: bool


def key_of(record: Any) -> Key[Any]:
    return KIND_OF[type(record)].key_of(record)


STEPS = st.builds(
    Step,
    puts=st.lists(RECORDS, max_size=4, unique_by=key_of).map(tuple),
    deletes=st.lists(RECORDS, max_size=2, unique_by=key_of).map(tuple),
    facts=st.lists(FACTS, max_size=3).map(tuple),
    read_first=st.booleans(),
    needed=st.booleans(),
    raises=st.integers(0, 5).map(lambda number: number == 0),
)


class Model:
    """What a store must look like."""

    def __init__(self) -> None:
        self.records: dict[Key[Any], Any] = {}
        self.facts: list[Fact] = []

    def apply(self, decision: Decision[Any]) -> None:
        for key in decision.deletes:
            self.records.pop(key, None)
        for record in decision.puts:
            self.records[key_of(record)] = record
        for new in decision.facts:
            if all((new.execution_id, new.key) != (old.execution_id, old.key) for old in self.facts):
                self.facts.append(new)

    def partitions(self) -> dict[tuple[Index[Any], str], list[Any]]:
        found: dict[tuple[Index[Any], str], list[tuple[Any, Any]]] = {}
        for key, record in self.records.items():
            for index in key.kind.indexes:
                entry = index.entry(record)
                if entry is not None:
                    place = (entry.sort, key.tenant_id, key.record_id)
                    found.setdefault((index, entry.partition), []).append((place, record))
        return {where: [record for _, record in sorted(rows, key=_place)] for where, rows in found.items()}


def _place(row: tuple[Any, Any]) -> Any:
    return row[0]


async def run(store: Store, steps: list[list[Step]]) -> None:
    model = Model()
    known: set[tuple[Index[Any], str]] = set()
    for together in steps:
        # Tasks that start together may be one group of a store that groups; any order may come out, so the model
        # applies the decisions in the order in which they were made. A store that several hosts write to decides
        # again after a conflict: there they go one at a time.
        if store.capabilities.shared_by_hosts:
            for step in together:
                await transact(store, step, model)
        else:
            async with trio.open_nursery() as nursery:
                for step in together:
                    nursery.start_soon(transact, store, step, model)
        partitions = model.partitions()
        known |= partitions.keys()
        await compare(store, model, partitions, known)


async def transact(store: Store, step: Step, model: Model) -> None:
    put_keys = [key_of(record) for record in step.puts]
    deletes = tuple(key for record in step.deletes if (key := key_of(record)) not in put_keys)
    reads = tuple(Read(key) for key in [*put_keys, *deletes])

    def decide(snapshot: Snapshot) -> Decision[None] | Need:
        looked = step.read_first or step.needed
        if looked and reads and not snapshot.has_read(reads[0].key):
            return Need(reads)
        for read in reads if looked else ():
            assert snapshot.get(read.key) == model.records.get(read.key)
        if step.raises:
            raise NotFound("on purpose")
        decision = Decision(None, step.puts, deletes, step.facts)
        if not store.capabilities.shared_by_hosts:
            model.apply(decision)
        return decision

    try:
        await store.transact(reads if step.read_first else (), decide)
    except NotFound:
        assert step.raises
        return
    if store.capabilities.shared_by_hosts:
        model.apply(Decision(None, step.puts, deletes, step.facts))


async def compare(
    store: Store, model: Model, partitions: dict[tuple[Index[Any], str], list[Any]], known: set[tuple[Index[Any], str]]
) -> None:
    assert await store.get_many(list(model.records)) == list(model.records.values())
    for index, partition in known:
        expected = partitions.get((index, partition), [])
        page = await store.query(index, partition, limit=2)
        found = list(page.records)
        while page.cursor is not None and len(found) <= len(expected):
            page = await store.query(index, partition, limit=2, cursor=page.cursor)
            found += page.records
        assert found == expected, f"{KIND_BY_INDEX[index].name}.{index.name} {partition}"
        backwards = await store.query(index, partition, limit=99, descending=True)
        assert list(backwards.records) == expected[::-1]
    assert [sequenced.fact for sequenced in await store.feed(after=0, limit=999)] == model.facts


@pytest.mark.parametrize("name", sorted(STORES))
def test_random_transactions(name: str) -> None:
    # A store behind a socket is a hundred times slower.
    @settings(max_examples=8 if name == "dynamodb" else 40, deadline=None, derandomize=True)
    @given(st.lists(st.lists(STEPS, min_size=1, max_size=4), max_size=6))
    def examples(steps: list[list[Step]]) -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as folder:
                async with STORES[name](Path(folder)) as store:
                    await run(store, steps)

        trio.run(main)

    examples()


def test_the_model_notices_a_store_that_forgets_an_index() -> None:
    """The comparison can fail."""
    model = Model()
    record = execution("e1", next_check_epoch_ms=5)

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with STORES["memory"](Path(folder)) as store:
                model.apply(Decision(None, (evolve(record, next_check_epoch_ms=6),)))
                await transact(store, Step((record,), (), (), False, False, False), Model())
                await compare(store, model, model.partitions(), set(model.partitions()))

    with pytest.raises(AssertionError):
        trio.run(main)
