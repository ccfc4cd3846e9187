"""How an interaction ends: by a completion, by its deadline, or with its execution. One function for each.

Completion and deadline meet in one transaction on the interaction, so exactly one wins and the loser is told. What was
refused is kept as a ``LateRecord``: nothing that the outside said disappears.
"""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve, frozen

from tpfd.core import awaits, execution, interacting, itemised
from tpfd.core.awaits import Completion
from tpfd.core.cleanup import PARENT
from tpfd.core.events import Cancel, ExecutionPolicy, Release, UnitEnded
from tpfd.core.execution import Refused, Transition
from tpfd.core.kinds import EXECUTION, INTERACTION, UNIT
from tpfd.core.late import LateReason, refused
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    Fact,
    FactType,
    InteractionRecord,
    InteractionStatus,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Decision, Need, Read, Snapshot

TIMEOUT_ACTOR = "timeout"
"""Who answers when `onTimeout` gives the answer."""


class Verdict(StrEnum):
    """What became of a completion or a deadline."""

    ADMITTED = "admitted"
    DUPLICATE = "duplicate"  # equal to the admitted one
    CONFLICTING = "conflicting"  # another answer was admitted
    TIMED_OUT = "timed_out"  # the deadline was first
    ENDED = "ended"  # the interaction or its execution is over
    NOT_FOUND = "not_found"
    NOT_DUE = "not_due"  # a deadline that has not come


@frozen(kw_only=True)
class Ended:
    """What came of it.

    Attributes:
        interaction: as it now stands; None with NOT_FOUND.
        due: executions that became due and whose workers should be told.
        unit_ended: the unit ended badly; its live session should look.
        queued: it waits to be sent (again).
    """

    verdict: Verdict
    interaction: InteractionRecord | None = None
    due: tuple[ExecutionId, ...] = ()
    unit_ended: bool = False
    queued: bool = False


def reads(interaction: InteractionRecord) -> tuple[Read, ...]:
    """What `admit` and `expire` look at."""
    return (
        Read(INTERACTION.key_of(interaction)),
        Read(UNIT.key(interaction.tenant_id, interaction.unit_id)),
        Read(EXECUTION.key(interaction.tenant_id, interaction.execution_id)),
    )


@frozen
class _Scene:
    """The three records of an interaction, as the transaction sees them.

    Attributes:
        over: its execution has ended, or the one whose item that execution continues.
    """

    snapshot: Snapshot
    interaction: InteractionRecord
    unit: UnitRecord
    parent: ExecutionRecord
    over: bool

    @property
    def from_before(self) -> bool:
        """Its execution was re-driven and has not come to it again: the old deadline does not count any more."""
        return self.interaction.redrive_count < self.parent.redrive_count


def _scene(snapshot: Snapshot, seen: InteractionRecord) -> _Scene | Need | None:
    interaction = snapshot.get(INTERACTION.key_of(seen))
    unit = snapshot.get(UNIT.key(seen.tenant_id, seen.unit_id))
    parent = snapshot.get(EXECUTION.key(seen.tenant_id, seen.execution_id))
    if interaction is None or unit is None or parent is None:
        return None
    over = parent.status.terminal
    if parent.parent_execution_id is not None:
        root_key = EXECUTION.key(parent.tenant_id, parent.parent_execution_id)
        if not snapshot.has_read(root_key):
            return Need((Read(root_key),))
        root = snapshot.get(root_key)
        over = over or root is None or root.status.terminal
    return _Scene(snapshot, interaction, unit, parent, over)


def admit(
    snapshot: Snapshot, seen: InteractionRecord, completion: Completion, now: int, policy: ExecutionPolicy
) -> Decision[Ended] | Need:
    """Admits an answer, or says truthfully why not."""
    scene = _scene(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None:
        return Decision(Ended(verdict=Verdict.NOT_FOUND))
    interaction = scene.interaction
    if interaction.status is InteractionStatus.COMPLETED:
        if interaction.response_digest == completion.digest:
            return Decision(Ended(verdict=Verdict.DUPLICATE, interaction=interaction))
        return _late(scene, completion, Verdict.CONFLICTING, now)
    if interaction.status is InteractionStatus.TIMED_OUT:
        return _late(scene, completion, Verdict.TIMED_OUT, now)
    if not interaction.status.open or scene.over:
        return _late(scene, completion, Verdict.ENDED, now)
    if now >= interaction.deadline_epoch_ms and not scene.from_before:
        expired = _expire(scene, now, policy)
        if isinstance(expired, Need):
            return expired
        return _both(expired, _late(scene, completion, Verdict.TIMED_OUT, now))
    return _complete(scene, completion, now, policy)


def expire(snapshot: Snapshot, seen: InteractionRecord, now: int, policy: ExecutionPolicy) -> Decision[Ended] | Need:
    """Does what is due by time: a reminder, an escalation, or the end by the deadline."""
    scene = _scene(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None:
        return Decision(Ended(verdict=Verdict.NOT_FOUND))
    interaction = scene.interaction
    if not interaction.status.open:
        return Decision(Ended(verdict=Verdict.ENDED, interaction=interaction))
    if scene.over:
        return _call_off(scene, now, policy)
    if scene.from_before:
        # Put off until the execution comes to it; only that begins its time in the new drive.
        again = interacting.reopened(interaction, scene.unit, interaction.redrive_count, place=None, now=now)
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=again), puts=(again,))
    if now >= interaction.deadline_epoch_ms:
        return _expire(scene, now, policy)
    if interaction.dispatch_due_epoch_ms is not None and now >= interaction.dispatch_due_epoch_ms:
        waiting = interacting.taken_back(interaction, now)
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=waiting, queued=True), puts=(waiting,))
    if interaction.remind_at_epoch_ms is not None and now >= interaction.remind_at_epoch_ms:
        key = f"reminded-{interaction.interaction_id}-{interaction.redrive_count}"
        after = interacting.reminded(interaction, now)
        fact = _fact(scene, FactType.INTERACTION_REMINDED, key, now, assignee=interaction.assignee)
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=after), puts=(after,), facts=(fact,))
    if interaction.escalate_at_epoch_ms is not None and now >= interaction.escalate_at_epoch_ms:
        key = f"escalated-{interaction.interaction_id}-{interaction.redrive_count}"
        after = interacting.escalated(interaction, now)
        fact = _fact(
            scene, FactType.INTERACTION_ESCALATED, key, now, fromAssignee=interaction.assignee, to=after.assignee
        )
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=after), puts=(after,), facts=(fact,))
    return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=interaction))


def _call_off(scene: _Scene, now: int, policy: ExecutionPolicy) -> Decision[Ended]:
    """Ends an interaction whose execution, or whose execution's parent, is over.

    A child goes with it. Without its question nothing would ever wake it again, should the parent be re-driven now.
    """
    interaction = scene.interaction
    after = interacting.ended(interaction, InteractionStatus.CANCELLED, now, "its execution ended")
    puts: tuple[object, ...] = (after,)
    facts: tuple[Fact, ...] = ()
    outcome = execution.apply(scene.parent, Cancel(reason="its execution ended", actor=PARENT), now, policy)
    if isinstance(outcome, Transition):
        puts, facts = (after, outcome.record), outcome.facts
    ended = Ended(verdict=Verdict.ENDED, interaction=after)
    return Decision(ended, puts=puts, facts=facts)


def _complete(scene: _Scene, completion: Completion, now: int, policy: ExecutionPolicy) -> Decision[Ended]:
    after = interacting.completed(scene.interaction, completion, now)
    unit, parent = scene.unit, scene.parent
    if not unit.itemised:
        return _complete_scalar(scene, after, now, policy)
    if not itemised.is_parked_on(parent, unit):
        # Live, or not yet parked: the answer is kept, and found by the session or by the scan after parking.
        return Decision(Ended(verdict=Verdict.ADMITTED, interaction=after), puts=(after,))
    child = itemised.child_of(parent, unit, after, now)
    return Decision(
        Ended(verdict=Verdict.ADMITTED, interaction=after, due=(child.execution_id,)),
        puts=(after, child),
        facts=(itemised.continued(parent, child, now),),
    )


def _complete_scalar(scene: _Scene, after: InteractionRecord, now: int, policy: ExecutionPolicy) -> Decision[Ended]:
    unit = awaits.moved_unit(scene.unit, UnitStatus.COMPLETED, now)
    key = f"admitted-{after.interaction_id}"
    admitted = _fact(
        scene, FactType.COMPLETION_ADMITTED, key, now, interactionId=after.interaction_id, actor=after.actor
    )
    event = Release(
        unit_id=unit.unit_id,
        step_index=unit.continue_index,
        input=awaits.answer_of(after),
    )
    outcome = execution.apply(scene.parent, event, now, policy)
    if isinstance(outcome, Refused):
        # Not parked on it: whoever runs it finds the answer when it comes to the await.
        admission = Ended(verdict=Verdict.ADMITTED, interaction=after)
        return Decision(admission, puts=(after, unit), facts=(admitted,))
    return Decision(
        Ended(verdict=Verdict.ADMITTED, interaction=after, due=(outcome.record.execution_id,)),
        puts=(after, unit, outcome.record),
        facts=(admitted, *outcome.facts),
    )


def _expire(scene: _Scene, now: int, policy: ExecutionPolicy) -> Decision[Ended] | Need:
    interaction = scene.interaction
    if interaction.on_timeout is not None:
        answer = Completion(
            response=interaction.on_timeout, item_count=interaction.on_timeout_count, actor=TIMEOUT_ACTOR
        )
        return _complete(scene, answer, now, policy)
    return _end_badly(scene, _BY_DEADLINE, f"no answer to {interaction.interaction_id} by its deadline", now, policy)


def fail(
    snapshot: Snapshot, seen: InteractionRecord, message: str, now: int, policy: ExecutionPolicy
) -> Decision[Ended] | Need:
    """Ends an interaction that can never be sent; with it its execution.

    Only the sending that `seen` names may say so: one from before a re-drive, or before the request went out again,
    knows nothing of how things stand now.
    """
    scene = _scene(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None or not scene.interaction.status.open:
        return Decision(Ended(verdict=Verdict.ENDED, interaction=None if scene is None else scene.interaction))
    now_sent = (scene.interaction.send_count, scene.interaction.redrive_count)
    if now_sent != (seen.send_count, seen.redrive_count):
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=scene.interaction))
    if scene.over:
        return _call_off(scene, now, policy)
    return _end_badly(scene, _BY_DISPATCH, message, now, policy)


@frozen
class _BadEnd:
    """How an interaction, its unit and its execution end together."""

    verdict: Verdict
    interaction: InteractionStatus
    unit: UnitStatus
    reason: TerminalReason
    fact_type: FactType
    fact_key: str


_BY_DEADLINE = _BadEnd(
    Verdict.TIMED_OUT,
    InteractionStatus.TIMED_OUT,
    UnitStatus.TIMED_OUT,
    TerminalReason.AWAIT_TIMEOUT,
    FactType.INTERACTION_TIMED_OUT,
    "timed-out",
)
_BY_DISPATCH = _BadEnd(
    Verdict.ENDED,
    InteractionStatus.FAILED,
    UnitStatus.FAILED,
    TerminalReason.AWAIT_FAILED,
    FactType.DISPATCH_FAILED,
    "dispatch-failed",
)


def _end_badly(scene: _Scene, end: _BadEnd, message: str, now: int, policy: ExecutionPolicy) -> Decision[Ended] | Need:
    interaction, unit = scene.interaction, scene.unit
    after = interacting.ended(interaction, end.interaction, now, message)
    key = f"{end.fact_key}-{interaction.interaction_id}-{interaction.redrive_count}"
    facts = [_fact(scene, end.fact_type, key, now, interactionId=interaction.interaction_id, message=message)]
    puts: list[object] = [after]
    if unit.status is UnitStatus.WAITING_EXTERNAL:
        puts.append(awaits.moved_unit(unit, end.unit, now))
    event = UnitEnded(unit_id=unit.unit_id, reason=end.reason, code=end.reason, message=message)
    outcome = execution.apply(scene.parent, event, now, policy)
    due: tuple[ExecutionId, ...] = ()
    if isinstance(outcome, Transition):
        puts.append(outcome.record)
        facts.extend(outcome.facts)
        due = (outcome.record.execution_id,)
        if outcome.record.unit_id is not None:
            above = itemised.after_child(scene.snapshot, outcome.record, now, policy)
            if isinstance(above, Need):
                return above
            puts.extend(above.puts)
            facts.extend(above.facts)
            due += tuple(put.execution_id for put in above.puts if isinstance(put, ExecutionRecord))
    return Decision(
        Ended(verdict=end.verdict, interaction=after, due=due, unit_ended=True),
        puts=tuple(puts),
        facts=tuple(facts),
    )


def _late(scene: _Scene, completion: Completion, verdict: Verdict, now: int) -> Decision[Ended]:
    """The refused answer is kept; the state stands."""
    interaction = scene.interaction
    conflicting = verdict is Verdict.CONFLICTING
    reason = LateReason.CONFLICTING if conflicting else LateReason.LATE
    record = refused(interaction, completion, reason, now)
    fact_type = FactType.COMPLETION_CONFLICTING if conflicting else FactType.COMPLETION_LATE
    fact = _fact(scene, fact_type, f"late-{record.late_id}", now, actor=completion.actor)
    return Decision(Ended(verdict=verdict, interaction=interaction), puts=(record,), facts=(fact,))


def _both(first: Decision[Ended], second: Decision[Ended]) -> Decision[Ended]:
    """Two decisions as one, with the answer of the second and the effects of the first."""
    result = evolve(
        second.result,
        interaction=first.result.interaction,
        due=first.result.due,
        unit_ended=first.result.unit_ended,
    )
    return Decision(
        result, puts=(*first.puts, *second.puts), deletes=first.deletes, facts=(*first.facts, *second.facts)
    )


def _fact(scene: _Scene, fact_type: FactType, key: str, now: int, **data: str | None) -> Fact:
    return execution.fact(scene.parent, fact_type, key, now, **data)
