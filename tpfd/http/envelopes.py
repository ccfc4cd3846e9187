"""JSON forms of what goes over the edge: records out, completions in. Times are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from tpfd.core.records import ExecutionRecord, InteractionRecord, LateRecord, SequencedFact, TenantId
from tpfd.http.bodies import Members
from tpfd.http.service import Completed, Completion, Submitted

JsonObject = dict[str, object]

TRANSITION_JSON = "application/tpf-transition+json"
"""Name of the payload encoding of the framework's control plane: the JSON text inside a text."""


def submitted_view(submitted: Submitted, status_url: str) -> JsonObject:
    """``{executionId, duplicate, statusUrl, submittedAtEpochMs}``."""
    return {
        "executionId": submitted.execution_id,
        "duplicate": submitted.duplicate,
        "statusUrl": status_url,
        "submittedAtEpochMs": submitted.submitted_at_epoch_ms,
    }


def execution_view(record: ExecutionRecord, held_reason: str | None = None) -> JsonObject:
    """The summary of an execution, without its input and result.

    Args:
        held_reason: why this replica does not go on with it; None: it does, or it is over.
    """
    publication = record.publication
    return {
        "executionId": record.execution_id,
        "executionKey": record.execution_key,
        "pipelineId": record.pipeline_id,
        "contractVersion": record.contract_version,
        "status": record.status.value,
        "heldReason": held_reason,
        "stepIndex": record.step_index,
        "attempt": record.attempt,
        "workerLosses": record.worker_losses,
        "redriveCount": record.redrive_count,
        "version": record.version,
        "resultShape": record.result_shape.value,
        "nextDueAtEpochMs": record.next_check_epoch_ms,
        "createdAtEpochMs": record.created_epoch_ms,
        "updatedAtEpochMs": record.updated_epoch_ms,
        "errorCode": record.error_code,
        "errorMessage": record.error_message,
        "terminalReason": None if record.terminal_reason is None else record.terminal_reason.value,
        "awaitUnitId": record.await_unit_id,
        "parentExecutionId": record.parent_execution_id,
        "search": dict(record.search),
        "publication": None
        if publication is None
        else {
            "state": publication.state.value,
            "target": publication.target,
            "objectKey": publication.object_key,
            "digest": publication.digest,
            "sizeBytes": publication.size_bytes,
            "itemCount": publication.item_count,
        },
    }


def interaction_view(record: InteractionRecord) -> JsonObject:
    """A pending interaction, with the request it waits for an answer to."""
    return {
        "interactionId": record.interaction_id,
        "correlationId": record.correlation_id,
        "executionId": record.execution_id,
        "pipelineId": record.pipeline_id,
        "stepId": record.step_id,
        "stepIndex": record.step_index,
        "itemIndex": record.item_index,
        "inputType": record.input_type,
        "outputType": record.output_type,
        "status": record.status.value,
        "requestPayload": orjson.Fragment(record.request or "null"),
        "assignee": record.assignee,
        "group": record.group,
        "transportType": record.transport_type,
        "transportMetadata": dict(record.transport_metadata),
        "deadlineEpochMs": record.deadline_epoch_ms,
        "createdAtEpochMs": record.created_epoch_ms,
        "updatedAtEpochMs": record.updated_epoch_ms,
    }


def fact_view(sequenced: SequencedFact) -> JsonObject:
    """``{seq, type, atEpochMs, executionId, pipelineId, key, data}``."""
    fact = sequenced.fact
    return {
        "seq": sequenced.seq,
        "type": fact.type.value,
        "atEpochMs": fact.at_epoch_ms,
        "executionId": fact.execution_id,
        "pipelineId": fact.pipeline_id,
        "key": fact.key,
        "data": dict(fact.data),
    }


def late_view(record: LateRecord) -> JsonObject:
    """A completion that changed nothing when it came, with its body."""
    return {
        "lateId": record.late_id,
        "interactionId": record.interaction_id,
        "executionId": record.execution_id,
        "stepId": record.step_id,
        "reason": record.reason,
        "responsePayload": orjson.Fragment(record.body or "null"),
        "actor": record.actor,
        "createdAtEpochMs": record.created_epoch_ms,
    }


def completed_view(completed: Completed) -> JsonObject:
    """``{interactionId, executionId, stepId, status, duplicate}``."""
    return {
        "interactionId": completed.interaction_id,
        "executionId": completed.execution_id,
        "stepId": completed.step_id,
        "status": completed.status,
        "duplicate": completed.duplicate,
    }


def read_completion(
    members: Members,
    tenant: TenantId,
    *,
    usual_actor: str,
    unwrap: Callable[[object], object] = lambda payload: payload,
) -> Completion:
    """A completion envelope.

    Args:
        members: its members; unknown ones are ignored.
        tenant: whose it is.
        usual_actor: who answered when the envelope does not say.
        unwrap: makes JSON data of ``responsePayload``.

    Raises:
        PayloadError: nothing says what is answered, there is no ``responsePayload``, or a member has the wrong type.
    """
    completion = Completion(
        tenant_id=tenant,
        interaction_id=members.text("interactionId"),
        correlation_id=members.text("correlationId"),
        resume_token=members.text("resumeToken"),
        idempotency_key=members.text("idempotencyKey"),
        payload=unwrap(members.value("responsePayload")),
        actor=members.text("actor") or usual_actor,
    )
    if not (completion.interaction_id or completion.correlation_id or completion.resume_token):
        members.problem("interactionId", "one of interactionId, correlationId and resumeToken is required")
    members.check()
    return completion
