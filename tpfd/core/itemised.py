"""How the items of a parked unit go on without their stream: children, progress, release.

Theory of operation. When an itemised unit is parked (``dispatch_complete`` and its execution WAITING_EXTERNAL on it),
each answered item is continued by a *child execution* that runs the steps behind the await and keeps its output. There
are two facts per item and both are rows: the interaction COMPLETED (the answer is admitted), the child SUCCEEDED (it
was used). Progress is counted in blocks of ``BLOCK_SIZE`` items so that many children that end together do not meet
on one row; a child's end and its count are one transaction, and a child ends once, so the count is exact. When every
block is full the unit becomes due; the release then reads all children in item order, page by page, and only if each
is SUCCEEDED the parent is released. The count says when to look; the rows decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import evolve

from tpfd.core import awaits, execution, ids, interacting
from tpfd.core.events import ExecutionPolicy, Release, Suspend, UnitEnded
from tpfd.core.execution import Outcome, Refused, Transition
from tpfd.core.kinds import BLOCK, BLOCK_SIZE, EXECUTION, INTERACTION, UNIT, block_id
from tpfd.core.records import (
    BlockRecord,
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    InteractionRecord,
    InteractionStatus,
    Payload,
    ResultShape,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import Decision, Key, Need, Read, Snapshot

CONTINUE_PAGE = 8
"""Items looked at by one `continue_items`: each may put a child, and the page also puts the unit and two blocks."""


def block_size(expected: int, block_index: int) -> int:
    """Items in one block of a unit of `expected` items."""
    return min(BLOCK_SIZE, expected - block_index * BLOCK_SIZE)


def block_count(expected: int) -> int:
    """Blocks of a unit of `expected` items."""
    return -(-expected // BLOCK_SIZE)


def park(
    snapshot: Snapshot,
    key: Key[ExecutionRecord],
    unit_key: Key[UnitRecord],
    event: Suspend,
    expected_item_count: int,
    now: int,
    policy: ExecutionPolicy,
) -> Decision[Outcome]:
    """Demotes a live session, or parks a unit that has no live window: all interactions exist, the stream may end.

    The unit becomes due at once: what was answered before this commit is found by `continue_items`.
    """
    record, unit = snapshot.get(key), snapshot.get(unit_key)
    if record is None or unit is None:
        return Decision(Refused("not_found", "the execution or its unit is gone"))
    outcome = execution.apply(record, event, now, policy)
    if isinstance(outcome, Refused):
        return Decision(outcome)
    if unit.status is not UnitStatus.WAITING_EXTERNAL and unit.redrive_count == record.redrive_count:
        reason = TerminalReason.AWAIT_TIMEOUT if unit.status is UnitStatus.TIMED_OUT else TerminalReason.AWAIT_FAILED
        ended = UnitEnded(unit_id=unit.unit_id, reason=reason, code=reason, message=f"its await is {unit.status}")
        failed = execution.follow(outcome, ended, now, policy)
        if isinstance(failed, Refused):
            return Decision(failed)
        return Decision(failed, puts=(failed.record,), facts=failed.facts)
    parked = awaits.moved_unit(
        unit,
        UnitStatus.WAITING_EXTERNAL,
        now,
        next_check=now,
        redrive_count=record.redrive_count,
        dispatch_complete=True,
        expected_item_count=expected_item_count,
        scanned_index=-1,
    )
    dispatched = execution.fact(
        record,
        FactType.DISPATCH_COMPLETED,
        f"dispatch-complete-{unit.unit_id}-{record.fence}",
        now,
        unitId=unit.unit_id,
        expectedItemCount=expected_item_count,
    )
    return Decision(outcome, puts=(outcome.record, parked), facts=(dispatched, *outcome.facts))


def is_parked_on(execution_record: ExecutionRecord, unit: UnitRecord) -> bool:
    """Whether items of this unit may be continued by children."""
    return (
        unit.itemised
        and unit.dispatch_complete
        and unit.status is UnitStatus.WAITING_EXTERNAL
        and execution_record.status is ExecutionStatus.WAITING_EXTERNAL
        and execution_record.await_unit_id == unit.unit_id
    )


def child_of(parent: ExecutionRecord, unit: UnitRecord, interaction: InteractionRecord, now: int) -> ExecutionRecord:
    """The child that continues an answered item; of one that was rejected it only counts, without an output."""
    return ExecutionRecord(
        tenant_id=parent.tenant_id,
        execution_id=ids.child_id(unit.unit_id, interaction.item_index),
        pipeline_id=parent.pipeline_id,
        contract_version=parent.contract_version,
        release_version=parent.release_version,
        result_shape=ResultShape.ONE,
        status=ExecutionStatus.QUEUED,
        version=1,
        step_index=unit.continue_index,
        stop_index=unit.suffix_stop_index,
        next_check_epoch_ms=now,
        input=awaits.answer_of(interaction),
        trace_parent=parent.trace_parent,
        parent_execution_id=parent.execution_id,
        unit_id=unit.unit_id,
        item_index=interaction.item_index,
        created_epoch_ms=now,
        updated_epoch_ms=now,
    )


def continued(parent: ExecutionRecord, child: ExecutionRecord, now: int) -> Fact:
    """The fact that an item goes on in a child."""
    return execution.fact(
        parent,
        FactType.CONTINUATION_CREATED,
        f"child-{child.execution_id}-{parent.redrive_count}",
        now,
        childExecutionId=child.execution_id,
        itemIndex=child.item_index,
    )


def continue_reads(unit: UnitRecord) -> tuple[Read, ...]:
    """What `continue_items` looks at: the unit, its execution, the next items with their children, and their blocks."""
    reads = [
        Read(UNIT.key_of(unit)),
        Read(EXECUTION.key(unit.tenant_id, unit.execution_id)),
    ]
    for item_index in _next_items(unit):
        reads.append(Read(INTERACTION.key(unit.tenant_id, ids.interaction_id(unit.unit_id, item_index))))
        reads.append(Read(EXECUTION.key(unit.tenant_id, ids.child_id(unit.unit_id, item_index))))
    reads.extend(Read(key) for key in dict.fromkeys(_block_key(unit, item_index) for item_index in _next_items(unit)))
    return tuple(reads)


def _block_key(unit: UnitRecord, item_index: int) -> Key[BlockRecord]:
    return BLOCK.key(unit.tenant_id, block_id(unit.unit_id, item_index // BLOCK_SIZE))


def _next_items(unit: UnitRecord) -> range:
    first = unit.scanned_index + 1
    return range(first, min(first + CONTINUE_PAGE, unit.expected_item_count or 0))


def continue_items(
    snapshot: Snapshot, unit_key: Key[UnitRecord], seen: UnitRecord, now: int
) -> Decision[UnitRecord | None]:
    """Gives the next page of answered items their children, behind `scanned_index`.

    Items that are answered later get theirs from the admission itself. An item without an interaction was rejected
    before it could be asked: it gets a child that has succeeded without an output.

    Returns:
        The unit as it now stands, if there is more to do about it: further pages, or its release.
    """
    unit = snapshot.get(unit_key)
    if unit is None:
        return Decision(None)
    if _next_items(unit) != _next_items(seen):
        return Decision(unit)
    parent = snapshot.get(EXECUTION.key(unit.tenant_id, unit.execution_id))
    if parent is None or not is_parked_on(parent, unit):
        return Decision(None, puts=(awaits.moved_unit(unit, unit.status, now),))
    puts: list[object] = []
    facts: list[Fact] = []
    items = _next_items(unit)
    gaps: Counter[int] = Counter()
    for item_index in items:
        interaction = snapshot.get(INTERACTION.key(unit.tenant_id, ids.interaction_id(unit.unit_id, item_index)))
        child_key = EXECUTION.key(unit.tenant_id, ids.child_id(unit.unit_id, item_index))
        child = snapshot.get(child_key)
        if interaction is None:
            if child is None:
                puts.append(_skipped(parent, unit, item_index, now))
                gaps[item_index // BLOCK_SIZE] += 1
            continue
        if interaction.status is not InteractionStatus.COMPLETED:
            if interaction.redrive_count < parent.redrive_count:
                again = interacting.reopened(interaction, unit, parent.redrive_count, place=None, now=now)
                puts.append(again)
            continue
        if child is None:
            child = child_of(parent, unit, interaction, now)
        elif child.status in (ExecutionStatus.FAILED, ExecutionStatus.DLQ, ExecutionStatus.CANCELLED):
            # A child that fails while its parent is parked fails it. So it failed before the parent was re-driven: it
            # is taken up again under the same id.
            child = evolve(
                child_of(parent, unit, interaction, now),
                version=child.version + 1,
                fence=child.fence,
                redrive_count=child.redrive_count + 1,
                await_unit_id=child.await_unit_id,
                created_epoch_ms=child.created_epoch_ms,
            )
        else:
            continue
        puts.append(child)
        facts.append(continued(parent, child, now))
    full_block_count = unit.full_block_count
    for block_index, count in gaps.items():
        block = _counted(unit, snapshot.get(_block_key(unit, block_index * BLOCK_SIZE)), block_index, count)
        full_block_count += _fills(unit, block)
        puts.append(block)
    after = awaits.moved_unit(
        unit,
        unit.status,
        now,
        scanned_index=items[-1] if len(items) else unit.scanned_index,
        full_block_count=full_block_count,
    )
    if is_scanned(after) and not is_full(after):
        return Decision(None, puts=(*puts, after), facts=tuple(facts))
    # Even an empty unit is looked at once more, for its release.
    after = evolve(after, next_check_epoch_ms=now)
    return Decision(after, puts=(*puts, after), facts=tuple(facts))


def _skipped(parent: ExecutionRecord, unit: UnitRecord, item_index: int, now: int) -> ExecutionRecord:
    """The child of an item that nobody was asked about: it stands in its place, done, without an output."""
    return ExecutionRecord(
        tenant_id=parent.tenant_id,
        execution_id=ids.child_id(unit.unit_id, item_index),
        pipeline_id=parent.pipeline_id,
        contract_version=parent.contract_version,
        release_version=parent.release_version,
        result_shape=ResultShape.ONE,
        status=ExecutionStatus.SUCCEEDED,
        version=1,
        step_index=unit.suffix_stop_index,
        stop_index=unit.suffix_stop_index,
        input=awaits.NOTHING,
        trace_parent=parent.trace_parent,
        parent_execution_id=parent.execution_id,
        unit_id=unit.unit_id,
        item_index=item_index,
        created_epoch_ms=now,
        updated_epoch_ms=now,
    )


def is_scanned(unit: UnitRecord) -> bool:
    """Whether all items were looked at."""
    return unit.scanned_index + 1 >= (unit.expected_item_count or 0)


def is_full(unit: UnitRecord) -> bool:
    """Whether the counts say that every item was continued."""
    return unit.expected_item_count is not None and unit.full_block_count >= block_count(unit.expected_item_count)


def after_child(snapshot: Snapshot, child: ExecutionRecord, now: int, policy: ExecutionPolicy) -> Decision[bool] | Need:
    """What the end of a child means for its unit and parent; its own record is the caller's to write.

    Returns:
        Whether the unit became due.
    """
    assert child.unit_id is not None
    assert child.item_index is not None
    assert child.parent_execution_id is not None
    unit_key = UNIT.key(child.tenant_id, child.unit_id)
    parent_key = EXECUTION.key(child.tenant_id, child.parent_execution_id)
    block_index = child.item_index // BLOCK_SIZE
    block_key = BLOCK.key(child.tenant_id, block_id(child.unit_id, block_index))
    missing = tuple(Read(key) for key in (unit_key, parent_key, block_key) if not snapshot.has_read(key))
    if missing:
        return Need(missing)
    unit, parent, block = snapshot.get(unit_key), snapshot.get(parent_key), snapshot.get(block_key)
    if unit is None or parent is None:
        return Decision(result=False)
    parked = is_parked_on(parent, unit)
    if child.status is ExecutionStatus.SUCCEEDED:
        # Whatever became of the parent meanwhile: it may be re-driven, and this child ends only once.
        return _count(unit, block, block_index, now, parked=parked)
    if not parked:
        # The parent is over, or was re-driven: then the scan after its next parking takes the child up again.
        return Decision(result=False)
    return _fail_parent(unit, parent, child, now, policy)


def _count(unit: UnitRecord, block: BlockRecord | None, block_index: int, now: int, *, parked: bool) -> Decision[bool]:
    """One more item of the block was continued."""
    counted = _counted(unit, block, block_index, 1)
    if not _fills(unit, counted):
        return Decision(result=False, puts=(counted,))
    full_block_count = unit.full_block_count + 1
    due = parked and full_block_count >= block_count(unit.expected_item_count or 0)
    fuller = awaits.moved_unit(
        unit, unit.status, now, full_block_count=full_block_count, next_check=now if due else unit.next_check_epoch_ms
    )
    return Decision(result=due, puts=(counted, fuller))


def _counted(unit: UnitRecord, block: BlockRecord | None, block_index: int, count: int) -> BlockRecord:
    """The block with more items continued."""
    if block is None:
        return BlockRecord(
            tenant_id=unit.tenant_id, unit_id=unit.unit_id, block_index=block_index, version=1, continued_count=count
        )
    return evolve(block, version=block.version + 1, continued_count=block.continued_count + count)


def _fills(unit: UnitRecord, block: BlockRecord) -> bool:
    """Whether all items of a block are continued; False as long as their number is not known."""
    expected = unit.expected_item_count
    return expected is not None and block.continued_count >= block_size(expected, block.block_index)


def _fail_parent(
    unit: UnitRecord, parent: ExecutionRecord, child: ExecutionRecord, now: int, policy: ExecutionPolicy
) -> Decision[bool]:
    message = f"item {child.item_index} ended {child.status}: {child.error_message or child.error_code or 'no reason'}"
    event = UnitEnded(
        unit_id=unit.unit_id,
        reason=TerminalReason.AWAIT_FAILED,
        code=child.error_code or "await_failed",
        message=message,
    )
    outcome = execution.apply(parent, event, now, policy)
    assert isinstance(outcome, Transition), "the parent is parked on this unit"
    failed = awaits.moved_unit(unit, UnitStatus.FAILED, now)
    return Decision(result=False, puts=(failed, outcome.record), facts=outcome.facts)


def first_unfinished(children: Sequence[ExecutionRecord | None], first_index: int) -> int | None:
    """The first item of a page whose child is not SUCCEEDED; None if all are. SUCCEEDED is final."""
    for offset, child in enumerate(children):
        if child is None or child.status is not ExecutionStatus.SUCCEEDED:
            return first_index + offset
    return None


def release(
    snapshot: Snapshot, unit_key: Key[UnitRecord], output_type: str, now: int, policy: ExecutionPolicy
) -> Decision[Outcome]:
    """Releases the parent of a unit whose children were all seen SUCCEEDED. One release wins."""
    unit = snapshot.get(unit_key)
    parent = None if unit is None else snapshot.get(EXECUTION.key(unit.tenant_id, unit.execution_id))
    if unit is None or parent is None or not is_parked_on(parent, unit) or not is_full(unit):
        return Decision(Refused("not_full", "the unit is not ready or was released already"))
    outputs = Payload(type_name=output_type, outputs_of=unit.unit_id, item_count=unit.expected_item_count)
    event = Release(unit_id=unit.unit_id, step_index=unit.suffix_stop_index, input=outputs)
    outcome = execution.apply(parent, event, now, policy)
    if isinstance(outcome, Refused):
        return Decision(outcome)
    done = awaits.moved_unit(unit, UnitStatus.COMPLETED, now)
    return Decision(outcome, puts=(outcome.record, done), facts=outcome.facts)
