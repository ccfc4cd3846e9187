"""One transaction to be, as its members see it.

The members decide one after another, each over what those before it want written. Nothing is sent until all have
decided; then the last state of each record goes out at once, under the condition that everything which a writing member
relied on is still as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import outcome
import trio
from attrs import define, field, frozen

from tpfd.core.records import Fact
from tpfd.core.transact import Decide, Decision, Key, Need, Read, Snapshot
from tpfd.errors import InternalError
from tpfd.stores.deciding import key_of, settle
from tpfd.stores.dynamodb_facts import parts_of
from tpfd.stores.dynamodb_items import Body, Items, Seen

ITEMS_MAX: Final = 100
"""Records written or checked by one transaction, and bundles of facts."""
BYTES_MAX: Final = 3_500_000
"""Bytes of one transaction: 4 MB less the keys and indexes of its items."""


class Unread(Exception):
    """A decision needs records that nobody has read yet."""

    def __init__(self, keys: frozenset[Key[Any]]) -> None:
        super().__init__()
        self.keys = keys


class Full(Exception):
    """A decision does not fit into this transaction any more."""


@define(eq=False)
class Member:
    """A caller of ``transact``, waiting.

    Attributes:
        result: of its decision; None until it is durable, or has failed.
    """

    reads: tuple[Read, ...]
    decide: Decide[Any]
    result: outcome.Outcome[Any] | None = None
    done: trio.Event = field(factory=trio.Event)

    def finish(self, result: outcome.Outcome[Any]) -> None:
        """Wakes the caller."""
        self.result = result
        self.done.set()


@frozen
class Put:
    """A record as it is to be written."""

    record: Any
    body: Body


@define(eq=False)
class Overlay:
    """The records that a transaction looks at or writes, over those in the tables. Lives for one attempt.

    Attributes:
        fresh: what was read since the members came.
        believed: what is believed about a record; None: nothing. It may be relied on by who writes, because the
            condition of the write proves it.
        writes: what is to be written; None deletes.
        guards: what writing members relied on.
        facts: what writing members add to the journal.
        results: of the members so far.
    """

    fresh: Mapping[Key[Any], Seen]
    believed: Callable[[Key[Any]], Seen | None]
    items: Items
    keep_fact: Callable[[Fact], bool]
    base: dict[Key[Any], Seen] = field(factory=dict, init=False)
    writes: dict[Key[Any], Put | None] = field(factory=dict, init=False)
    guards: set[Key[Any]] = field(factory=set, init=False)
    facts: list[Fact] = field(factory=list, init=False)
    results: dict[Member, outcome.Outcome[Any]] = field(factory=dict, init=False)
    _size_bytes: int = field(default=0, init=False)
    _bundle_count: int = field(default=0, init=False)
    _silent_reads: set[Key[Any]] = field(factory=set, init=False)

    def run(self, member: Member) -> None:
        """Runs one member's decision and keeps what it wants written. If it raises, only its own result is that.

        Raises:
            Unread: it needs records first; it left no trace.
            Full: it has to go with another transaction; it left no trace.
        """
        guarded: set[Key[Any]] = set()
        self._look(member.reads, guarded)

        def decide(snapshot: Snapshot) -> Decision[Any] | Need:
            answer = member.decide(snapshot)
            if isinstance(answer, Need):
                self._look(answer.reads, guarded)
            return answer

        def decided() -> tuple[Any, bool]:
            decision = settle(member.reads, decide, self._load)
            return decision.result, self._take(decision, guarded)

        answer = outcome.capture(decided)
        if isinstance(answer, outcome.Error):
            if isinstance(answer.error, Unread | Full) or not isinstance(answer.error, Exception):
                raise answer.error
            self.results[member], writes = answer, False
        else:
            result, writes = answer.value
            self.results[member] = outcome.Value(result)
        if not writes:
            self._silent_reads |= guarded

    @property
    def conditions(self) -> dict[Key[Any], Seen]:
        """What has to be as it was read."""
        return {key: self.base[key] for key in self.guards if key in self.base}

    def unproven(self) -> frozenset[Key[Any]]:
        """Records that members who write nothing have seen, and that no read and no condition of the write proves."""
        return frozenset(
            key for key in self._silent_reads if key not in self.fresh and key in self.base and key not in self.guards
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.writes and not self.facts

    def _look(self, reads: tuple[Read, ...], guarded: set[Key[Any]]) -> None:
        guarded.update(read.key for read in reads if read.guarded)
        missing = frozenset(read.key for read in reads if not self._knows(read))
        if missing:
            raise Unread(missing)

    def _knows(self, read: Read) -> bool:
        key = read.key
        if key in self.writes or key in self.base or key in self.fresh:
            return True
        # What is not guarded is never proven, so a belief is not enough.
        return read.guarded and self.believed(key) is not None

    def _load(self, key: Key[Any]) -> Any:
        if key in self.writes:
            put = self.writes[key]
            return None if put is None else put.record
        if key not in self.base:
            seen = self.fresh.get(key) or self.believed(key)
            if seen is None:
                raise Unread(frozenset((key,)))
            self.base[key] = seen
        return self.base[key].record

    def _take(self, decision: Decision[Any], guarded: set[Key[Any]]) -> bool:
        """Keeps what a decision wants written. Returns whether it is anything."""
        facts = [fact for fact in decision.facts if self.keep_fact(fact)]
        if not decision.touched_count and not facts:
            return False
        writes: dict[Key[Any], Put | None] = {}
        for record in decision.puts:
            key = key_of(record)
            writes[key] = Put(record, self.items.body(key, record))
        writes.update(dict.fromkeys(decision.deletes))
        size_bytes = sum(put.body.size_bytes for put in writes.values() if put is not None)
        touched = self.writes.keys() | writes.keys() | ((self.guards | guarded) & self.base.keys())
        bundle_count = self._bundle_count + len(parts_of(facts))  # at most
        if len(touched) + bundle_count > ITEMS_MAX or self._size_bytes + size_bytes > BYTES_MAX:
            if self.writes or self.facts:
                raise Full
            raise InternalError(
                f"a decision touches {len(touched)} records of {size_bytes:,} bytes; one transaction of DynamoDB "
                f"takes {ITEMS_MAX} of {BYTES_MAX:,}"
            )
        # Nothing below can fail.
        self._size_bytes += size_bytes
        self._bundle_count = bundle_count
        self.writes.update(writes)
        self.guards |= guarded
        self.facts += facts
        return True
