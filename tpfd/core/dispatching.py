"""What an attempt opens towards the outside: units and interactions, under its fence.

Opening is repeatable. The ids are derived, so a second run of the same attempt finds what the first one opened: an
answered item is handed on from its record, one that is out is attached to, one that is new is asked. An item that
ended without an answer in an *earlier* re-drive is opened again; in this one it fails the execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from attrs import frozen

from tpfd.core import awaits, execution, ids, interacting
from tpfd.core.awaits import AwaitTerms, Request
from tpfd.core.budget import Holder, Place, Takings, place_reads
from tpfd.core.events import ExecutionPolicy, OpenUnit, Release, Suspend
from tpfd.core.execution import Outcome, Refused, Transition
from tpfd.core.kinds import EXECUTION, INTERACTION, UNIT
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    InteractionRecord,
    InteractionStatus,
    Payload,
    UnitId,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Decision, Read, Snapshot

DISPATCH_PAGE = 12
"""Items opened by one decision: each may write itself and its slot of the budget."""


class Opened(StrEnum):
    """What became of one item."""

    SENT = "sent"  # new or opened again
    ATTACHED = "attached"  # it is out already
    ANSWERED = "answered"  # hand it on from its record, unless it was rejected
    ENDED = "ended"  # it timed out, failed or was cancelled: the execution cannot go on
    CHANGED = "changed"  # the same item has another content now: the source changed under a retry


@frozen
class OpenedItem:
    """An item with its interaction as it now stands.

    Attributes:
        place: where it goes, of those that were offered; None: nowhere now.
    """

    opened: Opened
    record: InteractionRecord
    place: Place | None = None

    @property
    def first_out(self) -> bool:
        """This write was the first to hand it to its transport: to a socket, or to be listed."""
        record = self.record
        out = self.opened is Opened.SENT and record.status is InteractionStatus.DISPATCHED
        return out and (record.version == 1 or record.send_count == 1)


@frozen
class OpenedItems:
    """Either the items in the order of the requests, or why nothing was opened.

    Attributes:
        occupied: slots of the budget that were not free after all.
    """

    items: tuple[OpenedItem, ...] = ()
    refused: Refused | None = None
    occupied: frozenset[int] = frozenset()


@frozen
class Parked:
    """What came of a scalar await.

    Attributes:
        asked: the question; None: none was opened.
    """

    outcome: Outcome
    asked: OpenedItem | None = None


def owned(record: ExecutionRecord | None, fence: int) -> Refused | None:
    """The guard of an attempt outside the transition table: RUNNING, under its own fence."""
    if record is None:
        return Refused("not_found", "the execution is gone")
    if record.status is not ExecutionStatus.RUNNING or record.fence != fence:
        return Refused("lost_lease", f"it is {record.status} under fence {record.fence}, not {fence}")
    return None


def open_stream(
    snapshot: Snapshot,
    claimed: ExecutionRecord,
    terms: AwaitTerms,
    now: int,
    policy: ExecutionPolicy,
) -> Decision[UnitRecord | Refused]:
    """Opens (or opens again, or finds) the itemised unit that a live stream will ask through.

    Reads: the execution and its unit.
    """
    record = snapshot.get(EXECUTION.key_of(claimed))
    if lost := owned(record, claimed.fence):
        return Decision(lost)
    assert record is not None
    unit_id = ids.unit_id(record.execution_id, terms.step_index)
    unit = snapshot.get(UNIT.key(record.tenant_id, unit_id))
    puts: list[object] = []
    if unit is None:
        unit = awaits.new_unit(record, terms, itemised=True, now=now)
        puts.append(unit)
    elif unit.redrive_count < record.redrive_count:
        unit = awaits.reopened_unit(unit, record, now)
        puts.append(unit)
    facts: tuple[Fact, ...] = ()
    if record.await_unit_id != unit_id:
        outcome = execution.apply(record, OpenUnit(fence=claimed.fence, unit_id=unit_id), now, policy)
        if isinstance(outcome, Refused):
            return Decision(outcome)
        puts.append(outcome.record)
        facts = outcome.facts
    return Decision(unit, puts=tuple(puts), facts=facts)


def stream_reads(claimed: ExecutionRecord, unit_id: UnitId) -> tuple[Read, ...]:
    """What `open_stream` looks at."""
    return (Read(EXECUTION.key_of(claimed)), Read(UNIT.key(claimed.tenant_id, unit_id)))


def item_reads(
    claimed: ExecutionRecord, unit_id: UnitId, terms: AwaitTerms, requests: Sequence[Request], places: Sequence[Place]
) -> tuple[Read, ...]:
    """What `open_items` looks at."""
    return (
        *stream_reads(claimed, unit_id),
        *place_reads(terms.budget_scope, places),
        *(
            Read(INTERACTION.key(claimed.tenant_id, ids.interaction_id(unit_id, request.item_index)))
            for request in requests
        ),
    )


def open_items(
    snapshot: Snapshot,
    claimed: ExecutionRecord,
    unit_id: UnitId,
    terms: AwaitTerms,
    requests: Sequence[Request],
    places: Sequence[Place],
    now: int,
) -> Decision[OpenedItems]:
    """Opens a page of items.

    Args:
        requests: at most DISPATCH_PAGE.
        places: where new items can go at once, one per item at most; further ones wait in the queue of the step.
    """
    record = snapshot.get(EXECUTION.key_of(claimed))
    if lost := owned(record, claimed.fence):
        return Decision(OpenedItems(refused=lost))
    assert record is not None
    unit = snapshot.get(UNIT.key(record.tenant_id, unit_id))
    if unit is None or unit.status is not UnitStatus.WAITING_EXTERNAL:
        status = "gone" if unit is None else unit.status
        timed_out = unit is not None and unit.status is UnitStatus.TIMED_OUT
        code = "await_timeout" if timed_out else "await_failed"
        return Decision(OpenedItems(refused=Refused(code, f"the await unit is {status}")))
    takings = Takings(snapshot, terms.budget_scope, list(places), now)
    items: list[OpenedItem] = []
    puts: list[object] = []
    causation = execution.transition_key(record)
    for request in requests:
        interaction_id = ids.interaction_id(unit_id, request.item_index)
        holder = Holder(record.tenant_id, interaction_id, record.redrive_count)
        known = snapshot.get(INTERACTION.key(unit.tenant_id, interaction_id))
        if known is None and request.passes_as is not None:
            passed = interacting.passed(record, unit, terms, request, causation_id=causation, now=now)
            puts.append(passed)
            items.append(OpenedItem(Opened.ANSWERED, passed))
        elif known is None:
            taken = takings.take(holder)
            made = interacting.opened(record, unit, terms, request, causation_id=causation, place=taken, now=now)
            puts.append(made)
            items.append(OpenedItem(Opened.SENT, made, None if taken is None else taken.place))
        elif known.request_digest != request.digest:
            items.append(OpenedItem(Opened.CHANGED, known))
        elif known.status is InteractionStatus.COMPLETED:
            items.append(OpenedItem(Opened.ANSWERED, known))
        elif known.redrive_count < record.redrive_count:
            out = known.status.open
            taken = None if out else takings.take(holder)
            again = interacting.reopened(known, unit, record.redrive_count, place=taken, now=now)
            puts.append(again)
            place = None if taken is None else taken.place
            items.append(OpenedItem(Opened.ATTACHED if out else Opened.SENT, again, place))
        elif known.status.open:
            items.append(OpenedItem(Opened.ATTACHED, known))
        else:
            items.append(OpenedItem(Opened.ENDED, known))
    if any(item.opened is Opened.CHANGED for item in items):
        # Nothing is sent from a page of which a part is not to be trusted.
        return Decision(OpenedItems(tuple(items)))
    opened = OpenedItems(tuple(items), occupied=frozenset(takings.occupied))
    return Decision(opened, puts=(*puts, *takings.permits))


def scalar_reads(claimed: ExecutionRecord, unit_id: UnitId) -> tuple[Read, ...]:
    """What `park_scalar` looks at."""
    return (
        *stream_reads(claimed, unit_id),
        Read(INTERACTION.key(claimed.tenant_id, ids.interaction_id(unit_id, 0))),
    )


def park_scalar(
    snapshot: Snapshot,
    claimed: ExecutionRecord,
    terms: AwaitTerms,
    request: Request,
    now: int,
    policy: ExecutionPolicy,
) -> Decision[Parked]:
    """Asks the one question of a scalar await and parks the execution on it, in one transaction.

    If the answer is there already (a re-drive), the execution goes straight on behind the await.
    """
    record = snapshot.get(EXECUTION.key_of(claimed))
    if lost := owned(record, claimed.fence):
        return Decision(Parked(lost))
    assert record is not None
    unit_id = ids.unit_id(record.execution_id, terms.step_index)
    unit = snapshot.get(UNIT.key(record.tenant_id, unit_id))
    interaction = snapshot.get(INTERACTION.key(record.tenant_id, ids.interaction_id(unit_id, 0)))
    asked = request.payload(terms.input_type)
    event = Suspend(fence=claimed.fence, unit_id=unit_id, step_index=terms.step_index, input=asked)
    outcome = execution.apply(record, event, now, policy)
    if isinstance(outcome, Refused):
        return Decision(Parked(outcome))
    if unit is None or interaction is None:
        unit = awaits.new_unit(record, terms, itemised=False, now=now)
        interaction = interacting.opened(
            record, unit, terms, request, causation_id=execution.transition_key(record), place=None, now=now
        )
    elif interaction.request_digest != request.digest:
        return Decision(Parked(Refused("source_changed", f"step {terms.step_id} was asked something else before")))
    elif interaction.status is InteractionStatus.COMPLETED:
        return _go_on(outcome, unit, awaits.answer_of(interaction), now, policy)
    else:
        unit = awaits.reopened_unit(unit, record, now)
        interaction = interacting.reopened(interaction, unit, record.redrive_count, place=None, now=now)
    dispatched = execution.fact(
        record,
        FactType.INTERACTION_DISPATCHED,
        f"dispatched-{interaction.interaction_id}-{record.redrive_count}",
        now,
        interactionId=interaction.interaction_id,
        stepId=terms.step_id,
        deadlineEpochMs=interaction.deadline_epoch_ms,
    )
    parked = Parked(outcome, OpenedItem(Opened.SENT, interaction))
    return Decision(parked, puts=(outcome.record, unit, interaction), facts=(dispatched, *outcome.facts))


def _go_on(
    suspended: Transition, unit: UnitRecord, answer: Payload, now: int, policy: ExecutionPolicy
) -> Decision[Parked]:
    """Releases in the same breath what was just suspended."""
    event = Release(unit_id=unit.unit_id, step_index=unit.continue_index, input=answer)
    released = execution.follow(suspended, event, now, policy)
    if isinstance(released, Refused):
        return Decision(Parked(released))
    done = awaits.moved_unit(unit, UnitStatus.COMPLETED, now)
    return Decision(Parked(released), puts=(released.record, done), facts=released.facts)
