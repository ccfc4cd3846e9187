"""Dead letters: what an operator or another system is told of an execution, or a message, that came to nothing."""

from __future__ import annotations

from attrs import frozen

from tpfd.core.records import ExecutionRecord, TerminalReason


@frozen(kw_only=True)
class DeadLetter:
    """One dead letter. Names on the wire are camelCase; times are epoch milliseconds.

    Attributes:
        envelope_id: execution and re-drive, so that a repeat is recognisable.
        step_id: step it stood before when it ended; None behind the last.
        worker: last process that ran it, for people.
        redrive_hint: a command that requeues it.
    """

    envelope_id: str
    tenant_id: str
    execution_id: str
    execution_key: str | None
    correlation_id: str
    transition_key: str
    resource_type: str
    resource_name: str
    transport: str
    platform: str
    terminal_status: str
    terminal_reason: str
    error_code: str | None
    error_message: str | None
    retryable: bool
    retries_observed: int
    created_at_epoch_ms: int
    step_id: str | None
    worker: str | None
    redrive_hint: str


@frozen(kw_only=True)
class UnreadableAnswer:
    """A message that came as an answer and could not be used as one. Names on the wire are camelCase.

    Attributes:
        envelope_id: source and position, so that a repeat is recognisable.
        transport: where it came from, as ``kafka:payments.out``.
        position: its place there.
        reason: stable name of what is wrong with it.
        size_bytes: of the whole message.
        body_base64: its bytes; of a very large one the beginning.
    """

    envelope_id: str
    transport: str
    position: str
    reason: str
    message: str
    size_bytes: int
    body_base64: str
    received_at_epoch_ms: int


def dead_letter(record: ExecutionRecord, step_id: str | None, worker: str | None, now_epoch_ms: int) -> DeadLetter:
    """The dead letter of a FAILED or DLQ execution."""
    reason = record.terminal_reason or TerminalReason.INTERNAL
    allow = "" if record.status == "DLQ" else " --allow-failed"
    return DeadLetter(
        envelope_id=f"{record.execution_id}:{record.redrive_count}",
        tenant_id=record.tenant_id,
        execution_id=record.execution_id,
        execution_key=record.execution_key,
        correlation_id=record.execution_id,
        transition_key=record.last_transition_key,
        resource_type="pipeline",
        resource_name=record.pipeline_id,
        transport="LOCAL",
        platform="tpfd",
        terminal_status=record.status,
        terminal_reason=reason,
        error_code=record.error_code,
        error_message=record.error_message,
        retryable=reason is TerminalReason.RETRY_EXHAUSTED,
        retries_observed=record.attempt,
        created_at_epoch_ms=now_epoch_ms,
        step_id=step_id,
        worker=worker,
        redrive_hint=f"tpfd redrive {record.execution_id} --reason '...'{allow}",
    )
