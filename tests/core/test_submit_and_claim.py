"""Submits under one key, and claims of many at once."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.core.applier import START, TENANT, Applier, await_terms, child_name
from tpfd.core.commit import Submission, execution_key_id, submit, submit_reads
from tpfd.core.events import Claim, Complete, ExecutionPolicy
from tpfd.core.execution import Refused
from tpfd.core.kinds import EXECUTION, EXECUTION_DUE, TIDY_PARTITION
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    IngestedRecord,
    SearchRecord,
    TerminalReason,
    UnitId,
    UnitRecord,
    UnitStatus,
)

S = ExecutionStatus
KEY = execution_key_id("p", "K")


def _submission(name: str, digest: str = "A", **changes: Any) -> ExecutionRecord:
    return evolve(Applier().new(name), input_digest=digest, execution_key="K", **changes)


def send(
    store: Applier, record: ExecutionRecord, key_id: str | None = KEY, ingested: IngestedRecord | None = None
) -> Submission:
    return store.transact(submit_reads(record, key_id, ingested), lambda seen: submit(seen, record, key_id, ingested))


# ── submit ──


def test_a08_one_key_is_one_execution_and_another_input_is_told_apart() -> None:
    store = Applier()

    def three_answers() -> None:
        before = dict(store.records)
        other = send(store, _submission("e2", "B"))
        assert (other.execution_id, other.duplicate, other.mismatch) == ("e1", True, True)
        again = send(store, _submission("e3", "A", created_epoch_ms=START + 9))
        assert (again.execution_id, again.duplicate, again.mismatch) == ("e1", True, False)
        assert again.created_epoch_ms == START
        assert store.records == before

    first = send(store, _submission("e1"))
    assert (first.execution_id, first.duplicate, first.mismatch) == ("e1", False, False)
    three_answers()
    claimed = store.claim()
    three_answers()
    store.commit(Complete(fence=claimed.fence, result=None))
    three_answers()
    assert sum(fact.type is FactType.RUN_SUBMITTED for fact in store.facts) == 1


def test_without_a_key_every_submit_is_new() -> None:
    store = Applier()
    names = [send(store, _submission(name), None).execution_id for name in ("e1", "e2")]
    assert names == ["e1", "e2"]


def test_keys_of_two_pipelines_or_tenants_do_not_meet() -> None:
    store = Applier()
    send(store, _submission("e1"))
    assert not send(store, _submission("e2", pipeline_id="q"), execution_key_id("q", "K")).duplicate
    assert not send(store, _submission("e3", tenant_id="t2")).duplicate


def test_search_keys_are_stored_with_it() -> None:
    store = Applier()
    send(store, _submission("e1", search={"order": "7", "customer": "ann"}))
    rows = {(row.name, row.value, row.execution_id) for row in store.records.values() if isinstance(row, SearchRecord)}
    assert rows == {("order", "7", "e1"), ("customer", "ann", "e1")}


def test_an_ingested_object_runs_once_even_without_a_key() -> None:
    store = Applier()

    def ingested(name: str) -> IngestedRecord:
        return IngestedRecord(
            tenant_id=TENANT,
            identity="object-1",
            source="in",
            object_key="a.csv",
            execution_id=ExecutionId(name),
            after_done=False,
            created_epoch_ms=START,
        )

    assert not send(store, _submission("e1"), None, ingested("e1")).duplicate
    again = send(store, _submission("e2"), None, ingested("e2"))
    assert (again.execution_id, again.duplicate) == ("e1", True)
    assert EXECUTION.key(TENANT, "e2") not in store.records


# ── claim ──


def test_one_pass_claims_what_can_be_claimed_and_leaves_the_rest() -> None:
    store = Applier()
    for name in ("due", "taken", "later", "done", "lost"):
        store.new(name)
    store.claim("taken")
    store.claim("lost")
    store.put_status(S.WAIT_RETRY, "later", next_check_epoch_ms=store.now + 10**6)
    store.put_status(S.SUCCEEDED, "done")
    store.put_status(S.RUNNING, "lost", lease_expires_epoch_ms=store.now - store.policy.skew_ms)
    before = {name: store.execution(name) for name in ("taken", "later", "done")}
    claimed = store.claims("due", "taken", "later", "done", "lost", "nothing")
    assert [record.execution_id for record in claimed.records] == ["due", "lost"]
    assert claimed.ended == ()
    assert {name: store.execution(name) for name in before} == before
    assert [record.fence for record in claimed.records] == [1, 2]


def test_a_lease_that_nobody_saw_standing_still_is_left_alone() -> None:
    store = Applier()
    store.new()
    store.now = store.claim().next_check_epoch_ms or 0
    name = ExecutionId("e1")
    assert store.claims("e1", witnessed={name: False}).records == ()
    assert len(store.claims("e1", witnessed={name: True}).records) == 1


def test_two_claimers_of_one_row_cost_one_loss() -> None:
    store = Applier()
    store.new()
    assert len(store.claims("e1").records) == 1
    assert store.claims("e1").records == ()
    outcome = store.commit(Claim(owner="other")).outcome
    assert isinstance(outcome, Refused)
    assert outcome.code == "not_due"


def test_a_claim_ends_what_was_lost_too_often() -> None:
    store = Applier(ExecutionPolicy(max_worker_losses=0))
    store.new()
    store.now = store.claim().next_check_epoch_ms or 0
    claimed = store.claims("e1")
    assert [record.terminal_reason for record in claimed.ended] == [TerminalReason.WORKER_LOST]
    assert claimed.ended[0].dead_letter_due
    entry = EXECUTION_DUE.entry(claimed.ended[0])
    assert entry is not None
    assert (entry.partition, entry.sort) == (TIDY_PARTITION, store.now)


def test_a_unit_of_an_earlier_drive_does_not_fail_the_claim() -> None:
    store = Applier()
    store.parked_scalar(await_terms())
    store.now += 60_000
    store.expire()
    assert store.unit().status is UnitStatus.TIMED_OUT
    store.redrive()
    assert store.claim().status is S.RUNNING


def test_a_pass_never_writes_more_than_one_decision_may() -> None:
    """Each of these children writes itself, its unit and its parent; what does not fit stays due."""
    store = Applier(ExecutionPolicy(max_worker_losses=0))
    names = []
    for number in range(12):
        store.new(f"p{number}", status=S.WAITING_EXTERNAL, await_unit_id=f"p{number}.s001", next_check_epoch_ms=None)
        store.write(_unit_of(store, f"p{number}"))
        names.append(child_name(0, f"p{number}.s001"))
        store.new(names[-1], parent_execution_id=f"p{number}", unit_id=f"p{number}.s001", item_index=0, step_index=2)
    store.claims(*names)
    store.now = store.execution(names[0]).next_check_epoch_ms or 0
    first = store.claims(*names).ended
    assert 0 < len(first) < len(names)
    left = [name for name in names if store.execution(name).status is S.RUNNING]
    store.claims(*left)
    assert {store.execution(name).status for name in names} == {S.DLQ}
    assert {store.execution(f"p{number}").status for number in range(12)} == {S.FAILED}


def _unit_of(store: Applier, name: str) -> UnitRecord:
    template = Applier()
    template.parked_items(await_terms(), 1)
    return evolve(template.unit(), unit_id=UnitId(f"{name}.s001"), execution_id=ExecutionId(name), version=1)
