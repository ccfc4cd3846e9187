"""The store without durability: for tests, for simulation, and for runs that may be lost with their process.

Everything happens inline. Between the first read and the last write there is no checkpoint, so a transaction is
atomic because no other task can run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import trio

from tpfd.core.records import ExecutionId, Fact, SequencedFact, TenantId
from tpfd.core.transact import Capabilities, Decide, Index, Key, Page, Read, Sort
from tpfd.stores.deciding import keep_all_facts, key_of, settle
from tpfd.stores.paging import Place, check_limit, kind_of_index, read_cursor, write_cursor

R = TypeVar("R")
T = TypeVar("T")


_Partition = tuple[Index[Any], str]
_Places = list[tuple[_Partition, Place]]


class MemoryStore:
    """Keeps records in dictionaries. See ``tpfd.stores.protocol.Store`` for what each call promises.

    Args:
        keep_fact: says which facts the journal keeps; all by default.
    """

    def __init__(self, *, keep_fact: Callable[[Fact], bool] = keep_all_facts) -> None:
        self._keep_fact = keep_fact
        self._records: dict[Key[Any], Any] = {}
        self._partitions: dict[_Partition, list[Place]] = {}
        self._journal: list[SequencedFact] = []
        self._journal_by_execution: dict[tuple[TenantId, ExecutionId], list[SequencedFact]] = {}
        self._last_seq = 0
        self._fact_keys: set[tuple[TenantId, ExecutionId, str]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=False)

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            decision = settle(reads, decide, self._records.get)
            writes = [(key, None, _places_of(key, None)) for key in decision.deletes]
            writes += [(key := key_of(record), record, _places_of(key, record)) for record in decision.puts]
            for key, record, places in writes:
                self._replace(key, record, places)
            for fact in decision.facts:
                self._append(fact)
            return decision.result
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def get(self, key: Key[R]) -> R | None:
        await trio.lowlevel.checkpoint()
        return self._records.get(key)

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        await trio.lowlevel.checkpoint()
        return [self._records.get(key) for key in keys]

    async def query(
        self,
        index: Index[R],
        partition: str,
        *,
        limit: int,
        cursor: str | None = None,
        first: Sort | None = None,
        last: Sort | None = None,
        descending: bool = False,
    ) -> Page[R]:
        kind = kind_of_index(index)
        check_limit(limit)
        behind = None if cursor is None else read_cursor(index, cursor)
        await trio.lowlevel.checkpoint()

        places = self._partitions.get((index, partition), [])
        low = 0 if first is None else bisect_left(places, first, key=_sort_of)
        high = len(places) if last is None else bisect_right(places, last, key=_sort_of)
        if descending:
            if behind is not None:
                high = min(high, bisect_left(places, behind))
            shown = places[max(low, high - limit) : max(low, high)][::-1]
        else:
            if behind is not None:
                low = max(low, bisect_right(places, behind))
            shown = places[low : min(high, low + limit)]
        more = high - low > limit
        records = tuple(self._records[kind.key(TenantId(place.tenant), place.record_id)] for place in shown)
        return Page(records, write_cursor(index, shown[-1]) if more else None)

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        await trio.lowlevel.checkpoint()
        facts = self._journal_by_execution.get((tenant_id, execution_id), [])
        return _page_of(facts, after, limit)

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        await trio.lowlevel.checkpoint()
        return _page_of(self._journal, after, limit)

    async def last_seq(self) -> int:
        await trio.lowlevel.checkpoint()
        return self._last_seq

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        await trio.lowlevel.checkpoint()

        def is_kept(fact: Fact) -> bool:
            below = fact.execution_id == execution_id or fact.execution_id.startswith(f"{execution_id}.")
            return not (below and fact.tenant_id == tenant_id)

        self._journal = [sequenced for sequenced in self._journal if is_kept(sequenced.fact)]
        self._journal_by_execution = {
            owner: facts for owner, facts in self._journal_by_execution.items() if is_kept(facts[0].fact)
        }
        self._fact_keys = {_fact_key(sequenced.fact) for sequenced in self._journal}

    async def watch(self, ring: Callable[[], None]) -> NoReturn:  # noqa: ARG002  nobody else can write here
        await trio.sleep_forever()

    def _replace(self, key: Key[Any], record: Any, places: _Places) -> None:
        for partition, place in _places_of(key, self._records.pop(key, None)):
            stood = self._partitions[partition]
            del stood[bisect_left(stood, place)]
            if not stood:
                del self._partitions[partition]
        if record is not None:
            self._records[key] = record
        for partition, place in places:
            insort(self._partitions.setdefault(partition, []), place)

    def _append(self, fact: Fact) -> None:
        if _fact_key(fact) in self._fact_keys or not self._keep_fact(fact):
            return
        self._fact_keys.add(_fact_key(fact))
        self._last_seq += 1
        sequenced = SequencedFact(self._last_seq, fact)
        self._journal.append(sequenced)
        self._journal_by_execution.setdefault((fact.tenant_id, fact.execution_id), []).append(sequenced)


def _fact_key(fact: Fact) -> tuple[TenantId, ExecutionId, str]:
    return (fact.tenant_id, fact.execution_id, fact.key)


def _places_of(key: Key[Any], record: Any) -> _Places:
    """Every place of a record in the indexes of its kind; none without a record."""
    if record is None:
        return []
    entries = [(index, index.entry(record)) for index in key.kind.indexes]
    return [
        ((index, entry.partition), Place(entry.sort, key.tenant_id, key.record_id))
        for index, entry in entries
        if entry is not None
    ]


def _sort_of(place: Place) -> Any:
    return place.sort


def _page_of(facts: list[SequencedFact], after: int, limit: int) -> list[SequencedFact]:
    check_limit(limit)
    start = bisect_right(facts, after, key=lambda sequenced: sequenced.seq)
    return facts[start : start + limit]
