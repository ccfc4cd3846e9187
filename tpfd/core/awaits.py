"""What an await asks and how it is answered, and its unit: terms, request, completion, and how a unit changes.

Pure, record to record. How interactions change is in ``interacting``; the decisions that join both with their execution
are in ``dispatching`` (what an attempt opens), ``admission`` (what the outside and the clock end) and ``itemised`` (how
the items of a parked unit go on).
"""

from __future__ import annotations

import hashlib
from typing import Any

from attrs import evolve, field, frozen

from tpfd.core import ids
from tpfd.core.records import (
    ExecutionRecord,
    InteractionRecord,
    InteractionStatus,
    JsonText,
    Payload,
    UnitRecord,
    UnitStatus,
)

NOTHING = Payload(type_name="", json=JsonText("null"))
"""Stands in the place of an item that was rejected: what goes on with it is done, without an output."""


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
        passes_as: record type of a value that the await does not take: nobody is asked, it goes on as it is. None: it
            is asked about.
    """

    item_index: int
    json: JsonText | None
    digest: str
    business_key: str = ""
    stored_id: str | None = None
    item_count: int | None = None
    passes_as: str | None = None

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


def was_rejected(record: InteractionRecord) -> bool:
    """Whether it could never be sent and its item was rejected: it is done, and has no answer."""
    return record.status is InteractionStatus.COMPLETED and not record.response_digest


def answer_of(record: InteractionRecord) -> Payload:
    """The admitted answer as the input of what comes behind the await; NOTHING if its item was rejected."""
    if was_rejected(record):
        return NOTHING
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
