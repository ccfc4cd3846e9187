"""Requests that we send ourselves: taking them out of the queue, and what became of the sending.

DISPATCHING is a lease: whoever takes a request has until ``dispatch_due`` to send it. If nothing is heard of it by
then, the sweep puts it back into the queue and it is sent again, with the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpfd.core import interacting
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import InteractionRecord, InteractionStatus
from tpfd.core.transact import Decision, Read, Snapshot

SEND_PAGE = 20
"""Interactions taken by one decision."""


def take_reads(interactions: Sequence[InteractionRecord]) -> tuple[Read, ...]:
    """What `take` looks at: the interactions and their executions."""
    reads = [Read(INTERACTION.key_of(record)) for record in interactions]
    executions = dict.fromkeys(EXECUTION.key(record.tenant_id, record.execution_id) for record in interactions)
    return (*reads, *(Read(key) for key in executions))


def take(
    snapshot: Snapshot, interactions: Sequence[InteractionRecord], lease_ms: int, now: int
) -> Decision[tuple[InteractionRecord, ...]]:
    """Takes those that still wait; the others were quicker elsewhere."""
    taken = []
    for seen in interactions:
        record = snapshot.get(INTERACTION.key_of(seen))
        parent = snapshot.get(EXECUTION.key(seen.tenant_id, seen.execution_id))
        if record is None or record.status is not InteractionStatus.WAITING or parent is None or parent.status.terminal:
            continue
        taken.append(interacting.sending(record, lease_ms, now))
    return Decision(tuple(taken), puts=tuple(taken))


def mark_sent(snapshot: Snapshot, seen: InteractionRecord, now: int) -> Decision[bool]:
    """The other side has it. False: it was answered, ended or taken back meanwhile, which is just as well."""
    record = snapshot.get(INTERACTION.key_of(seen))
    if record is None or not _ours(record, seen):
        return Decision(result=False)
    return Decision(result=True, puts=(interacting.sent(record, now),))


def mark_later(snapshot: Snapshot, seen: InteractionRecord, at_epoch_ms: int, message: str, now: int) -> Decision[bool]:
    """It could not be sent for now. False: as `mark_sent`."""
    record = snapshot.get(INTERACTION.key_of(seen))
    if record is None or not _ours(record, seen):
        return Decision(result=False)
    return Decision(result=True, puts=(interacting.send_later(record, at_epoch_ms, message, now),))


def _ours(record: InteractionRecord, seen: InteractionRecord) -> bool:
    return record.status is InteractionStatus.DISPATCHING and record.send_count == seen.send_count
