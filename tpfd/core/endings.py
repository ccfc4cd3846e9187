"""The ends that an interaction can come to, each with what it means for its unit and its execution.

Who calls for which end is in ``admission``.
"""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from tpfd.core import awaits, execution, interacting, itemised
from tpfd.core.cleanup import PARENT
from tpfd.core.events import Cancel, ExecutionPolicy, Release, UnitEnded
from tpfd.core.execution import Refused, Transition
from tpfd.core.kinds import EXECUTION, INTERACTION, UNIT
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    Fact,
    FactType,
    FactValue,
    InteractionRecord,
    InteractionStatus,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Decision, Need, Read, Snapshot


class Verdict(StrEnum):
    """What became of a completion or a deadline."""

    ADMITTED = "admitted"
    DUPLICATE = "duplicate"  # equal to the admitted one
    CONFLICTING = "conflicting"  # another answer was admitted
    TIMED_OUT = "timed_out"  # the deadline was first
    REJECTED = "rejected"  # it could not be sent and only its item ends
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


@frozen
class Scene:
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

    @property
    def is_item(self) -> bool:
        """It asks about one item of several: of its own execution, or of the one whose item that continues."""
        return self.unit.itemised or self.parent.parent_execution_id is not None

    def is_sent_by(self, seen: InteractionRecord) -> bool:
        """Whether the sending that `seen` names is the one under way."""
        interaction = self.interaction
        return (interaction.send_count, interaction.redrive_count) == (seen.send_count, seen.redrive_count)


def scene_of(snapshot: Snapshot, seen: InteractionRecord) -> Scene | Need | None:
    """The scene of an interaction; None if it is not there (any more)."""
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
    return Scene(snapshot, interaction, unit, parent, over)


def call_off(scene: Scene, now: int, policy: ExecutionPolicy) -> Decision[Ended]:
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


def complete(
    scene: Scene, after: InteractionRecord, verdict: Verdict, now: int, policy: ExecutionPolicy
) -> Decision[Ended]:
    """Ends an interaction well, and lets what waits for it go on.

    Args:
        after: the interaction as it is done: answered, or rejected.
    """
    unit, parent = scene.unit, scene.parent
    if not unit.itemised:
        return _complete_scalar(scene, after, verdict, now, policy)
    if not itemised.is_parked_on(parent, unit):
        # Live, or not yet parked: the answer is kept, and found by the session or by the scan after parking.
        return Decision(Ended(verdict=verdict, interaction=after), puts=(after,))
    child = itemised.child_of(parent, unit, after, now)
    return Decision(
        Ended(verdict=verdict, interaction=after, due=(child.execution_id,)),
        puts=(after, child),
        facts=(itemised.continued(parent, child, now),),
    )


def _complete_scalar(
    scene: Scene, after: InteractionRecord, verdict: Verdict, now: int, policy: ExecutionPolicy
) -> Decision[Ended]:
    unit = awaits.moved_unit(scene.unit, UnitStatus.COMPLETED, now)
    said: tuple[Fact, ...] = ()
    if verdict is Verdict.ADMITTED:
        key = f"admitted-{after.interaction_id}"
        data = {"interactionId": after.interaction_id, "actor": after.actor}
        said = (fact_of(scene, FactType.COMPLETION_ADMITTED, key, now, **data),)
    event = Release(
        unit_id=unit.unit_id,
        step_index=unit.continue_index,
        input=awaits.answer_of(after),
    )
    outcome = execution.apply(scene.parent, event, now, policy)
    if isinstance(outcome, Refused):
        # Not parked on it: whoever runs it finds the answer when it comes to the await.
        return Decision(Ended(verdict=verdict, interaction=after), puts=(after, unit), facts=said)
    return Decision(
        Ended(verdict=verdict, interaction=after, due=(outcome.record.execution_id,)),
        puts=(after, unit, outcome.record),
        facts=(*said, *outcome.facts),
    )


@frozen
class BadEnd:
    """How an interaction, its unit and its execution end together."""

    verdict: Verdict
    interaction: InteractionStatus
    unit: UnitStatus
    reason: TerminalReason
    fact_type: FactType
    fact_key: str


BY_DEADLINE = BadEnd(
    Verdict.TIMED_OUT,
    InteractionStatus.TIMED_OUT,
    UnitStatus.TIMED_OUT,
    TerminalReason.AWAIT_TIMEOUT,
    FactType.INTERACTION_TIMED_OUT,
    "timed-out",
)
BY_DISPATCH = BadEnd(
    Verdict.ENDED,
    InteractionStatus.FAILED,
    UnitStatus.FAILED,
    TerminalReason.AWAIT_FAILED,
    FactType.DISPATCH_FAILED,
    "dispatch-failed",
)


def end_badly(scene: Scene, end: BadEnd, message: str, now: int, policy: ExecutionPolicy) -> Decision[Ended] | Need:
    """Ends an interaction without an answer, its unit, and the execution that waits for it."""
    interaction, unit = scene.interaction, scene.unit
    after = interacting.ended(interaction, end.interaction, now, message)
    key = f"{end.fact_key}-{interaction.interaction_id}-{interaction.redrive_count}"
    facts = [fact_of(scene, end.fact_type, key, now, interactionId=interaction.interaction_id, message=message)]
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


def fact_of(scene: Scene, fact_type: FactType, key: str, now: int, **data: FactValue) -> Fact:
    """A fact of the execution that asks."""
    return execution.fact(scene.parent, fact_type, key, now, **data)
