"""Interactions: how each changes on its way from a question to its end. Pure, record to record.

Whether it may change is decided by ``dispatching``, ``sending`` and ``sockets`` (on its way out) and ``admission`` (on
its way back).
"""

from __future__ import annotations

from attrs import evolve

from tpfd.core import ids
from tpfd.core.awaits import AwaitTerms, Completion, Request
from tpfd.core.budget import Taken
from tpfd.core.records import ExecutionRecord, InteractionRecord, InteractionStatus, UnitRecord


def opened(
    execution: ExecutionRecord,
    unit: UnitRecord,
    terms: AwaitTerms,
    request: Request,
    *,
    causation_id: str,
    place: Taken | None,
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
        contract_version=execution.contract_version,
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
        permit_slot=None if place is None else place.slot_number,
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


def passed(
    execution: ExecutionRecord, unit: UnitRecord, terms: AwaitTerms, request: Request, *, causation_id: str, now: int
) -> InteractionRecord:
    """An item that the await does not take: it is its own answer, and stands in its place among the others."""
    assert request.passes_as is not None
    asked = opened(execution, unit, terms, request, causation_id=causation_id, place=None, now=now)
    return evolve(
        asked,
        status=InteractionStatus.COMPLETED,
        input_type=request.passes_as,
        output_type=request.passes_as,
        response=request.json,
        response_stored_id=request.stored_id,
        response_digest=request.digest,
        remind_at_epoch_ms=None,
        escalate_at_epoch_ms=None,
        next_check_epoch_ms=None,
        completed_epoch_ms=now,
    )


def reopened(
    record: InteractionRecord, unit: UnitRecord, redrive_count: int, *, place: Taken | None, now: int
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
            permit_slot=None if place is None else place.slot_number,
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


def delivered(record: InteractionRecord, place: Taken, now: int) -> InteractionRecord:
    """A socket has it."""
    return evolve(
        record,
        status=InteractionStatus.DISPATCHED,
        version=record.version + 1,
        delivery=place.socket_id,
        permit_slot=place.slot_number,
        send_count=record.send_count + 1,
        updated_epoch_ms=now,
    )


def let_go(record: InteractionRecord, now: int) -> InteractionRecord:
    """The other side has it for good: it stays out, whatever becomes of the socket that sent it."""
    return evolve(record, version=record.version + 1, delivery=None, updated_epoch_ms=now)


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


def rejected(record: InteractionRecord, message: str, now: int) -> InteractionRecord:
    """It can never be sent and its item was rejected: done, without an answer. Final."""
    return evolve(
        ended(record, InteractionStatus.COMPLETED, now, message), dispatch_due_epoch_ms=None, completed_epoch_ms=now
    )


def ended(
    record: InteractionRecord, status: InteractionStatus, now: int, message: str | None = None
) -> InteractionRecord:
    """The interaction is over without an answer: TIMED_OUT, FAILED or CANCELLED, or rejected."""
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
