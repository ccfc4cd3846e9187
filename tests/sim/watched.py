"""The one store of a cluster, with eyes on every decision and on every transition that was part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import trio
from attrs import frozen

from tests.engine.observed import ObservedStore, Write
from tpfd.bell import Bell
from tpfd.core import execution
from tpfd.core.events import Event, ExecutionPolicy
from tpfd.core.execution import Outcome, Transition
from tpfd.core.kinds import KIND_OF
from tpfd.core.records import ExecutionRecord
from tpfd.core.transact import Decide, Decision, Key, Need, Read, Snapshot

T = TypeVar("T")
NOTICED_AFTER_S = 0.05
"""When the processes of one host hear of one another's commits."""


@frozen
class Applied:
    """A transition that a decision made of an execution."""

    before: ExecutionRecord
    event: Event
    after: ExecutionRecord


class WatchedStore(ObservedStore):
    """A store that tells of its decisions.

    Args:
        one_host: its processes share one clock, and notice one another's commits; else it is shared by several hosts.

    Attributes:
        on_decision: told the writer, the decision and its transitions, before the decision is written.
        on_written: told each write of a decision when all of it is written and nobody else has run since.
    """

    def __init__(self, *, one_host: bool) -> None:
        super().__init__(shared_by_hosts=not one_host)
        self._committed = Bell()
        self.on_decision: Callable[[str, Decision[Any], list[Applied]], None] = lambda *_: None
        self.on_written: Callable[[Write], None] = lambda _: None
        self._applied: list[Applied] = []
        self._to_write: list[Write] = []
        self._written_count = 0

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        writer = self._writer

        def watched(snapshot: Snapshot) -> Decision[T] | Need:
            self._applied.clear()
            answer = decide(snapshot)
            if isinstance(answer, Decision):
                # A decision may try a transition and then not write it.
                written = {_key_of(put) for put in answer.puts}
                kept = [one for one in self._applied if one.after is one.before or _key_of(one.after) in written]
                self.on_decision(writer, answer, kept)
                touched = [*((key, None) for key in answer.deletes), *((_key_of(put), put) for put in answer.puts)]
                self._to_write = [Write(0, writer, key, self._records.get(key), after) for key, after in touched]
                self._written_count = 0
            return answer

        return await super().transact(reads, watched)

    def _replace(self, key: Key[Any], record: Any, places: Any) -> None:
        super()._replace(key, record, places)
        self._written_count += 1
        if self._written_count == len(self._to_write):
            self._committed.ring()
            for write in self._to_write:
                self.on_written(write)

    async def watch(self, ring: Callable[[], None]) -> NoReturn:
        while True:
            await self._committed.ticket().wait()
            await trio.sleep(NOTICED_AFTER_S)
            ring()

    def note_transition(self, record: ExecutionRecord, event: Event, outcome: Outcome) -> None:
        """A transition was tried."""
        if isinstance(outcome, Transition):
            self._applied.append(Applied(record, event, outcome.record))

    def get_now(self, key: Key[T]) -> T | None:
        """The record under a key at this moment, without a checkpoint."""
        record: T | None = self._records.get(key)
        return record


def _key_of(record: Any) -> Key[Any]:
    return KIND_OF[type(record)].key_of(record)


@contextmanager
def watching(store: WatchedStore) -> Iterator[None]:
    """Tells the store of every transition, for as long as the block lasts."""
    usual = execution.apply

    def apply(record: ExecutionRecord, event: Event, now_epoch_ms: int, policy: ExecutionPolicy) -> Outcome:
        outcome = usual(record, event, now_epoch_ms, policy)
        store.note_transition(record, event, outcome)
        return outcome

    execution.apply = apply
    try:
        yield
    finally:
        execution.apply = usual
