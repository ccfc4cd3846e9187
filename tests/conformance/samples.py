"""Records for tests: small, whole, and different where a test says so."""

from __future__ import annotations

from typing import Any, TypeVar

from attrs import evolve

from tpfd.core.kinds import BLOCK, block_id
from tpfd.core.records import (
    BlockRecord,
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    InteractionId,
    InteractionRecord,
    InteractionStatus,
    JsonText,
    Payload,
    ResultShape,
    TenantId,
    UnitId,
)
from tpfd.core.transact import Decide, Decision, Key, Read, Snapshot
from tpfd.stores.protocol import Store

T = TypeVar("T")

TENANT = TenantId("acme")
OTHER = TenantId("other")
EXECUTION_ID = ExecutionId("01JDEXECUTION")
UNIT_ID = UnitId("01JDEXECUTION.s001")


def execution(name: str = EXECUTION_ID, tenant: TenantId = TENANT, **changes: Any) -> ExecutionRecord:
    record = ExecutionRecord(
        tenant_id=tenant,
        execution_id=ExecutionId(name),
        pipeline_id="orders",
        contract_version="c1",
        result_shape=ResultShape.ONE,
        status=ExecutionStatus.QUEUED,
        version=1,
        input=Payload(type_name="Order", json=JsonText('{"n":1}')),
        created_epoch_ms=1_000,
        updated_epoch_ms=1_000,
    )
    return evolve(record, **changes)


def interaction(item_index: int = 0, tenant: TenantId = TENANT, **changes: Any) -> InteractionRecord:
    record = InteractionRecord(
        tenant_id=tenant,
        interaction_id=InteractionId(f"{UNIT_ID}.{item_index:09d}"),
        execution_id=EXECUTION_ID,
        unit_id=UNIT_ID,
        pipeline_id="orders",
        step_id="approve",
        step_index=1,
        item_index=item_index,
        status=InteractionStatus.DISPATCHED,
        version=1,
        input_type="Order",
        output_type="Approval",
        correlation_id=f"c{item_index}",
        idempotency_key=f"k{item_index}",
        request=JsonText("{}"),
        request_digest="d",
        transport_type="interaction-api",
        deadline_epoch_ms=9_000,
        created_epoch_ms=1_000,
        updated_epoch_ms=1_000,
    )
    return evolve(record, **changes)


def counter(index: int = 0, count: int = 0, tenant: TenantId = TENANT, unit: str = UNIT_ID) -> BlockRecord:
    """The smallest record with a number in it."""
    return BlockRecord(tenant_id=tenant, unit_id=UnitId(unit), block_index=index, version=1, continued_count=count)


def counter_key(index: int = 0, tenant: TenantId = TENANT, unit: str = UNIT_ID) -> Key[BlockRecord]:
    return BLOCK.key(tenant, block_id(UnitId(unit), index))


def fact(key: str, owner: str = EXECUTION_ID, tenant: TenantId = TENANT, **data: str | int | bool | None) -> Fact:
    return Fact(
        tenant_id=tenant,
        execution_id=ExecutionId(owner),
        pipeline_id="orders",
        key=key,
        type=FactType.RUN_SUBMITTED,
        at_epoch_ms=1_000,
        data=data,
    )


def add_one(index: int = 0, tenant: TenantId = TENANT) -> Decide[int]:
    """Counts a counter up; the result is the new count."""
    key = counter_key(index, tenant)

    def decide(snapshot: Snapshot) -> Decision[int]:
        found = snapshot.get(key)
        count = 1 if found is None else found.continued_count + 1
        return Decision(count, puts=(counter(index, count, tenant),))

    return decide


def always(decision: Decision[T]) -> Decide[T]:
    """Decides so, whatever is there."""
    return lambda _snapshot: decision


async def increment(store: Store, index: int = 0, tenant: TenantId = TENANT) -> int:
    return await store.transact([Read(counter_key(index, tenant))], add_one(index, tenant))


async def put(store: Store, *records: Any, facts: tuple[Fact, ...] = ()) -> None:
    """Writes records without reading them, as many transactions as it takes."""
    for start in range(0, max(len(records), 1), 25):
        decision = Decision(None, puts=records[start : start + 25], facts=facts if start == 0 else ())
        await store.transact([], always(decision))


async def remove(store: Store, *keys: Key[Any]) -> None:
    await store.transact([], always(Decision(None, deletes=keys)))
