"""Every kind of record with its indexes: the one place that says how records are found.

An index shows where work waits. What it shows is a hint: a transaction reads the record again and decides.
"""

from __future__ import annotations

from typing import Any

from tpfd.core.records import (
    BlockRecord,
    ExecutionKeyRecord,
    ExecutionRecord,
    IngestedRecord,
    InteractionRecord,
    InteractionStatus,
    LateRecord,
    PermitRecord,
    SearchRecord,
    SocketRecord,
    TenantId,
    UnitId,
    UnitRecord,
)
from tpfd.core.stored import PayloadChunk, PayloadManifest
from tpfd.core.transact import Index, IndexEntry, Kind

DUE_PARTITION = "due"
"""What has work to do by time."""
TIDY_PARTITION = "tidy"
"""Ended executions that have still something to be done about them: dead letter, clean-up, removal."""
BLOCK_SIZE = 256
"""Items per BlockRecord."""


def _due(record: UnitRecord | InteractionRecord) -> IndexEntry | None:
    at = record.next_check_epoch_ms
    return None if at is None else IndexEntry(DUE_PARTITION, at)


def _execution_due(record: ExecutionRecord) -> IndexEntry | None:
    at = record.next_check_epoch_ms
    if at is None:
        return None
    # Apart, so that a heap of ended executions never stands before one that could run.
    return IndexEntry(TIDY_PARTITION if record.status.terminal else DUE_PARTITION, at)


def status_partition(tenant_id: TenantId, pipeline_id: str, status: str) -> str:
    return f"{tenant_id}/{pipeline_id}/{status}"


def _execution_by_status(record: ExecutionRecord) -> IndexEntry | None:
    if record.parent_execution_id is not None:
        return None
    return IndexEntry(status_partition(record.tenant_id, record.pipeline_id, record.status), record.execution_id)


def _child_by_unit(record: ExecutionRecord) -> IndexEntry | None:
    if record.unit_id is None or record.item_index is None:
        return None
    return IndexEntry(record.unit_id, record.item_index)


EXECUTION_DUE = Index[ExecutionRecord]("due", _execution_due, sharded=True)
EXECUTION_BY_STATUS = Index[ExecutionRecord]("by_status", _execution_by_status, sharded=True)
CHILD_BY_UNIT = Index[ExecutionRecord]("by_unit", _child_by_unit, sharded=True)  # a unit may have a million
EXECUTION = Kind(
    "execution",
    ExecutionRecord,
    lambda record: (record.tenant_id, record.execution_id),
    (EXECUTION_DUE, EXECUTION_BY_STATUS, CHILD_BY_UNIT),
)

EXECUTION_KEY = Kind("execution_key", ExecutionKeyRecord, lambda record: (record.tenant_id, record.key_id))


def search_partition(tenant_id: TenantId, pipeline_id: str, name: str, value: str) -> str:
    return f"{tenant_id}/{pipeline_id}/{name}={value}"


SEARCH_BY_VALUE = Index[SearchRecord](
    "by_value",
    lambda record: IndexEntry(
        search_partition(record.tenant_id, record.pipeline_id, record.name, record.value), record.execution_id
    ),
)
SEARCH = Kind(
    "search",
    SearchRecord,
    lambda record: (record.tenant_id, f"{record.execution_id}/{record.name}"),
    (SEARCH_BY_VALUE,),
)

UNIT_DUE = Index[UnitRecord]("due", _due, sharded=True)
UNIT = Kind("unit", UnitRecord, lambda record: (record.tenant_id, record.unit_id), (UNIT_DUE,))


def block_id(unit_id: UnitId, block_index: int) -> str:
    return f"{unit_id}.{block_index:07d}"


BLOCK = Kind("block", BlockRecord, lambda record: (record.tenant_id, block_id(record.unit_id, record.block_index)))


def pending_partition(tenant_id: TenantId, by: str, name: str) -> str:
    """Partition of open interactions: by `step` (a step id), `assignee` or `group`."""
    return f"{tenant_id}/{by}/{name}"


def queue_partition(tenant_id: TenantId, pipeline_id: str, contract_version: str, step_id: str) -> str:
    """Partition of the interactions of a step that no socket holds.

    Each contract has its own: a request waits for those who can read its answer.
    """
    return f"{tenant_id}/{pipeline_id}/{contract_version}/{step_id}"


def send_partition(pipeline_id: str, contract_version: str, step_id: str) -> str:
    """The same of the interactions, of all tenants, that we have still to send ourselves."""
    return queue_partition(TenantId("*"), pipeline_id, contract_version, step_id)


BEFORE_ALL_IDS = "!"
"""Sorts before the first character of any id."""

SENT_TRANSPORTS = frozenset({"webhook", "kafka", "sqs"})
"""Transports whose requests we send, instead of being asked for them."""


def _pending(by: str, name: str | None, record: InteractionRecord) -> IndexEntry | None:
    if name is None or not record.status.open:
        return None
    return IndexEntry(pending_partition(record.tenant_id, by, name), record.interaction_id)


def _held(record: InteractionRecord) -> IndexEntry | None:
    """Where an interaction waits for its answer: in its step's queue, or in the hands of a socket."""
    if record.status is InteractionStatus.WAITING:
        if record.transport_type in SENT_TRANSPORTS:
            partition = send_partition(record.pipeline_id, record.contract_version, record.step_id)
        else:
            partition = queue_partition(
                record.tenant_id, record.pipeline_id, record.contract_version, record.step_id
            )
        # One that was out keeps its slot of the budget, so it goes first: those before it may wait for that very slot.
        first = "" if record.permit_slot is None else BEFORE_ALL_IDS
        return IndexEntry(partition, first + record.interaction_id)
    if record.delivery is not None and record.status.open:
        return IndexEntry(record.delivery, record.interaction_id)
    return None


INTERACTION_DUE = Index[InteractionRecord]("due", _due, sharded=True)
INTERACTION_BY_STEP = Index[InteractionRecord](
    "by_step", lambda record: _pending("step", record.step_id, record), sharded=True
)
INTERACTION_BY_ASSIGNEE = Index[InteractionRecord](
    "by_assignee", lambda record: _pending("assignee", record.assignee, record)
)
INTERACTION_BY_GROUP = Index[InteractionRecord]("by_group", lambda record: _pending("group", record.group, record))
INTERACTION_HELD = Index[InteractionRecord]("held", _held, sharded=True)
INTERACTION_BY_UNIT = Index[InteractionRecord](
    "by_unit", lambda record: IndexEntry(record.unit_id, record.item_index), sharded=True
)
INTERACTION = Kind(
    "interaction",
    InteractionRecord,
    lambda record: (record.tenant_id, record.interaction_id),
    (
        INTERACTION_DUE,
        INTERACTION_BY_STEP,
        INTERACTION_BY_ASSIGNEE,
        INTERACTION_BY_GROUP,
        INTERACTION_HELD,
        INTERACTION_BY_UNIT,
    ),
)


def late_partition(tenant_id: TenantId, execution_id: str | None) -> str:
    """Partition of the completions that changed nothing in an execution; None: of the orphans."""
    return f"{tenant_id}/{execution_id or 'orphan'}"


LATE_BY_EXECUTION = Index[LateRecord](
    "by_execution",
    lambda record: IndexEntry(late_partition(record.tenant_id, record.execution_id), record.created_epoch_ms),
)
LATE = Kind("late", LateRecord, lambda record: (record.tenant_id, record.late_id), (LATE_BY_EXECUTION,))

SOCKET_DUE = Index[SocketRecord]("due", lambda record: IndexEntry(DUE_PARTITION, record.expires_epoch_ms))
SOCKET = Kind("socket", SocketRecord, lambda record: (record.tenant_id, record.socket_id), (SOCKET_DUE,))

PERMIT_BY_SCOPE = Index[PermitRecord]("by_scope", lambda record: IndexEntry(record.scope, record.slot))
PERMIT = Kind(
    "permit", PermitRecord, lambda record: (record.tenant_id, f"{record.scope}#{record.slot:06d}"), (PERMIT_BY_SCOPE,)
)

INGESTED_BY_SOURCE = Index[IngestedRecord](
    "by_source", lambda record: IndexEntry(f"{record.tenant_id}/{record.source}", record.object_key)
)
INGESTED = Kind("ingested", IngestedRecord, lambda record: (record.tenant_id, record.identity), (INGESTED_BY_SOURCE,))


def owner_partition(tenant_id: TenantId, owned_id: str) -> str:
    """Partition of the large values of a root execution and of all below it, whose ids begin with its own."""
    return f"{tenant_id}/{owned_id.partition('.')[0]}"


MANIFEST_BY_OWNER = Index[PayloadManifest](
    "by_owner",
    lambda record: IndexEntry(owner_partition(record.tenant_id, record.stored_id), record.stored_id),
)
MANIFEST = Kind(
    "payload_manifest",
    PayloadManifest,
    lambda record: (record.tenant_id, record.stored_id),
    (MANIFEST_BY_OWNER,),
)
CHUNK = Kind("payload_chunk", PayloadChunk, lambda record: (record.tenant_id, record.chunk_id))

KINDS: tuple[Kind[Any], ...] = (
    EXECUTION,
    EXECUTION_KEY,
    SEARCH,
    UNIT,
    BLOCK,
    INTERACTION,
    LATE,
    SOCKET,
    PERMIT,
    INGESTED,
    MANIFEST,
    CHUNK,
)
KIND_OF: dict[type[Any], Kind[Any]] = {kind.record_type: kind for kind in KINDS}
