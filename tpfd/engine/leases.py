"""Leases as cancel scopes.

An attempt runs inside a cancel scope whose deadline is the end of its trust window. One keeper task renews all leases
of the process and moves those deadlines on. So a lease that cannot be renewed, for whatever reason (the store is away,
the loop was stopped, the row was taken), ends its attempt without anybody having to notice: the deadline simply comes.
"""

from __future__ import annotations

import functools
from typing import NoReturn

import trio
from attrs import define, field

from tpfd.bell import Bell
from tpfd.core import execution
from tpfd.core.events import Renew
from tpfd.core.execution import Refused
from tpfd.core.kinds import EXECUTION
from tpfd.core.lease import renew_after_ms, trust_ms
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus
from tpfd.core.transact import Decision, Read, Snapshot
from tpfd.errors import StoreError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.runtime import Runtime

log = get_logger("tpfd.lease")

RENEW_PAGE = 20
"""Leases renewed by one decision."""

STUCK_S = 10.0
"""Time after its lease in which a cancelled attempt must have ended; a longer one is reported."""


@define(eq=False)
class Lease:
    """The lease of one attempt.

    Attributes:
        record: the execution as it was claimed; its fence is the attempt's.
        scope: cancelled when the lease is lost; its deadline is the end of the trust window.
        renew_at: when to look at it next, on Trio's clock: to renew it, or to see whether its attempt has stopped.
        release_scope: cancelled to hand the execution back.
        live: the attempt has a live session.
        lost: why it was lost; None: it was not.
    """

    record: ExecutionRecord
    scope: trio.CancelScope
    renew_at: float
    release_scope: trio.CancelScope = field(factory=trio.CancelScope)
    live: bool = False
    lost: str | None = None
    _told_to_stop: bool = False

    @property
    def ended(self) -> bool:
        """The attempt must commit nothing more."""
        return self.scope.cancel_called

    def watch(self) -> None:
        """Looks at an ended lease whose attempt is still here: user code that does not stop is reported, once."""
        if not self._told_to_stop:
            self._told_to_stop = True
            self.renew_at = trio.current_time() + STUCK_S
            return
        self.renew_at = float("inf")
        log.error(
            "step_not_stopping",
            execution_id=self.record.execution_id,
            pipeline=self.record.pipeline_id,
            step_index=self.record.step_index,
        )

    def lose(self, reason: str) -> None:
        """The lease is somebody else's, or may be."""
        self.lost = reason
        self.scope.cancel(reason)


@define(eq=False)
class LeaseKeeper:
    """Renews the leases of all attempts of this process."""

    runtime: Runtime
    _held: dict[ExecutionId, Lease] = field(factory=dict, init=False)
    _changed: Bell = field(factory=Bell, init=False)
    _repeating: Repeating = field(factory=lambda: Repeating(log), init=False)

    @property
    def held_count(self) -> int:
        return len(self._held)

    def held(self) -> list[Lease]:
        """The leases of the attempts that run now."""
        return list(self._held.values())

    def take(self, record: ExecutionRecord, sent_at: float) -> Lease:
        """Starts to keep a lease.

        Args:
            record: as it was claimed.
            sent_at: Trio's time from before the claim was sent; the trust window counts from there.
        """
        lease_ms = self.runtime.policy.lease_ms
        lease = Lease(
            record,
            trio.CancelScope(deadline=sent_at + trust_ms(lease_ms) / 1000),
            sent_at + renew_after_ms(lease_ms) / 1000,
        )
        self._held[record.execution_id] = lease
        self._changed.ring()
        return lease

    def drop(self, lease: Lease) -> None:
        """Stops to keep it: the attempt ended."""
        if self._held.get(lease.record.execution_id) is lease:
            del self._held[lease.record.execution_id]

    async def run(self) -> NoReturn:
        """Renews what is due, for ever."""
        while True:
            ticket = self._changed.ticket()
            next_at = min((lease.renew_at for lease in self._held.values()), default=float("inf"))
            with trio.move_on_at(next_at):
                await ticket.wait()
            due = [lease for lease in self._held.values() if lease.renew_at <= trio.current_time()]
            # A lease that was given up is never renewed: whoever takes over must not wait for user code to stop.
            for lease in due:
                if lease.ended:
                    lease.watch()
            due = [lease for lease in due if not lease.ended]
            for first in range(0, len(due), RENEW_PAGE):
                await self._renew(due[first : first + RENEW_PAGE])

    async def _renew(self, leases: list[Lease]) -> None:
        lease_ms = self.runtime.policy.lease_ms
        sent_at = trio.current_time()
        reads = [Read(EXECUTION.key_of(lease.record)) for lease in leases]
        try:
            refused = await self.runtime.store.transact(reads, functools.partial(self._decide, leases))
        except StoreError as error:
            # Inside the lease it is tried again, sooner each time; the scope's deadline ends the attempt if it fails.
            retry_s = max(0.2, (leases[0].scope.deadline - sent_at) / 8)
            self._repeating.failed("lease_renewal_failed", leases=len(leases), message=error.message)
            for lease in leases:
                lease.renew_at = trio.current_time() + retry_s
            return
        self._repeating.worked("lease_renewal_works_again")
        for lease in leases:
            lease.renew_at = sent_at + renew_after_ms(lease_ms) / 1000
            if (why := refused.get(lease.record.execution_id)) is None:
                lease.scope.deadline = max(lease.scope.deadline, sent_at + trust_ms(lease_ms) / 1000)
            elif self._held.get(lease.record.execution_id) is lease:
                self.runtime.metrics.lease_losses.add(lease.record.pipeline_id)
                log.warning("lease_lost", execution_id=lease.record.execution_id, why=why.message)
                lease.lose(f"lease lost: {why.message}")

    def _decide(self, leases: list[Lease], snapshot: Snapshot) -> Decision[dict[ExecutionId, Refused]]:
        refused: dict[ExecutionId, Refused] = {}
        puts = []
        for lease in leases:
            record = snapshot.get(EXECUTION.key_of(lease.record))
            if record is None or record.status is not ExecutionStatus.RUNNING:
                # The attempt's own commit is on its way back to it, or somebody ended the execution.
                if record is None or record.fence != lease.record.fence or record.status is ExecutionStatus.CANCELLED:
                    refused[lease.record.execution_id] = Refused("ended", "the execution was ended")
                continue
            outcome = execution.apply(record, Renew(fence=lease.record.fence), self.runtime.now(), self.runtime.policy)
            if isinstance(outcome, Refused):
                refused[lease.record.execution_id] = outcome
            else:
                puts.append(outcome.record)
        return Decision(refused, puts=tuple(puts))
