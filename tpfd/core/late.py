"""Completions that changed nothing. They are kept: nothing that the outside said disappears.

One that came when its interaction was over is *late*, one that contradicts the admitted answer is *conflicting*, one
that met no interaction at all is an *orphan*. An operator may say what an orphan answers; it is then *matched*, and
stands with the late ones of that execution.
"""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve

from tpfd.core.awaits import Completion
from tpfd.core.kinds import LATE
from tpfd.core.records import InteractionRecord, LateRecord, Payload, TenantId
from tpfd.core.transact import Decision, Key, Snapshot


class LateReason(StrEnum):
    """Why a completion changed nothing."""

    LATE = "late"
    CONFLICTING = "conflicting"
    ORPHAN = "orphan"
    MATCHED = "matched"


def refused(interaction: InteractionRecord, completion: Completion, reason: LateReason, now: int) -> LateRecord:
    """A completion that its interaction did not take."""
    return LateRecord(
        tenant_id=interaction.tenant_id,
        late_id=_late_id(interaction.interaction_id, completion.digest),
        interaction_id=interaction.interaction_id,
        execution_id=interaction.execution_id,
        step_id=interaction.step_id,
        reason=reason,
        body=None if completion.stored_id else completion.response,
        stored_id=completion.stored_id,
        actor=completion.actor,
        created_epoch_ms=now,
    )


def orphan(tenant_id: TenantId, claimed_id: str, body: Payload, digest: str, actor: str | None, now: int) -> LateRecord:
    """A completion that met no interaction.

    Args:
        claimed_id: the interaction that its token names.
        body: as it was sent, inline or stored apart.
        digest: sha256 of the body's text.
    """
    return LateRecord(
        tenant_id=tenant_id,
        late_id=_late_id(claimed_id, digest),
        interaction_id=claimed_id,
        execution_id=None,
        step_id=None,
        reason=LateReason.ORPHAN,
        body=body.json,
        stored_id=body.stored_id,
        actor=actor,
        created_epoch_ms=now,
    )


def keep(snapshot: Snapshot, record: LateRecord) -> Decision[None]:
    """Keeps an orphan; one that is known already, matched or not, stays as it is."""
    known = snapshot.get(LATE.key_of(record))
    return Decision(None, puts=() if known is not None else (record,))


def match(snapshot: Snapshot, key: Key[LateRecord], interaction: InteractionRecord) -> Decision[None]:
    """Takes an orphan whose body was admitted from the list of orphans into the history of the execution."""
    record = snapshot.get(key)
    if record is None or record.reason != LateReason.ORPHAN:
        return Decision(None)
    matched = evolve(
        record,
        reason=LateReason.MATCHED,
        interaction_id=interaction.interaction_id,
        execution_id=interaction.execution_id,
        step_id=interaction.step_id,
    )
    return Decision(None, puts=(matched,))


def body_of(record: LateRecord) -> Payload:
    """The body as a payload without a type: it may never have been checked against one."""
    return Payload(type_name="", json=record.body, stored_id=record.stored_id)


def _late_id(interaction_id: str, digest: str) -> str:
    """The same body again is the same row. Nothing in it needs escaping in a URL."""
    return f"{interaction_id}~{digest[:16]}"
