"""What a work hint leads to, by the state of the execution that it names."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.core.applier import CONTRACTS, POLICY, START, TENANT, Applier
from tpfd.core.contracts import Contracts
from tpfd.core.hinting import CLAIMABLE, Hint, Hinted, claim_hinted, delay_ms, hint_reads
from tpfd.core.kinds import EXECUTION
from tpfd.core.records import ExecutionId, ExecutionStatus

S = ExecutionStatus


def hint(name: str) -> Hint:
    return Hint(TENANT, ExecutionId(name))


def follow(store: Applier, *names: str, contracts: Contracts = CONTRACTS) -> Hinted:
    hints = [hint(name) for name in names]
    return store.transact(
        hint_reads(hints), lambda seen: claim_hinted(seen, hints, contracts, "me", store.now, POLICY)
    )


@pytest.mark.parametrize("status", S)
def test_only_what_waits_to_be_claimed_is_claimed(status: ExecutionStatus) -> None:
    store = Applier()
    before = store.new(
        "e1", status=status, next_check_epoch_ms=START, lease_expires_epoch_ms=START - 10**9, fence=4
    )
    done = follow(store, "e1")
    after = store.records[EXECUTION.key_of(before)]
    if status in CLAIMABLE:
        assert [record.execution_id for record in done.claimed.records] == ["e1"]
        assert (after.status, after.fence, after.lease_owner) == (S.RUNNING, 5, "me")
    else:
        assert (done.claimed.records, done.later_ms) == ((), {})
        assert after is before


def test_what_is_not_due_yet_is_looked_at_again_when_it_is() -> None:
    store = Applier()
    before = store.new("e1", status=S.WAIT_RETRY, next_check_epoch_ms=store.now + 1_234)
    done = follow(store, "e1")
    assert (done.claimed.records, done.later_ms) == ((), {hint("e1"): 1_234})
    assert store.records[EXECUTION.key_of(before)] is before


def test_many_at_once_each_by_its_own_state() -> None:
    store = Applier()
    for number in range(4):
        store.new(f"e{number}")
    store.new("other", pipeline_id="q")
    store.new("ended", status=S.SUCCEEDED, next_check_epoch_ms=None)
    done = follow(store, "e0", "e1", "nobody", "other", "ended", "e2")
    assert [record.execution_id for record in done.claimed.records] == ["e0", "e1", "e2"]
    assert done.later_ms == {}
    assert store.records[hint("other").key].status is S.QUEUED


@pytest.mark.parametrize(
    ("status", "due", "delay"),
    [
        (S.QUEUED, START - 5, 0),
        (S.QUEUED, START, 0),
        (S.WAIT_RETRY, START + 7, 7),
        (S.RUNNING, START, None),
        (S.WAITING_EXTERNAL, None, None),
        (S.QUEUED, None, None),
        (S.FAILED, START, None),
    ],
)
def test_which_records_are_hinted_and_when(status: ExecutionStatus, due: int | None, delay: int | None) -> None:
    record = evolve(Applier().new("e1"), status=status, next_check_epoch_ms=due)
    assert delay_ms(record, START) == delay
