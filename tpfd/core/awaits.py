"""Await units and interactions: how each changes. Pure, record to record.

The decisions that join them with their execution are in ``dispatching`` (what an attempt opens), ``admission`` (what
the outside and the clock end) and ``itemised`` (how the items of a parked unit go on).
"""

from __future__ import annotations

import hashlib
from typing import Any

from attrs import evolve, field, frozen

from tpfd.core import ids
from tpfd.core.budget import Place
from tpfd.core.records import (
    ExecutionRecord,
    InteractionRecord,
    InteractionStatus,
    JsonText,
    Payload,
    UnitRecord,
    UnitStatus,
)


@frozen(kw_only=True)
class AwaitTerms:
    """What the pipeline says about one await step.

    Attributes:
        continue_index: step behind the await.
        suffix_stop_index: first step that the children of an itemised unit do not run.
        takes_many: the request is a list (an aggregate await).
        gives_many: the answer is a list.
        pulled: the outside takes requests from a queue (websocket); else they are only listed, or sent by us.
        on_timeout: canonical value admitted at the deadline; None: the deadline fails the execution.
        on_timeout_count: its items, where the answer is a list.
        budget_scope: names the budget of requests that may be out; None: there is none.
    """

    step_id: str
    step_index: int
    continue_index: int
    suffix_stop_index: int
    input_type: str
    output_type: str
    transport_type: str
    pulled: bool
    timeout_ms: int
    takes_many: bool = False
    gives_many: bool = False
    assignee: str | None = None
    group: str | None = None
    remind_after_ms: int | None = None
    escalate_after_ms: int | None = None
    escalate_to: str | None = None
    on_timeout: JsonText | None = None
    on_timeout_count: int | None = None
    budget_scope: str | None = None


@frozen
class Request:
    """One item to ask the outside about.

    Attributes:
        item_index: the item's place in the source; 0 for a scalar await.
        json: canonical request payload; None: it is stored apart.
        digest: sha256 of it.
        stored_id: where a large one is stored.
        item_count: items of a list; None: one value.
        business_key: digest of the fields that the step declares as its idempotency key; "" if none.
    """

    item_index: int
    json: JsonText | None
    digest: str
    business_key: str = ""
    stored_id: str | None = None
    item_count: int | None = None

    def payload(self, type_name: str) -> Payload:
        """The request as a payload."""
        return Payload(type_name=type_name, json=self.json, stored_id=self.stored_id, item_count=self.item_count)


def new_unit(execution: ExecutionRecord, terms: AwaitTerms, *, itemised: bool, now: int) -> UnitRecord:
    """A unit that nobody has asked anything of yet."""
    unit = ids.unit_id(execution.execution_id, terms.step_index)
    return UnitRecord(
        tenant_id=execution.tenant_id,
        unit_id=unit,
        execution_id=execution.execution_id,
        pipeline_id=execution.pipeline_id,
        step_id=terms.step_id,
        step_index=terms.step_index,
        itemised=itemised,
        redrive_count=execution.redrive_count,
        status=UnitStatus.WAITING_EXTERNAL,
        version=1,
        primary_interaction_id=None if itemised else ids.interaction_id(unit, 0),
        dispatch_complete=not itemised,
        expected_item_count=None if itemised else 1,
        continue_index=terms.continue_index,
        suffix_stop_index=terms.suffix_stop_index,
        pulled=terms.pulled,
        timeout_ms=terms.timeout_ms,
        created_epoch_ms=now,
        updated_epoch_ms=now,
    )


def reopened_unit(unit: UnitRecord, execution: ExecutionRecord, now: int) -> UnitRecord:
    """The unit in a new re-drive of its execution: waiting again, progress kept."""
    return moved_unit(unit, UnitStatus.WAITING_EXTERNAL, now, redrive_count=execution.redrive_count)


def moved_unit(
    unit: UnitRecord, status: UnitStatus, now: int, *, next_check: int | None = None, **changes: Any
) -> UnitRecord:
    """The unit in another status; nothing is due by time unless `next_check` says so."""
    return evolve(
        unit,
        status=status,
        version=unit.version + 1,
        updated_epoch_ms=now,
        next_check_epoch_ms=next_check,
        **changes,
    )


def new_interaction(
    execution: ExecutionRecord,
    unit: UnitRecord,
    terms: AwaitTerms,
    request: Request,
    *,
    causation_id: str,
    place: Place | None,
    now: int,
) -> InteractionRecord:
    """An interaction as it is first written: in the hands of a socket, in the queue of its step, or listed."""
    key = ids.idempotency_key(execution.tenant_id, execution.execution_id, terms.step_id, request.item_index)
    interaction = ids.interaction_id(unit.unit_id, request.item_index)
    record = InteractionRecord(
        tenant_id=execution.tenant_id,
        interaction_id=interaction,
        execution_id=execution.execution_id,
        unit_id=unit.unit_id,
        pipeline_id=execution.pipeline_id,
        step_id=terms.step_id,
        step_index=terms.step_index,
        item_index=request.item_index,
        itemised=unit.itemised,
        redrive_count=execution.redrive_count,
        status=InteractionStatus.WAITING if unit.pulled and place is None else InteractionStatus.DISPATCHED,
        version=1,
        input_type=terms.input_type,
        output_type=terms.output_type,
        # Derived like everything else, so that it needs no look-up row of its own.
        correlation_id=interaction,
        causation_id=causation_id,
        idempotency_key=f"{key}:{request.business_key}" if request.business_key else key,
        request=request.json,
        request_stored_id=request.stored_id,
        request_count=request.item_count,
        request_digest=request.digest,
        transport_type=terms.transport_type,
        delivery=None if place is None else place.socket_id,
        permit_slot=None if place is None else place.slot,
        send_count=0 if place is None else 1,
        assignee=terms.assignee,
        group=terms.group,
        deadline_epoch_ms=now + terms.timeout_ms,
        on_timeout=terms.on_timeout,
        on_timeout_count=terms.on_timeout_count,
        created_epoch_ms=now,
        updated_epoch_ms=now,
        next_check_epoch_ms=now + terms.timeout_ms,
    )
    if terms.remind_after_ms is None and terms.escalate_to is None:
        return record
    return _with_next_check(
        evolve(
            record,
            remind_at_epoch_ms=_plus(terms.remind_after_ms, now),
            escalate_to=terms.escalate_to,
            escalate_at_epoch_ms=None if terms.escalate_to is None else _plus(terms.escalate_after_ms, now),
        )
    )


def reopened_interaction(
    record: InteractionRecord, unit: UnitRecord, redrive_count: int, *, place: Place | None, now: int
) -> InteractionRecord:
    """The interaction in a new re-drive of its execution: same ids, new deadline.

    One that is still out stays where it is. What had still to be done before the old deadline (reminder, escalation)
    moves with it; what was done stays done.

    Args:
        redrive_count: that of the execution.
        place: where it goes, if it has to be asked again; None: it waits, or is listed.
    """
    if not record.status.open:
        record = evolve(
            record,
            status=InteractionStatus.WAITING if unit.pulled and place is None else InteractionStatus.DISPATCHED,
            delivery=None if place is None else place.socket_id,
            permit_slot=None if place is None else place.slot,
            send_count=record.send_count + (place is not None),
            error_message=None,
            ttl_epoch_s=None,
        )
    shift_ms = now + unit.timeout_ms - record.deadline_epoch_ms
    return _with_next_check(
        evolve(
            record,
            redrive_count=redrive_count,
            version=record.version + 1,
            deadline_epoch_ms=record.deadline_epoch_ms + shift_ms,
            remind_at_epoch_ms=_plus(record.remind_at_epoch_ms, shift_ms),
            escalate_at_epoch_ms=_plus(record.escalate_at_epoch_ms, shift_ms),
            updated_epoch_ms=now,
        )
    )


def _plus(ms: int | None, more_ms: int) -> int | None:
    return None if ms is None else ms + more_ms


def delivered(record: InteractionRecord, place: Place, now: int) -> InteractionRecord:
    """A socket has it."""
    return evolve(
        record,
        status=InteractionStatus.DISPATCHED,
        version=record.version + 1,
        delivery=place.socket_id,
        permit_slot=place.slot,
        send_count=record.send_count + 1,
        updated_epoch_ms=now,
    )


def taken_back(record: InteractionRecord, now: int) -> InteractionRecord:
    """Whoever was to deliver it is gone or could not: it waits in the queue of its step again."""
    return _with_next_check(
        evolve(
            record,
            status=InteractionStatus.WAITING,
            version=record.version + 1,
            delivery=None,
            dispatch_due_epoch_ms=None,
            updated_epoch_ms=now,
        )
    )


def sending(record: InteractionRecord, lease_ms: int, now: int) -> InteractionRecord:
    """We are sending it ourselves; if we die meanwhile, it waits again when the dispatch lease is over."""
    return _with_next_check(
        evolve(
            record,
            status=InteractionStatus.DISPATCHING,
            version=record.version + 1,
            send_count=record.send_count + 1,
            dispatch_due_epoch_ms=now + lease_ms,
            updated_epoch_ms=now,
        )
    )


def sent(record: InteractionRecord, now: int) -> InteractionRecord:
    """The other side has it."""
    return _with_next_check(
        evolve(
            record,
            status=InteractionStatus.DISPATCHED,
            version=record.version + 1,
            dispatch_due_epoch_ms=None,
            error_message=None,
            updated_epoch_ms=now,
        )
    )


def send_later(record: InteractionRecord, at_epoch_ms: int, message: str, now: int) -> InteractionRecord:
    """It could not be sent; try again at a time before the deadline."""
    return _with_next_check(
        evolve(
            record,
            version=record.version + 1,
            dispatch_due_epoch_ms=at_epoch_ms,
            error_message=message,
            updated_epoch_ms=now,
        )
    )


@frozen(kw_only=True)
class Completion:
    """An answer, decoded, converted and validated.

    Attributes:
        response: canonical.
        stored_id: where a large one is stored; None: it stands in the interaction.
        item_count: items of a list; None: one value.
        actor: who says so; None: not told.
        key: idempotency key of the completion; None: not given.
        digest: sha256 of the response.
    """

    response: JsonText
    stored_id: str | None = None
    item_count: int | None = None
    actor: str | None = None
    key: str | None = None
    digest: str = field()

    @digest.default
    def _(self) -> str:
        return hashlib.sha256(self.response.encode()).hexdigest()


def answer_of(record: InteractionRecord) -> Payload:
    """The admitted answer as the input of what comes behind the await."""
    return Payload(
        type_name=record.output_type,
        json=record.response,
        stored_id=record.response_stored_id,
        item_count=record.response_count,
    )


def question_of(record: InteractionRecord) -> Payload:
    """The request as a payload."""
    return Payload(
        type_name=record.input_type,
        json=record.request,
        stored_id=record.request_stored_id,
        item_count=record.request_count,
    )


def completed(record: InteractionRecord, completion: Completion, now: int) -> InteractionRecord:
    """The answer is admitted. Final."""
    return evolve(
        record,
        status=InteractionStatus.COMPLETED,
        version=record.version + 1,
        response=None if completion.stored_id else completion.response,
        response_stored_id=completion.stored_id,
        response_count=completion.item_count,
        response_digest=completion.digest,
        actor=completion.actor,
        completion_key=completion.key,
        delivery=None,
        dispatch_due_epoch_ms=None,
        next_check_epoch_ms=None,
        updated_epoch_ms=now,
        completed_epoch_ms=now,
    )


def ended(
    record: InteractionRecord, status: InteractionStatus, now: int, message: str | None = None
) -> InteractionRecord:
    """The interaction is over without an answer: TIMED_OUT, FAILED or CANCELLED."""
    return evolve(
        record,
        status=status,
        version=record.version + 1,
        delivery=None,
        next_check_epoch_ms=None,
        error_message=message,
        updated_epoch_ms=now,
    )


def reminded(record: InteractionRecord, now: int) -> InteractionRecord:
    """Its reminder is out."""
    return _with_next_check(evolve(record, version=record.version + 1, remind_at_epoch_ms=None, updated_epoch_ms=now))


def escalated(record: InteractionRecord, now: int) -> InteractionRecord:
    """It is somebody else's now."""
    return _with_next_check(
        evolve(
            record,
            version=record.version + 1,
            assignee=record.escalate_to,
            escalate_at_epoch_ms=None,
            updated_epoch_ms=now,
        )
    )


def _with_next_check(record: InteractionRecord) -> InteractionRecord:
    times = (
        record.dispatch_due_epoch_ms,
        record.remind_at_epoch_ms,
        record.escalate_at_epoch_ms,
        record.deadline_epoch_ms,
    )
    return evolve(record, next_check_epoch_ms=min(at for at in times if at is not None))
