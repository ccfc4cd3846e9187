"""Decisions about one execution as functional transactions, with what hangs on it.

``submit`` makes executions, ``commit`` applies one event, ``claim_many`` claims what is due and ``claim_at_once`` what
becomes so. A child's end also moves
the progress of its unit; a parent that succeeds ends its live unit. That is decided here, once, so that no caller can
forget it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from tpfd.core import awaits, execution, itemised
from tpfd.core.contracts import Contracts, runs_here
from tpfd.core.events import Claim, Event, ExecutionPolicy
from tpfd.core.execution import Outcome, Refused, Transition
from tpfd.core.kinds import EXECUTION, EXECUTION_KEY, INGESTED, KIND_OF, UNIT
from tpfd.core.records import (
    ExecutionId,
    ExecutionKeyRecord,
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    FactType,
    IngestedRecord,
    SearchRecord,
    TenantId,
    TerminalReason,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import MAX_TOUCHED, Decide, Decision, Key, Need, Read, Snapshot

T = TypeVar("T")

ENDED_UNITS = {UnitStatus.TIMED_OUT: TerminalReason.AWAIT_TIMEOUT, UnitStatus.FAILED: TerminalReason.AWAIT_FAILED}


@frozen
class Submission:
    """What a submit made or found.

    Attributes:
        record: the one execution under this key.
        duplicate: it was there already.
        mismatch: it was there with another input; nothing was stored.
    """

    execution_id: ExecutionId
    created_epoch_ms: int
    duplicate: bool
    mismatch: bool = False


def execution_key_id(pipeline_id: str, key: str) -> str:
    """Id of the row that maps an idempotency key to its execution."""
    return f"{pipeline_id}/{key}"


def submit_reads(
    record: ExecutionRecord, key_id: str | None, ingested: IngestedRecord | None = None
) -> tuple[Read, ...]:
    """What `submit` looks at."""
    keyed = () if key_id is None else (Read(EXECUTION_KEY.key(record.tenant_id, key_id)),)
    return keyed if ingested is None else (*keyed, Read(INGESTED.key_of(ingested)))


def submit(
    snapshot: Snapshot, record: ExecutionRecord, key_id: str | None, ingested: IngestedRecord | None = None
) -> Decision[Submission]:
    """Stores a new execution, or finds the one that was submitted under the same key.

    Args:
        record: QUEUED, due, with its input digest.
        key_id: id of the key record; None: no key, always new.
        ingested: the object it comes from, which runs once; None: it was submitted by somebody.
    """
    if ingested is not None:
        taken = snapshot.get(INGESTED.key_of(ingested))
        if taken is not None:
            return Decision(Submission(taken.execution_id, taken.created_epoch_ms, True))
    if key_id is not None:
        known = snapshot.get(EXECUTION_KEY.key(record.tenant_id, key_id))
        if known is not None:
            mismatch = known.input_digest != record.input_digest
            return Decision(Submission(known.execution_id, known.created_epoch_ms, True, mismatch))
    puts: list[object] = [record]
    if key_id is not None:
        puts.append(
            ExecutionKeyRecord(
                tenant_id=record.tenant_id,
                key_id=key_id,
                execution_id=record.execution_id,
                input_digest=record.input_digest,
                created_epoch_ms=record.created_epoch_ms,
            )
        )
    if ingested is not None:
        puts.append(ingested)
    puts.extend(search_records(record))
    submitted = execution.fact(
        record, FactType.RUN_SUBMITTED, "submitted", record.created_epoch_ms, executionKey=record.execution_key
    )
    return Decision(
        Submission(record.execution_id, record.created_epoch_ms, False), puts=tuple(puts), facts=(submitted,)
    )


def search_records(record: ExecutionRecord) -> list[SearchRecord]:
    """The rows by which an execution is found under its search keys."""
    return [
        SearchRecord(
            tenant_id=record.tenant_id,
            pipeline_id=record.pipeline_id,
            name=name,
            value=value,
            execution_id=record.execution_id,
        )
        for name, value in record.search.items()
    ]


@frozen
class Committed:
    """What came of an event.

    Attributes:
        outcome: the transition, or why not.
        unit_due: a unit has now work to do (its last item went on).
    """

    outcome: Outcome
    unit_due: bool = False

    @property
    def record(self) -> ExecutionRecord | None:
        return self.outcome.record if isinstance(self.outcome, Transition) else None


def commit(
    snapshot: Snapshot, key: Key[ExecutionRecord], event: Event, now: int, policy: ExecutionPolicy
) -> Decision[Committed] | Need:
    """Applies one event to one execution and to what its end touches."""
    record = snapshot.get(key)
    if record is None:
        return Decision(Committed(Refused("not_found", "there is no such execution")))
    outcome = execution.apply(record, event, now, policy)
    if isinstance(outcome, Refused):
        return Decision(Committed(outcome))
    after = outcome.record
    if after.status.terminal and not record.status.terminal:
        return _end(snapshot, outcome, now, policy)
    return Decision(Committed(outcome), puts=() if after is record else (after,), facts=outcome.facts)


def _end(snapshot: Snapshot, outcome: Transition, now: int, policy: ExecutionPolicy) -> Decision[Committed] | Need:
    """A terminal transition with its neighbours: the live unit of a success, the unit and parent of a child."""
    after = outcome.record
    puts: list[object] = [after]
    unit_due = False
    if after.status is ExecutionStatus.SUCCEEDED and after.await_unit_id is not None:
        own = UNIT.key(after.tenant_id, after.await_unit_id)
        if not snapshot.has_read(own):
            return Need((Read(own),))
        unit = snapshot.get(own)
        if unit is not None and unit.status is UnitStatus.WAITING_EXTERNAL:
            puts.append(awaits.moved_unit(unit, UnitStatus.COMPLETED, now))
    facts = outcome.facts
    if after.unit_id is not None:
        moved = itemised.after_child(snapshot, after, now, policy)
        if isinstance(moved, Need):
            return moved
        puts.extend(moved.puts)
        facts += moved.facts
        unit_due = moved.result
    return Decision(Committed(outcome, unit_due), puts=tuple(puts), facts=facts)


@frozen
class Claimed:
    """What a claim pass took.

    Attributes:
        records: executions that are now RUNNING and ours.
        ended: executions that the claim itself ended (worker lost too often, unit ended).
    """

    records: tuple[ExecutionRecord, ...]
    ended: tuple[ExecutionRecord, ...]


def claim_many(
    snapshot: Snapshot,
    keys: Sequence[Key[ExecutionRecord]],
    contracts: Contracts,
    owner: str,
    witnessed: Mapping[ExecutionId, bool],
    now: int,
    policy: ExecutionPolicy,
) -> Decision[Claimed] | Need:
    """Claims those of the executions that can be claimed; with the others somebody was quicker, or they are not for us.

    Args:
        contracts: what can be run here; the rest is left to those who have loaded it.
        witnessed: per execution, whether an expired lease may be taken over (missing: it may).
    """
    needed: list[Read] = []
    written: set[Key[Any]] = set()
    running: list[ExecutionRecord] = []
    ended: list[ExecutionRecord] = []
    puts: list[object] = []
    facts: list[Fact] = []
    for key in keys:
        record = snapshot.get(key)
        if record is None or not runs_here(record, contracts):
            continue
        unit_ended = None
        if record.await_unit_id is not None:
            unit_key = UNIT.key(record.tenant_id, record.await_unit_id)
            if not snapshot.has_read(unit_key):
                needed.append(Read(unit_key))
                continue
            unit = snapshot.get(unit_key)
            if unit is not None and unit.redrive_count == record.redrive_count:
                unit_ended = ENDED_UNITS.get(unit.status)
        event = Claim(owner=owner, witnessed=witnessed.get(record.execution_id, True), unit_ended=unit_ended)
        done = commit(snapshot, key, event, now, policy)
        if isinstance(done, Need):
            needed.extend(read for read in done.reads if read not in needed)
            continue
        after = done.result.record
        # Two children of one unit that both end here would write that unit twice: the second stays due.
        touched = {KIND_OF[type(put)].key_of(put) for put in done.puts}
        if after is None or touched & written or len(written | touched) > MAX_TOUCHED:
            continue
        written |= touched
        (running if after.status is ExecutionStatus.RUNNING else ended).append(after)
        puts.extend(done.puts)
        facts.extend(done.facts)
    if needed:
        return Need(tuple(needed))
    return Decision(Claimed(tuple(running), tuple(ended)), puts=tuple(puts), facts=tuple(facts))


def key_of(tenant_id: TenantId, execution_id: ExecutionId) -> Key[ExecutionRecord]:
    """The key of an execution."""
    return EXECUTION.key(tenant_id, execution_id)


@frozen
class AtOnce(Generic[T]):
    """A decision's answer, and what became of the executions that it made due.

    Attributes:
        claimed: they are RUNNING and ours.
        left_count: they wait to be claimed.
    """

    result: T
    claimed: tuple[ExecutionRecord, ...]
    left_count: int


def claim_at_once(
    snapshot: Snapshot,
    decide: Decide[T],
    contracts: Contracts,
    places: int,
    owner: str,
    now: int,
    policy: ExecutionPolicy,
) -> Decision[AtOnce[T]] | Need:
    """Takes a decision and claims, in the same write, executions that it makes due.

    Args:
        contracts: what can be run here.
        places: executions to claim at most.
    """
    answer = decide(snapshot)
    if isinstance(answer, Need):
        return answer
    puts = list(answer.puts)
    facts = list(answer.facts)
    claimed: list[ExecutionRecord] = []
    left_count = 0
    for number, put in enumerate(puts):
        if not isinstance(put, ExecutionRecord) or put.status is not ExecutionStatus.QUEUED:
            continue
        outcome: Outcome | None = None
        if len(claimed) < places and runs_here(put, contracts) and _goes_on(put, answer.puts):
            outcome = execution.follow(Transition(put, ()), Claim(owner=owner), now, policy)
        if isinstance(outcome, Transition):
            puts[number] = outcome.record
            facts.extend(outcome.facts)
            claimed.append(outcome.record)
        else:
            left_count += 1
    done = AtOnce(answer.result, tuple(claimed), left_count)
    return Decision(done, puts=tuple(puts), deletes=answer.deletes, facts=tuple(facts))


def _goes_on(record: ExecutionRecord, puts: Sequence[object]) -> bool:
    """Whether nothing bad can have happened to the unit that an execution goes on from: it has none, or just ended it.

    How another unit ended is asked by `claim_many`.
    """
    if record.await_unit_id is None:
        return True
    units = [put for put in puts if isinstance(put, UnitRecord) and put.unit_id == record.await_unit_id]
    return any(unit.status is UnitStatus.COMPLETED for unit in units)
