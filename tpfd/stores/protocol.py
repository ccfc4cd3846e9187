"""What every store does.

See ``tpfd.core.transact`` for the vocabulary and ``tpfd.core.kinds`` for what is stored. One conformance suite
(``tests/conformance``) runs over every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol, TypeVar

from tpfd.core.records import ExecutionId, SequencedFact, TenantId
from tpfd.core.transact import Capabilities, Decide, Index, Key, Page, Read, Sort

R = TypeVar("R")
T = TypeVar("T")


class Store(Protocol):
    """Durable records with functional transactions."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store is weaker or stronger in."""

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        """Reads, decides and writes as one atomic step.

        Args:
            reads: what `decide` will look at.
            decide: pure; may be called again after a conflict or a `Need`.

        Returns:
            The result of the decision, once what it wrote *and what it read* is durable.

        Raises:
            StoreError: the store failed; nothing of this decision was written.
            InternalError: the decision touches more than MAX_TOUCHED records, or asks for more than MAX_NEED_ROUNDS.

        **Cancellation**: not abandoned once the store has it; the call returns its outcome and the cancel is
        delivered at the caller's next checkpoint.
        """

    async def get(self, key: Key[R]) -> R | None:
        """The committed record, or None. Raises StoreError."""

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        """The committed records in the order of the keys. Raises StoreError."""

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
        """A page of one index partition, ordered by (sort, tenant, id).

        Args:
            limit: records at most.
            cursor: of the page before; None starts at the beginning.
            first: lowest sort value to show, inclusive; None: no bound.
            last: highest sort value to show, inclusive; None: no bound.
            descending: newest first; `first` and `last` keep their meaning.

        Raises:
            StoreError: the store failed.
            MalformedError: the cursor is not one of ours.
        """

    async def history(
        self, tenant_id: TenantId, execution_id: ExecutionId, *, after: int, limit: int
    ) -> list[SequencedFact]:
        """The facts of one execution with a sequence number above `after`, in order. Raises StoreError."""

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        """All facts with a sequence number above `after`, in order. Raises StoreError."""

    async def last_seq(self) -> int:
        """The highest sequence number so far; 0 when there is none. Raises StoreError."""

    async def forget(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        """Removes the facts of one execution and of its children. Raises StoreError."""

    async def watch(self, ring: Callable[[], None]) -> NoReturn:
        """Calls `ring` soon after each commit made by another process (see `Capabilities.notices_others`)."""
