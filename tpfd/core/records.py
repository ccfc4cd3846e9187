"""What is stored: frozen records, their ids and statuses.

A record is a value. It is never changed, only replaced: a transition takes one and gives the next, with ``version``
one higher. Stores keep whole records under their key; nothing else is durable.

Times are wall-clock epoch milliseconds (``_epoch_ms``). They decide when work happens, never what is committed: that
is decided by ``fence`` and ``status`` alone.

Ids sort: an execution id by its time of creation, a unit id with its execution, an interaction and a child with their
unit and item. ``tpfd.core.ids`` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NewType

from attrs import frozen

TenantId = NewType("TenantId", str)
ExecutionId = NewType("ExecutionId", str)
UnitId = NewType("UnitId", str)
InteractionId = NewType("InteractionId", str)
JsonText = NewType("JsonText", str)
"""Canonical JSON: compact, fields in declared order. Equal values of one type are equal texts."""

FactValue = str | int | bool | None


class ExecutionStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAIT_RETRY = "WAIT_RETRY"
    WAITING_EXTERNAL = "WAITING_EXTERNAL"
    REMOTE_OUTCOME_UNKNOWN = "REMOTE_OUTCOME_UNKNOWN"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DLQ = "DLQ"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """No transition leaves it but an operator's re-drive."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    {ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED, ExecutionStatus.DLQ, ExecutionStatus.CANCELLED}
)


class ResultShape(StrEnum):
    ONE = "ONE"
    MANY = "MANY"


class UnitStatus(StrEnum):
    WAITING_EXTERNAL = "WAITING_EXTERNAL"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


class InteractionStatus(StrEnum):
    WAITING = "WAITING"
    DISPATCHING = "DISPATCHING"
    DISPATCHED = "DISPATCHED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def open(self) -> bool:
        """A completion can still be admitted."""
        return self in _OPEN


_OPEN = frozenset({InteractionStatus.WAITING, InteractionStatus.DISPATCHING, InteractionStatus.DISPATCHED})


class PublicationState(StrEnum):
    PREPARED = "PREPARED"
    COMPLETED = "COMPLETED"


class TerminalReason(StrEnum):
    RETRY_EXHAUSTED = "retry_exhausted"
    NON_RETRYABLE = "non_retryable"
    WORKER_LOST = "worker_lost"
    AWAIT_TIMEOUT = "await_timeout"
    AWAIT_FAILED = "await_failed"
    CIRCUIT_DEFERRAL_EXHAUSTED = "circuit_deferral_exhausted"
    INTERNAL = "internal"
    CANCELLED = "cancelled"


@frozen(kw_only=True)
class Payload:
    """A typed value, or where to read it. Exactly one of ``json``, ``stored_id`` and ``outputs_of`` is set.

    A MANY payload (``item_count`` not None) is a JSON array of values of ``type_name``.
    """

    type_name: str  # name in the pipeline's contract; of each item where item_count is set
    json: JsonText | None = None  # the value itself; None: it is elsewhere
    stored_id: str | None = None  # id of a PayloadManifest; None: inline or outputs_of
    outputs_of: UnitId | None = None  # the outputs of that unit's children in item order; None: inline or stored
    item_count: int | None = None  # number of items; None: one value


@frozen(kw_only=True)
class Publication:
    """The output object of an execution, decided before it is put in place."""

    state: PublicationState  # PREPARED: recorded, perhaps not in place; COMPLETED: in place
    target: str  # name of the `publish` entry
    object_key: str  # where it stands, relative to the target's root; rendered once
    temporary: str  # name of the staged object, which carries the fence
    digest: str  # sha256 of the bytes, hex
    size_bytes: int
    item_count: int


@frozen(kw_only=True)
class ExecutionRecord:
    """One durable run of a pipeline, or of one item of an itemised await (then ``parent_execution_id`` is set)."""

    tenant_id: TenantId
    execution_id: ExecutionId
    execution_key: str | None = None  # idempotency key of the submit; None: the caller gave none
    pipeline_id: str
    contract_version: str  # digest of the typed contract it was submitted under
    release_version: str = ""  # set by release pinning; "" means any
    result_shape: ResultShape
    status: ExecutionStatus
    version: int  # +1 with every write
    step_index: int = 0  # next step to run; the number of steps means only publication is left
    stop_index: int | None = None  # child: first step it does not run; None: to the end
    attempt: int = 0  # failed runs that were counted; handing back and losses are not
    worker_losses: int = 0  # takeovers of an expired lease
    deferred_count: int = 0  # uncounted delays since the last progress (open circuit)
    deferred_since_epoch_ms: int | None = None  # first of them; None: none
    redrive_count: int = 0  # operator's requeues
    fence: int = 0  # +1 with every claim; guards every commit of an attempt
    lease_owner: str | None = None  # who holds it, or ended it; for people, never used for recovery. None: nobody
    lease_expires_epoch_ms: int | None = None  # None: not leased
    next_check_epoch_ms: int | None = None  # the one thing the sweeper looks at; None: nothing is due by time
    last_transition_key: str = ""  # the attempt that wrote it, for logs
    input: Payload  # input of step `step_index`
    input_digest: str = ""  # sha256 of the submitted canonical input, to compare repeats of a key
    await_unit_id: UnitId | None = None  # unit it is or was last suspended on; None: never suspended
    result: Payload | None = None  # None: none yet, or published instead
    publication: Publication | None = None  # None: not prepared, or no output object
    error_code: str | None = None  # last failure; None: none so far
    error_message: str | None = None  # for a person
    terminal_reason: TerminalReason | None = None  # set with FAILED, DLQ and CANCELLED
    dead_letter_due: bool = False  # a dead letter has still to be sent
    cleanup_due: bool = False  # what hangs below has still to be released
    search: Mapping[str, str] = {}  # declared search keys of the input
    source_key: str | None = None  # object it was ingested from; None: it was submitted
    trace_parent: str | None = None  # W3C trace context of the submit; None: none was sent
    parent_execution_id: ExecutionId | None = None  # child only
    unit_id: UnitId | None = None  # child only: the unit whose item it continues
    item_index: int | None = None  # child only: the item's place in the source
    created_epoch_ms: int
    updated_epoch_ms: int
    ttl_epoch_s: int | None = None  # set when it becomes terminal; None: kept


@frozen(kw_only=True)
class ExecutionKeyRecord:
    """Maps tenant, pipeline and idempotency key to the one execution submitted under it."""

    tenant_id: TenantId
    key_id: str  # digest of pipeline and key
    execution_id: ExecutionId
    input_digest: str  # sha256 of the canonical input
    created_epoch_ms: int


@frozen(kw_only=True)
class SearchRecord:
    """One search key of one execution."""

    tenant_id: TenantId
    pipeline_id: str
    name: str
    value: str
    execution_id: ExecutionId


@frozen(kw_only=True)
class UnitRecord:
    """One durable pause of one await step in one execution."""

    tenant_id: TenantId
    unit_id: UnitId
    execution_id: ExecutionId
    pipeline_id: str
    step_id: str
    step_index: int
    itemised: bool  # one interaction per item of a stream, each continued by a child
    status: UnitStatus
    version: int
    redrive_count: int = 0  # re-drive of the execution in which it was opened last
    primary_interaction_id: InteractionId | None = None  # the only interaction of a scalar unit; None: itemised
    dispatch_complete: bool = False  # every interaction exists; expected_item_count is final
    expected_item_count: int | None = None  # None until dispatch_complete
    continue_index: int  # step that follows the await
    suffix_stop_index: int  # itemised: first step its children do not run
    pulled: bool  # its requests wait in a queue until a socket takes them
    timeout_ms: int  # time that each of its interactions has
    scanned_index: int = -1  # itemised: all items up to it have their child; the scan goes on behind it
    full_block_count: int = 0  # itemised: blocks whose items are all continued
    next_check_epoch_ms: int | None = None  # pages left to do; None: nothing is due by time
    created_epoch_ms: int
    updated_epoch_ms: int
    ttl_epoch_s: int | None = None


@frozen(kw_only=True)
class BlockRecord:
    """Progress of up to BLOCK_SIZE items of a unit, so that many writers do not meet on the unit's row."""

    tenant_id: TenantId
    unit_id: UnitId
    block_index: int  # item_index // BLOCK_SIZE
    version: int
    continued_count: int  # items whose child is SUCCEEDED, or that were rejected


@frozen(kw_only=True)
class InteractionRecord:
    """What the outside sees of an await: one request and its one answer."""

    tenant_id: TenantId
    interaction_id: InteractionId
    execution_id: ExecutionId
    unit_id: UnitId
    pipeline_id: str
    step_id: str
    step_index: int
    item_index: int = 0  # the item's place in the source; 0 for a scalar await
    itemised: bool = False
    contract_version: str = ""  # of its execution: what request and answer are read under
    redrive_count: int = 0  # re-drive of the execution in which it was opened last
    status: InteractionStatus
    version: int
    input_type: str
    output_type: str
    correlation_id: str
    causation_id: str = ""  # transition key of the attempt that created it
    idempotency_key: str  # stable over retries, takeovers and re-drives
    request: JsonText | None  # None: it is stored apart
    request_stored_id: str | None = None  # PayloadManifest of a large request
    request_count: int | None = None  # items of a MANY request (a JSON array); None: one value
    request_digest: str  # sha256 of the request
    response: JsonText | None = None  # None until COMPLETED, or stored apart, or it was rejected
    response_stored_id: str | None = None  # PayloadManifest of a large response
    response_count: int | None = None  # items of a MANY response; None: one value
    response_digest: str = ""  # sha256 of the response; "" until COMPLETED; with COMPLETED: it was rejected
    transport_type: str
    transport_metadata: Mapping[str, str] = {}
    delivery: str | None = None  # socket that holds it; None: nobody does
    send_count: int = 0  # times it was handed to the transport
    permit_slot: int | None = None  # its slot of the admission budget; None: it was never handed out, or has none
    dispatch_due_epoch_ms: int | None = None  # DISPATCHING: when to try again, unless it is sent by then
    actor: str | None = None  # who answered
    completion_key: str | None = None  # idempotency key of the completion
    assignee: str | None = None
    group: str | None = None
    remind_at_epoch_ms: int | None = None  # None: no reminder, or already sent
    escalate_at_epoch_ms: int | None = None  # None: no escalation, or already done
    escalate_to: str | None = None
    on_timeout: JsonText | None = None  # canonical value admitted at the deadline; None: the deadline fails it
    on_timeout_count: int | None = None  # its items, where the answer is a list
    deadline_epoch_ms: int
    next_check_epoch_ms: int | None = None  # dispatch lease, reminder, escalation or deadline, the nearest
    error_message: str | None = None
    created_epoch_ms: int
    updated_epoch_ms: int
    completed_epoch_ms: int | None = None
    ttl_epoch_s: int | None = None


@frozen(kw_only=True)
class LateRecord:
    """A completion that came too late, or differed from the admitted one, or met nothing (an orphan)."""

    tenant_id: TenantId
    late_id: str  # interaction id + digest, so that a repeat is the same row
    interaction_id: str
    execution_id: ExecutionId | None  # None: orphan
    step_id: str | None
    reason: str  # late | conflicting | orphan | matched (was an orphan)
    body: JsonText | None  # None: it is stored apart
    stored_id: str | None = None  # PayloadManifest of a large body
    actor: str | None
    created_epoch_ms: int


@frozen(kw_only=True)
class SocketRecord:
    """The lease of one provider socket. When it runs out, what the socket held goes to another."""

    tenant_id: TenantId
    socket_id: str
    pipeline_id: str
    node: str  # for people
    version: int
    expires_epoch_ms: int


@frozen(kw_only=True)
class PermitRecord:
    """One slot of a shared admission budget. It is in use as long as the interaction that it names is open."""

    tenant_id: TenantId
    scope: str  # pipeline, await step and endpoint
    slot: int
    version: int
    owner_tenant_id: TenantId
    interaction_id: InteractionId
    redrive_count: int  # of the execution, when the interaction was given the slot
    acquired_epoch_ms: int


@frozen(kw_only=True)
class IngestedRecord:
    """An ingested object: kept as long as the object is listed, so that it runs once."""

    tenant_id: TenantId
    identity: str  # digest of source name and the object's identity fields
    source: str
    object_key: str
    execution_id: ExecutionId
    after_done: bool  # what `after` asks for was done
    created_epoch_ms: int


class FactType(StrEnum):
    RUN_SUBMITTED = "RunSubmitted"
    SEGMENT_ATTEMPT_STARTED = "SegmentAttemptStarted"
    SEGMENT_ATTEMPT_FAILED = "SegmentAttemptFailed"
    SEGMENT_HANDED_BACK = "SegmentHandedBack"
    SEGMENT_DEFERRED = "SegmentDeferred"
    SEGMENT_COMPLETED = "SegmentCompleted"
    SEGMENT_SUSPENDED = "SegmentSuspended"
    LEASE_TAKEN_OVER = "LeaseTakenOver"
    OUTCOME_UNKNOWN = "RemoteOutcomeUnknown"
    INTERACTION_DISPATCHED = "BoundaryInteractionDispatched"
    DISPATCH_COMPLETED = "BoundaryDispatchCompleted"
    DISPATCH_FAILED = "BoundaryDispatchFailed"
    COMPLETION_ADMITTED = "BoundaryCompletionAdmitted"
    COMPLETION_LATE = "BoundaryCompletionLate"
    COMPLETION_CONFLICTING = "BoundaryCompletionConflicting"
    INTERACTION_TIMED_OUT = "InteractionTimedOut"
    INTERACTION_REMINDED = "InteractionReminded"
    INTERACTION_ESCALATED = "InteractionEscalated"
    RESUME_RELEASED = "BoundaryReleased"
    CONTINUATION_CREATED = "ContinuationSegmentCreated"
    OUTPUT_STARTED = "TerminalOutputStarted"
    PUBLICATION_PREPARED = "TerminalPublicationPrepared"
    PUBLICATION_COMPLETED = "TerminalPublicationCompleted"
    RUN_SUCCEEDED = "RunSucceeded"
    RUN_FAILED = "RunFailed"
    RUN_CANCELLED = "RunCancelled"
    RUN_REDRIVEN = "RunRedriven"
    DEAD_LETTER_SENT = "DeadLetterSent"


@frozen(kw_only=True)
class Fact:
    """One thing that happened, for people and feeds. Repeating it (same execution and key) is a no-op."""

    tenant_id: TenantId
    execution_id: ExecutionId
    pipeline_id: str
    key: str  # unique within the execution
    type: FactType
    at_epoch_ms: int
    data: Mapping[str, FactValue] = {}


@frozen
class SequencedFact:
    """A fact with its place in the store's journal."""

    seq: int
    fact: Fact
