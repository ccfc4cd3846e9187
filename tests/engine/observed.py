"""A memory store that remembers every write: what stood there, what stands there now, who wrote it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from attrs import evolve, frozen

from tpfd.core.budget import is_held
from tpfd.core.kinds import INTERACTION, KIND_OF, PERMIT
from tpfd.core.records import PermitRecord
from tpfd.core.transact import Capabilities, Decide, Decision, Index, Key, Kind, Need, Read, Snapshot
from tpfd.stores.memory import MemoryStore

R = TypeVar("R")
T = TypeVar("T")


@frozen
class Write:
    """One record in one decision.

    Attributes:
        decision: number of the decision; records of one decision were written together.
        writer: name of the process; "" for the test itself.
        before: None: it is new.
        after: None: it was removed.
    """

    decision: int
    writer: str
    key: Key[Any]
    before: Any
    after: Any


class ObservedStore(MemoryStore):
    """See the module.

    Attributes:
        writes: all of them, in order.
        on_write: called after each, for what can only be judged at that moment.
    """

    def __init__(self, *, shared_by_hosts: bool = False) -> None:
        super().__init__()
        self.writes: list[Write] = []
        self.on_write: Callable[[Write], None] = lambda _: None
        self._shared_by_hosts = shared_by_hosts
        self._writer = ""
        self._decision = 0

    @property
    def capabilities(self) -> Capabilities:
        return evolve(super().capabilities, shared_by_hosts=self._shared_by_hosts)

    def slots_held(self) -> list[PermitRecord]:
        """Slots of all budgets that are in use."""
        return [
            permit
            for permit in self.rows(PERMIT)
            if is_held(permit, self._records.get(INTERACTION.key(permit.owner_tenant_id, permit.interaction_id)))
        ]

    def note_writer(self, name: str) -> None:
        """Who makes the next decision."""
        self._writer = name

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        writer, self._writer = self._writer, ""
        decided: list[Decision[T]] = []

        def noted(snapshot: Snapshot) -> Decision[T] | Need:
            answer = decide(snapshot)
            if isinstance(answer, Decision):
                self._decision += 1
                touched = [(KIND_OF[type(put)].key_of(put), put) for put in answer.puts]
                touched += [(key, None) for key in answer.deletes]
                new = [Write(self._decision, writer, key, self._records.get(key), after) for key, after in touched]
                self.writes.extend(new)
                decided.append(answer)
            return answer

        first = len(self.writes)
        done = await super().transact(reads, noted)
        for write in self.writes[first:]:
            self.on_write(write)
        return done

    def rows(self, kind: Kind[R]) -> list[R]:
        """All records of a kind, by id."""
        keys = sorted((key for key in self._records if key.kind is kind), key=lambda key: key.record_id)
        return [self._records[key] for key in keys]

    def in_index(self, index: Index[R], partition: str) -> list[R]:
        """The records of an index partition in order."""
        (kind,) = (kind for kind in KIND_OF.values() if index in kind.indexes)
        places = self._partitions.get((index, partition), [])
        return [self._records[Key(kind, place.tenant, place.record_id)] for place in places]  # type: ignore[arg-type]
