"""The claim loop: takes due executions as long as there are free places.

It asks the store's due index, so its queue is the store itself: nothing can be lost or forgotten between a hint and a
claim, and a backlog of any size costs no memory. Hints only decide how soon it looks.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

import trio
from attrs import define, field

from tpfd.bell import Bell, wait_for
from tpfd.boundaries import one_pass
from tpfd.core.commit import Claimed, claim_many
from tpfd.core.events import ExecutionPolicy
from tpfd.core.kinds import DUE_PARTITION, EXECUTION, EXECUTION_DUE
from tpfd.core.lease import Witness
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus
from tpfd.core.transact import Decision, Need, Read, Snapshot
from tpfd.due import next_due_in_s
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

log = get_logger("tpfd.claim")

CLAIM_PAGE = 12
"""Executions claimed by one decision."""

BACK_OFF_S = 30.0
"""Longest wait between passes while the store is away or full."""

STUCK_PAUSE_S = 0.25
"""Pause when something is due and nothing of it can be claimed."""

Run = Callable[[ExecutionRecord, float], Awaitable[None]]
"""Runs the attempt of a claimed execution; told Trio's time from before the claim was sent."""


@define(eq=False)
class ClaimLoop:
    """Claims work for this process."""

    runtime: Runtime
    run_attempt: Run
    _running_count: int = field(default=0, init=False)
    _claimed_count: int = field(default=0, init=False)
    _freed: Bell = field(factory=Bell, init=False)
    _witness: Witness = field(factory=Witness, init=False)
    _strange: set[str] = field(factory=set, init=False)

    @property
    def free_count(self) -> int:
        """Places for further attempts."""
        return self.runtime.settings.max_in_flight - self._running_count

    async def _attempt(self, record: ExecutionRecord, sent_at: float) -> None:
        try:
            await self.run_attempt(record, sent_at)
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
        repeating = Repeating(log)
        failures = 0
        while True:
            if self.free_count <= 0:
                await self._freed.ticket().wait()
            ticket = self.runtime.bells.work.ticket()
            wait_s = await one_pass("claim", repeating, self.runtime.trouble, functools.partial(self._pass, work))
            if wait_s is None:
                failures += 1
                await trio.sleep(min(BACK_OFF_S, 0.25 * 2**failures))
            else:
                failures = 0
                await wait_for(ticket, wait_s)

    async def _pass(self, work: trio.Nursery) -> float:
        """One look at what is due; how long to wait for a hint before the next one, in seconds."""
        now = self.runtime.now()
        due = await self._look(now)
        before = self._claimed_count
        async with trio.open_nursery() as pages:  # side by side, so that the store commits them together
            for first in range(0, len(due), CLAIM_PAGE):
                pages.start_soon(self._claim, work, due[first : first + CLAIM_PAGE])
        if self._claimed_count > before:
            return 0.0
        # Others were quicker, or leases have still to be seen standing still: do not spin on them.
        longest_s = STUCK_PAUSE_S if due else self.runtime.settings.sweep_interval_ms / 1000
        return min(longest_s, await next_due_in_s(self.runtime.store, EXECUTION_DUE, DUE_PARTITION, now))

    async def _look(self, now_epoch_ms: int) -> list[ExecutionRecord]:
        """What is due and can be run here, as much as there are places."""
        due: list[ExecutionRecord] = []
        cursor: str | None = None
        while True:
            page = await self.runtime.store.query(
                EXECUTION_DUE, DUE_PARTITION, limit=self.free_count, cursor=cursor, last=now_epoch_ms
            )
            for record in page.records:
                if record.pipeline_id in self.runtime.programs:
                    due.append(record)
                elif record.pipeline_id not in self._strange:
                    # For a process that has loaded its pipeline; that there should be one is said once.
                    self._strange.add(record.pipeline_id)
                    log.warning("pipeline_not_loaded", pipeline=record.pipeline_id, execution_id=record.execution_id)
            if (cursor := page.cursor) is None or len(due) >= self.free_count:
                return due[: self.free_count]

    async def _claim(self, work: trio.Nursery, due: Sequence[ExecutionRecord]) -> None:
        runtime = self.runtime
        now = runtime.now()
        sent_at = trio.current_time()
        stood = None
        if runtime.store.capabilities.shared_by_hosts:
            stood = frozenset(record.execution_id for record in due if self._has_stood(record, sent_at))
        claimed = await runtime.store.transact(
            [Read(EXECUTION.key_of(record)) for record in due],
            functools.partial(_claim_seen, seen=due, stood=stood, owner=runtime.node, now=now, policy=runtime.policy),
        )
        for record in claimed.records:
            self._witness.forget(record.execution_id)
            self._running_count += 1
            work.start_soon(self._attempt, record, sent_at)
        for record in claimed.ended:
            runtime.announce(record)
            log.warning("execution_ended_at_claim", execution_id=record.execution_id, code=record.error_code)
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
    return claim_many(snapshot, keys, owner, witnessed, now, policy)


def _is_same_lease(seen: ExecutionRecord, current: ExecutionRecord | None) -> bool:
    return current is not None and (seen.fence, seen.lease_expires_epoch_ms) == (
        current.fence,
        current.lease_expires_epoch_ms,
    )
