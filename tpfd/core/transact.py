"""The store contract's vocabulary: keys, reads, decisions, indexes.

A store runs *functional transactions*: it reads the records that a caller names, gives them to a pure function, and
writes what the function decided, all or nothing. The rules therefore live in pure functions of ``tpfd.core``, once,
and every store is only a way to make read, decide and write atomic.

A decide function may run several times (a conflict, or ``Need``), so it must not have effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from tpfd.core.records import Fact, TenantId

R = TypeVar("R")
T = TypeVar("T")

MAX_TOUCHED = 25
"""Records that one decision may write, so that every store can make it atomic."""

MAX_NEED_ROUNDS = 3
"""Times that a decide function may ask for more keys."""

Sort = str | int
"""What an index is ordered by: a time (int) or an id (str); one type per index."""


@frozen
class IndexEntry:
    """Where a record stands in an index: in ``partition``, ordered by ``sort``, then tenant and id."""

    partition: str
    sort: Sort


@frozen(eq=False)
class Index(Generic[R]):
    """A named order over the records of one kind.

    Attributes:
        name: snake_case, unique within the kind; names columns and tables.
        entry: pure function; None keeps the record out (a sparse index).
        sharded: all records may share few partitions; a store that partitions by key spreads it.
    """

    name: str
    entry: Callable[[R], IndexEntry | None]
    sharded: bool = False


@frozen(eq=False)
class Kind(Generic[R]):
    """One kind of record: its class, its key, its indexes.

    Attributes:
        name: snake_case; names the table.
        id_of: tenant and id of a record; the id is unique within kind and tenant.
    """

    name: str
    record_type: type[R]
    id_of: Callable[[R], tuple[TenantId, str]]
    indexes: tuple[Index[R], ...] = ()

    def key(self, tenant_id: TenantId, record_id: str) -> Key[R]:
        return Key(self, tenant_id, record_id)

    def key_of(self, record: R) -> Key[R]:
        return Key(self, *self.id_of(record))


@frozen
class Key(Generic[R]):
    """Names one record."""

    kind: Kind[R]
    tenant_id: TenantId
    record_id: str


@frozen
class Read:
    """A record that a decision looks at.

    Attributes:
        guarded: the decision must not commit if this record changed meanwhile, even if it is only read. A hint may be
            a little old.
    """

    key: Key[Any]
    guarded: bool = True


class Snapshot:
    """The records that a decide function sees."""

    __slots__ = ("_records",)

    def __init__(self, records: Mapping[Key[Any], Any]) -> None:
        self._records = records

    def get(self, key: Key[R]) -> R | None:
        """The record, or None when there is none.

        Raises:
            KeyError: the key was neither declared as a read nor asked for by ``Need``.
        """
        record: R | None = self._records[key]
        return record

    def has_read(self, key: Key[Any]) -> bool:
        """Whether the key was read (then ``get`` answers)."""
        return key in self._records


@frozen
class Decision(Generic[T]):
    """What a decide function wants written, and its answer. A refusal is a decision without writes.

    Attributes:
        puts: whole records, at most MAX_TOUCHED with the deletes.
        facts: appended to the journal in the same transaction.
    """

    result: T
    puts: tuple[Any, ...] = ()
    deletes: tuple[Key[Any], ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def touched_count(self) -> int:
        return len(self.puts) + len(self.deletes)


@frozen
class Need:
    """A decide function only now knows what else to read; it is called again with these keys read too."""

    reads: tuple[Read, ...]


Decide = Callable[[Snapshot], "Decision[T] | Need"]


@frozen
class Page(Generic[R]):
    """Records in index order.

    Attributes:
        cursor: opaque text to go on from; None when nothing followed at the time of reading.
    """

    records: tuple[R, ...]
    cursor: str | None = None


@frozen
class Capabilities:
    """What a store is weaker or stronger in. Everything else is the same on every store."""

    durable: bool = True  # survives the process
    shared_by_hosts: bool = False  # several clocks write to it: takeover also needs what the claimer has seen itself
    atomic_facts: bool = True  # facts are in the journal when the transaction returns
    consistent_indexes: bool = True  # a query sees every commit that returned before it
    notices_others: bool = False  # other processes' commits ring without a sweep
    limits: Mapping[str, int] = field(factory=dict)
