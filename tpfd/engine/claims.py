"""The claim loop: takes due executions as long as there are free places.

It asks the store's due index, so its queue is the store itself: nothing can be lost or forgotten between a hint and a
claim, and a backlog of any size costs no memory. Hints only decide how soon it looks. What becomes due here while
places are free and nothing else waits is claimed in the very write that makes it due (`commit`). Where hints travel
between hosts (``tpfd.engine.hints``) and name what is due, its look is a sweep after what they left lying.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import trio
from attrs import define, field

from tpfd.bell import Bell, wait_for
from tpfd.boundaries import one_pass
from tpfd.core.commit import Claimed, claim_at_once, claim_many
from tpfd.core.contracts import Contracts, runs_here
from tpfd.core.events import ExecutionPolicy
from tpfd.core.kinds import DUE_PARTITION, EXECUTION, EXECUTION_DUE
from tpfd.core.lease import Witness
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus
from tpfd.core.transact import Decide, Decision, Need, Read, Snapshot
from tpfd.due import next_due_in_s
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

T = TypeVar("T")

log = get_logger("tpfd.claim")

CLAIM_PAGE = 12
"""Executions claimed by one decision."""

BACK_OFF_S = 30.0
"""Longest wait between passes while the store is away or full."""

STUCK_PAUSE_S = 0.25
"""Pause when something is due and nothing of it can be claimed."""

HINT_PATIENCE_MS = 5_000
"""What is due for a shorter time is left to its hint; and the index is not asked more often."""

Run = Callable[[ExecutionRecord, float], Awaitable[None]]
"""Runs the attempt of a claimed execution; told Trio's time from before the claim was sent."""


@define(eq=False)
class ClaimLoop:
    """Claims work for this process.

    Attributes:
        hinted: hints name what is due.
    """

    runtime: Runtime
    run_attempt: Run
    hinted: bool = False
    _work: trio.Nursery | None = field(default=None, init=False)
    _behind: bool = field(default=True, init=False)  # something may be due that came first
    _left: bool = field(default=False, init=False)  # something was left to the next look
    _open: bool = field(default=False, init=False)
    _running_count: int = field(default=0, init=False)
    _kept_count: int = field(default=0, init=False)
    _claimed_count: int = field(default=0, init=False)
    _freed: Bell = field(factory=Bell, init=False)
    _witness: Witness = field(factory=Witness, init=False)

    @property
    def free_count(self) -> int:
        """Places for further attempts."""
        return self.runtime.settings.max_in_flight - self._running_count - self._kept_count

    async def free(self) -> None:
        """Waits until there is a free place."""
        while self.free_count <= 0:
            await self._freed.ticket().wait()

    @contextmanager
    def keeping(self, count: int) -> Iterator[None]:
        """Keeps places for a claim that is on its way."""
        self._kept_count += count
        try:
            yield
        finally:
            self._kept_count -= count
            self._freed.ring()

    async def commit(self, reads: Iterable[Read], decide: Decide[T], count: int) -> T:
        """Commits a decision that makes executions due, and claims those in the same write that can begin here at once.

        Args:
            count: executions that it makes due, at most.

        Raises:
            StoreError: see ``Store.transact``. Should the write have happened all the same, the lease brings the work
                back.
        """
        runtime = self.runtime
        places = 0
        if self._open and not self._behind and not self.hinted:
            places = max(0, min(count, self.free_count, CLAIM_PAGE))
        sent_at = trio.current_time()
        with self.keeping(places):
            done = await runtime.store.transact(
                reads,
                functools.partial(
                    claim_at_once,
                    decide=decide,
                    contracts=runtime.contracts,
                    places=places,
                    owner=runtime.node,
                    now=runtime.now(),
                    policy=runtime.policy,
                ),
            )
            for record in done.claimed:
                assert self._work is not None
                self.start(self._work, record, sent_at, self.run_attempt)
        if done.left_count:
            self._behind = self._left = True
            runtime.bells.work.ring()
        return done.result

    def start(self, work: trio.Nursery, record: ExecutionRecord, sent_at: float, run: Run) -> None:
        """Starts the attempt of an execution that was just claimed.

        Args:
            work: runs it.
            sent_at: Trio's time from before the claim was sent.
            run: runs the attempt, and what belongs to it.
        """
        self._witness.forget(record.execution_id)
        self._running_count += 1
        work.start_soon(self._attempt, record, sent_at, run)

    def tell_ended(self, record: ExecutionRecord) -> None:
        """Tells of an execution that its claim ended."""
        self.runtime.announce(record)
        log.warning("execution_ended_at_claim", execution_id=record.execution_id, code=record.error_code)

    async def _attempt(self, record: ExecutionRecord, sent_at: float, run: Run) -> None:
        try:
            await run(record, sent_at)
        finally:
            self._running_count -= 1
            self._freed.ring()

    async def idle(self) -> None:
        """Waits until no attempt runs."""
        while self._running_count:
            await self._freed.ticket().wait()

    async def run(self, work: trio.Nursery) -> NoReturn:
        """Claims for ever.

        Args:
            work: runs the attempts; they outlive this loop.
        """
        self._work, self._open = work, True
        try:
            await self._run(work)
        finally:
            self._open = False

    async def _run(self, work: trio.Nursery) -> NoReturn:
        repeating = Repeating(log)
        failures = 0
        while True:
            await self.free()
            # A bell rings for every execution that becomes due here: its hint is on its way.
            ticket = trio.Event() if self.hinted else self.runtime.bells.work.ticket()
            wait_s = await one_pass("claim", repeating, self.runtime.trouble, functools.partial(self._pass, work))
            if wait_s is None:
                failures += 1
                await trio.sleep(min(BACK_OFF_S, 0.25 * 2**failures))
            else:
                failures = 0
                await wait_for(ticket, wait_s)

    async def _pass(self, work: trio.Nursery) -> float:
        """One look at what is due; how long to wait for a hint before the next one, in seconds."""
        patience_ms = HINT_PATIENCE_MS if self.hinted else 0
        last = self.runtime.now() - patience_ms
        due = await self._look(last)
        before = self._claimed_count
        with self.keeping(len(due)):
            async with trio.open_nursery() as pages:  # side by side, so that the store commits them together
                for first in range(0, len(due), CLAIM_PAGE):
                    pages.start_soon(self._claim, work, due[first : first + CLAIM_PAGE])
        if self._claimed_count > before:
            return 0.0
        # Others were quicker, or leases have still to be seen standing still: do not spin on them.
        longest_s = STUCK_PAUSE_S if due else self.runtime.settings.sweep_interval_ms / 1000
        next_s = await next_due_in_s(self.runtime.store, EXECUTION_DUE, DUE_PARTITION, last)
        return min(longest_s, max(next_s, patience_ms / 1000))

    async def _look(self, now_epoch_ms: int) -> list[ExecutionRecord]:
        """What is due and can be run here, as much as there are places. What cannot is told of."""
        runtime = self.runtime
        due: list[ExecutionRecord] = []
        cursor: str | None = None
        self._left = False
        while True:
            page = await runtime.store.query(
                EXECUTION_DUE, DUE_PARTITION, limit=self.free_count, cursor=cursor, last=now_epoch_ms
            )
            for record in page.records:
                if runs_here(record, runtime.contracts):
                    due.append(record)
                else:
                    runtime.held.tell(record, runtime.contracts)
            if (cursor := page.cursor) is None or len(due) >= self.free_count:
                self._behind = self._left or cursor is not None or len(due) > self.free_count
                return due[: max(0, self.free_count)]

    async def _claim(self, work: trio.Nursery, due: Sequence[ExecutionRecord]) -> None:
        runtime = self.runtime
        now = runtime.now()
        sent_at = trio.current_time()
        stood = None
        if runtime.store.capabilities.shared_by_hosts:
            stood = frozenset(record.execution_id for record in due if self._has_stood(record, sent_at))
        claimed = await runtime.store.transact(
            [Read(EXECUTION.key_of(record)) for record in due],
            functools.partial(
                _claim_seen,
                seen=due,
                stood=stood,
                contracts=runtime.contracts,
                owner=runtime.node,
                now=now,
                policy=runtime.policy,
            ),
        )
        for record in claimed.records:
            self.start(work, record, sent_at, self.run_attempt)
        for record in claimed.ended:
            self.tell_ended(record)
        self._claimed_count += len(claimed.records) + len(claimed.ended)

    def _has_stood(self, record: ExecutionRecord, at_s: float) -> bool:
        """Whether we have seen its lease stand still for long enough to take it over, should it have run out."""
        return record.status is ExecutionStatus.RUNNING and self._witness.unmoved(
            record.execution_id,
            record.fence,
            record.lease_expires_epoch_ms or 0,
            lease_ms=self.runtime.policy.lease_ms,
            at_ms=at_s * 1000,
        )


def _claim_seen(
    snapshot: Snapshot,
    seen: Sequence[ExecutionRecord],
    stood: frozenset[ExecutionId] | None,
    contracts: Contracts,
    owner: str,
    now: int,
    policy: ExecutionPolicy,
) -> Decision[Claimed] | Need:
    """Claims a page. A sighting counts for the lease that was seen: not for one that was taken or renewed since.

    Args:
        stood: those whose lease was seen standing still; None: on this store nobody needs to.
    """
    keys = [EXECUTION.key_of(record) for record in seen]
    witnessed = {}
    if stood is not None:
        witnessed = {
            record.execution_id: record.execution_id in stood and _is_same_lease(record, snapshot.get(key))
            for record, key in zip(seen, keys, strict=True)
        }
    return claim_many(snapshot, keys, contracts, owner, witnessed, now, policy)


def _is_same_lease(seen: ExecutionRecord, current: ExecutionRecord | None) -> bool:
    return current is not None and (seen.fence, seen.lease_expires_epoch_ms) == (
        current.fence,
        current.lease_expires_epoch_ms,
    )
