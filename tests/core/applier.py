"""A store in a dict, to try decisions on, and short ways to the situations that tests need.

It is strict where real stores are: a decide function sees only what it declared, is asked at most so many times, writes
a bounded number of records, no record twice, and each written record one version higher than the one it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from attrs import evolve

from tpfd.core import admission, dispatching, ids, itemised
from tpfd.core.admission import Ended
from tpfd.core.awaits import AwaitTerms, Completion, Request
from tpfd.core.budget import Place
from tpfd.core.commit import Claimed, Committed, claim_many, commit
from tpfd.core.dispatching import OpenedItems
from tpfd.core.events import Complete, Event, ExecutionPolicy, Fail, Redrive, Suspend
from tpfd.core.execution import Refused, Transition
from tpfd.core.kinds import CHILD_BY_UNIT, EXECUTION, INTERACTION, KIND_OF, UNIT
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
    LateRecord,
    Payload,
    ResultShape,
    TenantId,
    TerminalReason,
    UnitId,
    UnitRecord,
    UnitStatus,
)
from tpfd.core.transact import MAX_NEED_ROUNDS, MAX_TOUCHED, Decide, Key, Need, Read, Snapshot

T = TypeVar("T")
R = TypeVar("R")

TENANT = TenantId("t1")
CONTRACTS = {"p": "c"}
START = 1_700_000_000_000
POLICY = ExecutionPolicy()
DAY_MS = 86_400_000


class Applier:
    """Runs decisions on a dict.

    Attributes:
        now: epoch milliseconds, moved by the test.
        rounds: how often the last decide function was called.
    """

    def __init__(self, policy: ExecutionPolicy = POLICY) -> None:
        self.records: dict[Key[Any], Any] = {}
        self.facts: list[Fact] = []
        self.policy = policy
        self.now = START
        self.rounds = 0

    def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        wanted = tuple(reads)
        read: dict[Key[Any], Any] = {}
        for self.rounds in range(1, MAX_NEED_ROUNDS + 2):
            new = {one.key: self.records.get(one.key) for one in wanted if one.key not in read}
            assert new or self.rounds == 1, "it asked again for what it has"
            read |= new
            answer = decide(Snapshot(read))
            if not isinstance(answer, Need):
                break
            wanted = answer.reads
        else:
            raise AssertionError(f"asked more than {MAX_NEED_ROUNDS} times for more")
        assert answer.touched_count <= MAX_TOUCHED
        touched = [KIND_OF[type(put)].key_of(put) for put in answer.puts] + list(answer.deletes)
        assert len(touched) == len(set(touched)), "one record is written twice"
        for put in answer.puts:
            self.write(put)
        for key in answer.deletes:
            del self.records[key]
        self.facts.extend(answer.facts)
        return answer.result

    def write(self, record: Any) -> None:
        key = KIND_OF[type(record)].key_of(record)
        before = self.records.get(key)
        if hasattr(record, "version"):
            assert record.version == (before.version if before is not None else 0) + 1, f"version of {key}"
        self.records[key] = record

    def get(self, key: Key[R]) -> R:
        record: R = self.records[key]
        return record

    # ── executions ──

    def new(self, name: str = "e1", *, step_index: int = 0, **changes: Any) -> ExecutionRecord:
        """A fresh execution, QUEUED and due."""
        record = ExecutionRecord(
            tenant_id=TENANT,
            execution_id=ExecutionId(name),
            pipeline_id="p",
            contract_version="c",
            result_shape=ResultShape.ONE,
            status=ExecutionStatus.QUEUED,
            version=1,
            step_index=step_index,
            next_check_epoch_ms=self.now,
            input=Payload(type_name="In", json=JsonText("{}")),
            created_epoch_ms=self.now,
            updated_epoch_ms=self.now,
        )
        record = evolve(record, **changes)
        self.write(record)
        return record

    def execution(self, name: str = "e1") -> ExecutionRecord:
        return self.get(EXECUTION.key(TENANT, name))

    def put_status(self, status: ExecutionStatus, name: str = "e1", **changes: Any) -> ExecutionRecord:
        """Puts an execution into a status by hand, as a starting point."""
        record = evolve(self.execution(name), status=status, version=self.execution(name).version + 1, **changes)
        self.write(record)
        return record

    def commit(self, event: Event, name: str = "e1") -> Committed:
        key = EXECUTION.key(TENANT, name)
        return self.transact((Read(key),), lambda seen: commit(seen, key, event, self.now, self.policy))

    def claims(self, *names: str, witnessed: dict[ExecutionId, bool] | None = None) -> Claimed:
        keys = [EXECUTION.key(TENANT, name) for name in names]
        return self.transact(
            [Read(key) for key in keys],
            lambda seen: claim_many(seen, keys, CONTRACTS, "w", witnessed or {}, self.now, self.policy),
        )

    def claim(self, name: str = "e1") -> ExecutionRecord:
        """Claims one that can be claimed."""
        (record,) = self.claims(name).records
        return record

    def complete(self, name: str) -> Committed:
        return self.commit(Complete(fence=self.execution(name).fence, result=Payload(type_name="Out")), name)

    def fail(self, name: str = "e1") -> Committed:
        fence = self.execution(name).fence
        return self.commit(Fail(fence=fence, code="broken", message="no", retryable=False), name)

    def redrive(self, name: str = "e1") -> Committed:
        version = self.execution(name).version
        return self.commit(Redrive(expected_version=version, reason="mended", actor="ops", allow_failed=True), name)

    # ── awaits ──

    def unit(self, name: str = "e1.s001") -> UnitRecord:
        return self.get(UNIT.key(TENANT, name))

    def interaction(self, item_index: int = 0, unit: str = "e1.s001") -> InteractionRecord:
        return self.get(INTERACTION.key(TENANT, interaction_id(item_index, unit)))

    def interactions(self) -> list[InteractionRecord]:
        return [record for record in self.records.values() if isinstance(record, InteractionRecord)]

    def children(self, unit: str = "e1.s001") -> list[ExecutionRecord]:
        """The children of a unit in the order of the index that finds them."""
        found = [record for record in self.records.values() if isinstance(record, ExecutionRecord)]
        entries = [(entry, record) for record in found if (entry := CHILD_BY_UNIT.entry(record)) is not None]
        return [record for entry, record in sorted(entries, key=lambda pair: pair[0].sort) if entry.partition == unit]

    def park_scalar(self, claimed: ExecutionRecord, terms: AwaitTerms, question: str = "q") -> Transition | Refused:
        unit = ids.unit_id(claimed.execution_id, terms.step_index)
        parked: dispatching.Parked = self.transact(
            dispatching.scalar_reads(claimed, unit),
            lambda seen: dispatching.park_scalar(seen, claimed, terms, request(0, question), self.now, self.policy),
        )
        return parked.outcome

    def open_stream(self, claimed: ExecutionRecord, terms: AwaitTerms) -> UnitRecord | Refused:
        return self.transact(
            dispatching.stream_reads(claimed, ids.unit_id(claimed.execution_id, terms.step_index)),
            lambda seen: dispatching.open_stream(seen, claimed, terms, self.now, self.policy),
        )

    def open_items(
        self, claimed: ExecutionRecord, terms: AwaitTerms, requests: list[Request], places: tuple[Place, ...] = ()
    ) -> OpenedItems:
        unit = ids.unit_id(claimed.execution_id, terms.step_index)
        return self.transact(
            dispatching.item_reads(claimed, unit, terms, requests, places),
            lambda seen: dispatching.open_items(seen, claimed, unit, terms, requests, places, self.now),
        )

    def park_items(self, claimed: ExecutionRecord, count: int, unit: str = "e1.s001") -> Transition | Refused:
        key, unit_key = EXECUTION.key_of(claimed), UNIT.key(TENANT, unit)
        event = Suspend(fence=claimed.fence, unit_id=UnitId(unit), step_index=claimed.step_index, input=claimed.input)
        return self.transact(
            (Read(key), Read(unit_key)),
            lambda seen: itemised.park(seen, key, unit_key, event, count, self.now, self.policy),
        )

    def continue_page(self, unit: str = "e1.s001") -> bool:
        seen_unit = self.unit(unit)
        after = self.transact(
            itemised.continue_reads(seen_unit),
            lambda seen: itemised.continue_items(seen, UNIT.key_of(seen_unit), seen_unit, self.now),
        )
        return after is not None

    def continue_all(self, unit: str = "e1.s001") -> None:
        """Scans to the end, as the sweeper does."""
        while self.continue_page(unit):
            record = self.unit(unit)
            if record.scanned_index + 1 >= (record.expected_item_count or 0):
                return

    def release(self, unit: str = "e1.s001") -> Transition | Refused:
        key = UNIT.key(TENANT, unit)
        reads = (Read(key), Read(EXECUTION.key(TENANT, self.unit(unit).execution_id)))
        return self.transact(reads, lambda seen: itemised.release(seen, key, "Out", self.now, self.policy))

    def answer(self, item_index: int = 0, response: str = "yes", unit: str = "e1.s001", **more: Any) -> Ended:
        seen_interaction = self.interaction(item_index, unit)
        completion = Completion(response=JsonText(f'"{response}"'), **more)
        return self._end(
            seen_interaction,
            lambda seen: admission.admit(seen, seen_interaction, completion, self.now, self.policy),
        )

    def expire(self, item_index: int = 0, unit: str = "e1.s001") -> Ended:
        seen_interaction = self.interaction(item_index, unit)
        return self._end(seen_interaction, lambda seen: admission.expire(seen, seen_interaction, self.now, self.policy))

    def _end(self, interaction: InteractionRecord, decide: Callable[[Snapshot], Any]) -> Ended:
        ended: Ended = self.transact(admission.reads(interaction), decide)
        return ended

    # ── situations ──

    def parked_scalar(self, terms: AwaitTerms) -> ExecutionRecord:
        """An execution parked on the one question of step 1."""
        self.new(step_index=1)
        assert isinstance(self.park_scalar(self.claim(), terms), Transition)
        return self.execution()

    def live(self, terms: AwaitTerms, count: int) -> ExecutionRecord:
        """A running execution with `count` items out."""
        self.new(step_index=0)
        claimed = self.claim()
        assert isinstance(self.open_stream(claimed, terms), UnitRecord)
        for first in range(0, count, dispatching.DISPATCH_PAGE):
            page = [request(index) for index in range(first, min(first + dispatching.DISPATCH_PAGE, count))]
            assert self.open_items(claimed, terms, page).refused is None
        return self.execution()

    def parked_items(self, terms: AwaitTerms, count: int) -> ExecutionRecord:
        """An execution parked on an itemised unit of `count` unanswered items, scanned."""
        assert isinstance(self.park_items(self.live(terms, count), count), Transition)
        self.continue_all()
        return self.execution()


def interaction_id(item_index: int, unit: str = "e1.s001") -> InteractionId:
    return ids.interaction_id(UnitId(unit), item_index)


def child_name(item_index: int, unit: str = "e1.s001") -> str:
    return ids.child_id(UnitId(unit), item_index)


def request(item_index: int, question: str = "q") -> Request:
    return Request(item_index, JsonText(f'"{question}"'), f"digest-of-{question}")


def await_terms(**changes: Any) -> AwaitTerms:
    """An await at step 1 of three steps, with a minute to answer."""
    terms = AwaitTerms(
        step_id="approve",
        step_index=1,
        continue_index=2,
        suffix_stop_index=3,
        input_type="In",
        output_type="Answer",
        transport_type="websocket",
        pulled=True,
        timeout_ms=60_000,
    )
    return evolve(terms, **changes)


# ── what is there ──


def late(store: Applier) -> list[LateRecord]:
    return [record for record in store.records.values() if isinstance(record, LateRecord)]


def facts(store: Applier, fact_type: FactType) -> int:
    return sum(fact.type is fact_type for fact in store.facts)


def check_timed_out(store: Applier) -> None:
    failed = store.execution()
    assert (failed.status, failed.terminal_reason) == (ExecutionStatus.FAILED, TerminalReason.AWAIT_TIMEOUT)
    assert (failed.error_code, failed.cleanup_due, failed.dead_letter_due) == ("await_timeout", True, True)
    assert store.interaction().status is InteractionStatus.TIMED_OUT
    assert store.unit().status is UnitStatus.TIMED_OUT
    assert facts(store, FactType.INTERACTION_TIMED_OUT) == facts(store, FactType.RUN_FAILED) == 1


def blocks(store: Applier) -> dict[int, int]:
    found = [record for record in store.records.values() if isinstance(record, BlockRecord)]
    return {record.block_index: record.continued_count for record in found}


def finish(store: Applier, *items: int) -> None:
    """Runs the children of these items to success."""
    for item in items:
        store.claim(child_name(item))
        assert isinstance(store.complete(child_name(item)).outcome, Transition)
