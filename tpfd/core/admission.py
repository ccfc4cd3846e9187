"""How an interaction ends: by a completion, by its deadline, or because it can never be sent. One function for each.

Completion and deadline meet in one transaction on the interaction, so exactly one wins and the loser is told. What was
refused is kept as a ``LateRecord``: nothing that the outside said disappears.
"""

from __future__ import annotations

from attrs import evolve

from tpfd.core import awaits, interacting
from tpfd.core.awaits import Completion
from tpfd.core.endings import (
    BY_DEADLINE,
    BY_DISPATCH,
    Ended,
    Scene,
    Verdict,
    call_off,
    complete,
    end_badly,
    fact_of,
    scene_of,
)
from tpfd.core.events import ExecutionPolicy
from tpfd.core.kinds import EXECUTION, INTERACTION, UNIT
from tpfd.core.late import LateReason, refused
from tpfd.core.records import ExecutionRecord, FactType, InteractionRecord, InteractionStatus
from tpfd.core.transact import Decision, Need, Read, Snapshot

__all__ = ["TIMEOUT_ACTOR", "Ended", "Verdict", "admit", "expire", "fail", "item_of", "reads"]

TIMEOUT_ACTOR = "timeout"
"""Who answers when `onTimeout` gives the answer."""


def reads(interaction: InteractionRecord) -> tuple[Read, ...]:
    """What all decisions here look at."""
    return (
        Read(INTERACTION.key_of(interaction)),
        Read(UNIT.key(interaction.tenant_id, interaction.unit_id)),
        Read(EXECUTION.key(interaction.tenant_id, interaction.execution_id)),
    )


def admit(
    snapshot: Snapshot, seen: InteractionRecord, completion: Completion, now: int, policy: ExecutionPolicy
) -> Decision[Ended] | Need:
    """Admits an answer, or says truthfully why not."""
    scene = scene_of(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None:
        return Decision(Ended(verdict=Verdict.NOT_FOUND))
    interaction = scene.interaction
    if awaits.was_rejected(interaction):
        return _late(scene, completion, Verdict.ENDED, now)
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
    return complete(scene, interacting.completed(interaction, completion, now), Verdict.ADMITTED, now, policy)


def expire(snapshot: Snapshot, seen: InteractionRecord, now: int, policy: ExecutionPolicy) -> Decision[Ended] | Need:
    """Does what is due by time: a reminder, an escalation, or the end by the deadline."""
    scene = scene_of(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None:
        return Decision(Ended(verdict=Verdict.NOT_FOUND))
    interaction = scene.interaction
    if not interaction.status.open:
        return Decision(Ended(verdict=Verdict.ENDED, interaction=interaction))
    if scene.over:
        return call_off(scene, now, policy)
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
        fact = fact_of(scene, FactType.INTERACTION_REMINDED, key, now, assignee=interaction.assignee)
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=after), puts=(after,), facts=(fact,))
    if interaction.escalate_at_epoch_ms is not None and now >= interaction.escalate_at_epoch_ms:
        key = f"escalated-{interaction.interaction_id}-{interaction.redrive_count}"
        after = interacting.escalated(interaction, now)
        fact = fact_of(
            scene, FactType.INTERACTION_ESCALATED, key, now, fromAssignee=interaction.assignee, to=after.assignee
        )
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=after), puts=(after,), facts=(fact,))
    return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=interaction))


def _expire(scene: Scene, now: int, policy: ExecutionPolicy) -> Decision[Ended] | Need:
    interaction = scene.interaction
    if interaction.on_timeout is not None:
        answer = Completion(
            response=interaction.on_timeout, item_count=interaction.on_timeout_count, actor=TIMEOUT_ACTOR
        )
        return complete(scene, interacting.completed(interaction, answer, now), Verdict.ADMITTED, now, policy)
    return end_badly(scene, BY_DEADLINE, f"no answer to {interaction.interaction_id} by its deadline", now, policy)


def fail(
    snapshot: Snapshot,
    seen: InteractionRecord,
    message: str,
    now: int,
    policy: ExecutionPolicy,
    *,
    rejected: bool = False,
) -> Decision[Ended] | Need:
    """Ends an interaction that can never be sent; with it its execution, or only its item.

    Only the sending that `seen` names may say so: one from before a re-drive, or before the request went out again,
    knows nothing of how things stand now.

    Args:
        rejected: its item is in the reject sink: if it was one of several (see `item_of`), the others go on.
    """
    scene = scene_of(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None or not scene.interaction.status.open:
        return Decision(Ended(verdict=Verdict.ENDED, interaction=None if scene is None else scene.interaction))
    if not scene.is_sent_by(seen):
        return Decision(Ended(verdict=Verdict.NOT_DUE, interaction=scene.interaction))
    if scene.over:
        return call_off(scene, now, policy)
    if not rejected or not scene.is_item:
        return end_badly(scene, BY_DISPATCH, message, now, policy)
    after = interacting.rejected(scene.interaction, message, now)
    done = complete(scene, after, Verdict.REJECTED, now, policy)
    key = f"rejected-{after.interaction_id}-{after.redrive_count}"
    told = fact_of(
        scene,
        FactType.DISPATCH_FAILED,
        key,
        now,
        interactionId=after.interaction_id,
        message=message,
        rejected=True,
    )
    return evolve(done, facts=(told, *done.facts))


def item_of(snapshot: Snapshot, seen: InteractionRecord) -> Decision[ExecutionRecord | None] | Need:
    """The execution that asks, if `fail` may end an item of it alone; None if not, or if there is nothing to end.

    An execution that is one value through and through has nothing to go on with when that is rejected.
    """
    scene = scene_of(snapshot, seen)
    if isinstance(scene, Need):
        return scene
    if scene is None or scene.over or not scene.interaction.status.open or not scene.is_sent_by(seen):
        return Decision(None)
    return Decision(scene.parent if scene.is_item else None)


def _late(scene: Scene, completion: Completion, verdict: Verdict, now: int) -> Decision[Ended]:
    """The refused answer is kept; the state stands."""
    interaction = scene.interaction
    conflicting = verdict is Verdict.CONFLICTING
    reason = LateReason.CONFLICTING if conflicting else LateReason.LATE
    record = refused(interaction, completion, reason, now)
    fact_type = FactType.COMPLETION_CONFLICTING if conflicting else FactType.COMPLETION_LATE
    fact = fact_of(scene, fact_type, f"late-{record.late_id}", now, actor=completion.actor)
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
