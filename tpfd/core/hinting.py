"""Work hints: messages between hosts that an execution is due, and what one that arrives leads to.

A hint only says where to look. The execution is claimed by the same decision as one that was found in the due index;
what is lost, doubled, late or about something else is seen from the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from tpfd.core.commit import Claimed, claim_many
from tpfd.core.contracts import Contracts, runs_here
from tpfd.core.events import ExecutionPolicy
from tpfd.core.kinds import EXECUTION
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus, TenantId
from tpfd.core.transact import Decision, Key, Need, Read, Snapshot

CLAIMABLE = (ExecutionStatus.QUEUED, ExecutionStatus.WAIT_RETRY)
"""Statuses in which an execution waits to be claimed; the leases of running ones are watched by the sweep."""


@frozen
class Hint:
    """An execution that is due."""

    tenant_id: TenantId
    execution_id: ExecutionId

    @property
    def key(self) -> Key[ExecutionRecord]:
        return EXECUTION.key(self.tenant_id, self.execution_id)


def delay_ms(record: ExecutionRecord, now_epoch_ms: int) -> int | None:
    """How long a hint of an execution as it was just written is to be held back; None: no hint."""
    if record.status not in CLAIMABLE or record.next_check_epoch_ms is None:
        return None
    return max(0, record.next_check_epoch_ms - now_epoch_ms)


@frozen
class Hinted:
    """What a page of hints led to.

    Attributes:
        claimed: executions that are ours, or ended by the claim itself.
        later_ms: hints of executions that are not due yet, or had no room in this decision, with the time after which
            to look again.
    """

    claimed: Claimed
    later_ms: Mapping[Hint, int]


def hint_reads(hints: Sequence[Hint]) -> tuple[Read, ...]:
    """What `claim_hinted` looks at."""
    return tuple(Read(hint.key) for hint in hints)


def claim_hinted(
    snapshot: Snapshot,
    hints: Sequence[Hint],
    contracts: Contracts,
    owner: str,
    now: int,
    policy: ExecutionPolicy,
) -> Decision[Hinted] | Need:
    """Claims what the hints name and waits to be claimed.

    A hint of an execution that has ended, is parked, or is leased needs nothing: what makes it due again sends another,
    and the sweep watches the lease. A hint never takes over a lease.

    Args:
        hints: each once.
        contracts: what can be run here; the rest is left to those who have loaded it.
    """
    waiting: dict[Hint, ExecutionRecord] = {}
    for hint in hints:
        record = snapshot.get(hint.key)
        if record is not None and record.status in CLAIMABLE and runs_here(record, contracts):
            waiting[hint] = record
    done = claim_many(snapshot, [hint.key for hint in waiting], contracts, owner, {}, now, policy)
    if isinstance(done, Need):
        return done
    taken = {EXECUTION.key_of(record) for record in (*done.result.records, *done.result.ended)}
    later = {hint: delay_ms(record, now) or 0 for hint, record in waiting.items() if hint.key not in taken}
    return Decision(Hinted(done.result, later), puts=done.puts, facts=done.facts)
