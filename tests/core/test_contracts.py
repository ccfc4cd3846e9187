"""What was submitted under another contract is taken up by nobody who has not loaded that."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.core.applier import CONTRACTS, POLICY, START, TENANT, Applier, await_terms
from tpfd.core.commit import AtOnce, Claimed, claim_at_once, claim_many
from tpfd.core.contracts import Contracts, held_reason, runs_here
from tpfd.core.hinting import Hint, claim_hinted, hint_reads
from tpfd.core.kinds import EXECUTION, INTERACTION_HELD
from tpfd.core.records import ExecutionId, ExecutionStatus
from tpfd.core.transact import Decision, Read, Snapshot

S = ExecutionStatus
CHANGED: Contracts = {"p": "another"}
UNLOADED: Contracts = {"q": "c"}


def claimed(store: Applier, contracts: Contracts) -> Claimed:
    key = EXECUTION.key(TENANT, "e1")
    return store.transact([Read(key)], lambda seen: claim_many(seen, [key], contracts, "w", {}, store.now, POLICY))


@pytest.mark.parametrize("status", [S.QUEUED, S.WAIT_RETRY, S.RUNNING])
@pytest.mark.parametrize("contracts", [CHANGED, UNLOADED])
def test_a_claim_leaves_it_as_it_is(status: ExecutionStatus, contracts: Contracts) -> None:
    store = Applier()
    before = store.new(status=status, next_check_epoch_ms=START, lease_expires_epoch_ms=START - 10**9, fence=4)
    assert claimed(store, contracts) == Claimed((), ())
    assert store.execution() is before
    assert [one.execution_id for one in claimed(store, CONTRACTS).records] == ["e1"]


@pytest.mark.parametrize("contracts", [CHANGED, UNLOADED])
def test_a_hint_leads_to_nothing(contracts: Contracts) -> None:
    store = Applier()
    before = store.new()
    hints = [Hint(TENANT, ExecutionId("e1"))]
    done = store.transact(
        hint_reads(hints), lambda seen: claim_hinted(seen, hints, contracts, "me", store.now, POLICY)
    )
    assert (done.claimed, done.later_ms) == (Claimed((), ()), {})
    assert store.execution() is before


def test_what_becomes_due_is_not_claimed_in_the_same_write() -> None:
    store = Applier()
    record = store.new()

    def at_once(contracts: Contracts) -> AtOnce[None]:
        answer = claim_at_once(
            Snapshot({}), lambda _: Decision(None, puts=(record,)), contracts, 1, "me", store.now, POLICY
        )
        assert isinstance(answer, Decision)
        return answer.result

    assert (at_once(CHANGED).claimed, at_once(CHANGED).left_count) == ((), 1)
    assert len(at_once(CONTRACTS).claimed) == 1


def test_the_reason_says_which_contracts_and_what_to_do() -> None:
    record = Applier().new()
    assert runs_here(record, CONTRACTS)
    assert held_reason(record, CONTRACTS) is None
    changed = held_reason(record, CHANGED)
    assert changed is not None
    assert "under contract c of pipeline p" in changed
    assert "has loaded another" in changed
    assert "put the pipeline file of its time back" in changed
    unloaded = held_reason(record, UNLOADED)
    assert unloaded is not None
    assert unloaded.startswith("pipeline p is not loaded at this replica")


def test_requests_wait_apart_by_contract() -> None:
    store = Applier()
    store.live(await_terms(), 1)
    asked = store.interaction(0)
    assert asked.contract_version == store.execution().contract_version == "c"
    mine, other = INTERACTION_HELD.entry(asked), INTERACTION_HELD.entry(evolve(asked, contract_version="d"))
    assert mine is not None
    assert other is not None
    assert mine.partition != other.partition
