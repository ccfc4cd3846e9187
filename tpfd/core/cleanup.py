"""Clean-up below an ended execution, and its removal when its time is over. Paged: each page is one decision.

A terminal transition only marks the execution (``cleanup_due``); from then on nothing below it can be admitted,
because every admission looks at the execution's status. Releasing what hangs below can therefore take its time and be
taken up by anybody, page by page, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpfd.core import awaits, execution, interacting
from tpfd.core.events import Cancel, ExecutionPolicy
from tpfd.core.execution import Transition
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import ExecutionRecord, InteractionRecord, InteractionStatus, UnitRecord, UnitStatus
from tpfd.core.transact import Decision, Key, Read, Snapshot

CLEANUP_PAGE = 24
"""Records released or removed by one decision."""

PARENT = "parent"
"""Who cancels the children of an ended execution."""


def page_reads(
    ended: ExecutionRecord, interactions: Sequence[InteractionRecord], children: Sequence[ExecutionRecord]
) -> tuple[Read, ...]:
    """What `release_page` looks at."""
    return (
        Read(EXECUTION.key_of(ended)),
        *(Read(INTERACTION.key_of(record)) for record in interactions),
        *(Read(EXECUTION.key_of(record)) for record in children),
    )


def release_page(
    snapshot: Snapshot,
    ended: ExecutionRecord,
    interactions: Sequence[InteractionRecord],
    children: Sequence[ExecutionRecord],
    now: int,
    policy: ExecutionPolicy,
) -> Decision[tuple[InteractionRecord, ...]]:
    """Cancels the open ones of a page of interactions and children.

    Returns:
        The interactions that were cancelled.
    """
    record = snapshot.get(EXECUTION.key_of(ended))
    if record is None or not record.cleanup_due:
        return Decision(())
    cancelled: list[InteractionRecord] = []
    puts: list[object] = []
    for seen in interactions:
        interaction = snapshot.get(INTERACTION.key_of(seen))
        if interaction is not None and interaction.status.open:
            cancelled.append(interacting.ended(interaction, InteractionStatus.CANCELLED, now, "its execution ended"))
    for seen_child in children:
        child = snapshot.get(EXECUTION.key_of(seen_child))
        if child is not None and not child.status.terminal:
            outcome = execution.apply(child, Cancel(reason="its execution ended", actor=PARENT), now, policy)
            if isinstance(outcome, Transition):
                puts.append(outcome.record)
    return Decision(tuple(cancelled), puts=(*cancelled, *puts))


def release_unit(
    snapshot: Snapshot, ended: ExecutionRecord, unit_key: Key[UnitRecord], now: int
) -> Decision[UnitRecord | None]:
    """Cancels a unit that still waits."""
    record, unit = snapshot.get(EXECUTION.key_of(ended)), snapshot.get(unit_key)
    if record is None or not record.cleanup_due or unit is None or unit.status is not UnitStatus.WAITING_EXTERNAL:
        return Decision(None)
    cancelled = awaits.moved_unit(unit, UnitStatus.CANCELLED, now)
    return Decision(cancelled, puts=(cancelled,))


def removable(record: ExecutionRecord | None, now: int) -> bool:
    """Whether an ended execution's time is over and nothing is left to do about it."""
    return (
        record is not None
        and record.status.terminal
        and record.ttl_epoch_s is not None
        and record.ttl_epoch_s * 1000 <= now
        and not record.dead_letter_due
        and not record.cleanup_due
    )


def remove_page(snapshot: Snapshot, root: Key[ExecutionRecord], keys: Sequence[Key[Any]], now: int) -> Decision[bool]:
    """Removes a page of rows that belong to a root execution whose time is over.

    Returns:
        False when it is not over (any more): it was re-driven meanwhile.
    """
    if not removable(snapshot.get(root), now):
        return Decision(result=False)
    return Decision(result=True, deletes=tuple(keys))
