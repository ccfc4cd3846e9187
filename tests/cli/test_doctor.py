"""``tpfd doctor``: what it says of a store in which something is wrong."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from attrs import evolve

from tests.conformance.samples import execution, interaction
from tpfd.cli.main import run
from tpfd.clock import SystemClock
from tpfd.core.budget import SHARED
from tpfd.core.records import (
    ExecutionStatus,
    Fact,
    FactType,
    InteractionId,
    InteractionRecord,
    InteractionStatus,
    LateRecord,
    PermitRecord,
    SocketRecord,
    TenantId,
)
from tpfd.core.transact import Decision
from tpfd.daemon.looking import FREE_MIN_BYTES, WAL_MAX_BYTES, file_findings
from tpfd.daemon.programs import read_pipeline
from tpfd.pipeline.loader import load_pipeline
from tpfd.stores.sqlite import open_sqlite
from tpfd.stores.sqlite_looking import FileState

TENANT = TenantId("default")
PIPELINE = "csv-payments"
STEP = "await-payment-provider"
Look = Callable[[], tuple[int, dict[str, Any]]]
LONG_AGO = 1_700_000_000_000


@pytest.fixture
def look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Look:
    config = tmp_path / "tpfd.yaml"
    store = {"provider": "sqlite", "sqlite": {"path": str(tmp_path / "tpfd.db")}}
    config.write_text(yaml.safe_dump({"pipelines": ["example:csv-payments"], "store": store}))

    def looked() -> tuple[int, dict[str, Any]]:
        code = run(["--output", "json", "doctor", "--config", str(config)])
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, printed

    return looked


def told(printed: dict[str, Any], about: str) -> dict[str, Any]:
    (finding,) = [one for one in printed["findings"] if one["about"] == about]
    return dict(finding)


@functools.cache
def contract() -> str:
    """The contract of the pipeline that the doctor loads."""
    return load_pipeline(*read_pipeline(f"example:{PIPELINE}"), {}).contract_version


def mine(name: str, **changes: Any) -> Any:
    usual = {"pipeline_id": PIPELINE, "contract_version": contract()}
    times = {"created_epoch_ms": LONG_AGO, "updated_epoch_ms": LONG_AGO}
    return execution(name, TENANT, **{**usual, **times, **changes})


def permit(slot: int, owner: InteractionRecord, acquired_epoch_ms: int) -> PermitRecord:
    """A slot of the step's budget, as it was given to an interaction."""
    return PermitRecord(
        tenant_id=SHARED,
        scope=f"{PIPELINE}/{STEP}",
        slot=slot,
        version=1,
        owner_tenant_id=owner.tenant_id,
        interaction_id=owner.interaction_id,
        redrive_count=0,
        acquired_epoch_ms=acquired_epoch_ms,
    )


def fill(folder: Path, *records: Any, facts: tuple[Fact, ...] = ()) -> None:
    """Makes a store with these rows in it, as a daemon that has ended leaves it."""

    async def write() -> None:
        async with open_sqlite(folder / "tpfd.db") as store:
            await store.transact((), lambda _: Decision(None, puts=records, facts=facts))

    trio.run(write)


def test_a_fresh_store_is_healthy(tmp_path: Path, look: Look) -> None:
    fill(tmp_path)
    code, printed = look()
    assert (code, printed["healthy"], printed["counts"]) == (0, True, [])
    assert {one["about"] for one in printed["findings"]} >= {"store", "disk", "clocks", "orphans", "dead letters"}


def test_what_nobody_does_is_told_with_what_to_do(tmp_path: Path, look: Look) -> None:
    fill(
        tmp_path,
        mine("01QUEUED", status=ExecutionStatus.QUEUED, next_check_epoch_ms=LONG_AGO),
        mine("01RUNNING", status=ExecutionStatus.RUNNING, next_check_epoch_ms=LONG_AGO, lease_owner="host-7"),
        mine("01DLQ", status=ExecutionStatus.DLQ, next_check_epoch_ms=LONG_AGO, dead_letter_due=True),
        mine("01CLEAN", status=ExecutionStatus.FAILED, next_check_epoch_ms=LONG_AGO, cleanup_due=True),
        mine("01UNKNOWN", status=ExecutionStatus.REMOTE_OUTCOME_UNKNOWN, next_check_epoch_ms=None),
        LateRecord(
            tenant_id=TENANT,
            late_id="l-1",
            interaction_id="i-9",
            execution_id=None,
            step_id=None,
            reason="orphan",
            body=None,
            actor=None,
            created_epoch_ms=LONG_AGO,
        ),
        SocketRecord(
            tenant_id=TENANT, socket_id="s-1", pipeline_id=PIPELINE, node="n", version=1, expires_epoch_ms=LONG_AGO
        ),
    )
    code, printed = look()
    assert (code, printed["healthy"]) == (1, False)
    bad = {one["about"]: one for one in printed["findings"] if not one["ok"]}
    assert set(bad) == {
        "due executions",
        "expired leases",
        "dead letters",
        "ended executions",
        "csv-payments: outcome unknown",
        "orphans",
        "overdue provider sockets",
    }
    assert all(one["advice"] for one in bad.values())
    assert "01QUEUED" in bad["due executions"]["said"]
    assert "host-7" in bad["expired leases"]["said"]
    assert "01DLQ" in bad["dead letters"]["said"]
    assert {one["status"]: one["count"] for one in printed["counts"]} == dict.fromkeys(
        ("QUEUED", "RUNNING", "DLQ", "FAILED", "REMOTE_OUTCOME_UNKNOWN"), 1
    )


def test_what_was_submitted_under_another_contract_is_told(tmp_path: Path, look: Look) -> None:
    fill(
        tmp_path,
        mine("01MINE", status=ExecutionStatus.WAITING_EXTERNAL, next_check_epoch_ms=None),
        mine("01OLDER", status=ExecutionStatus.WAITING_EXTERNAL, next_check_epoch_ms=None, contract_version="old"),
        mine("01OLD", status=ExecutionStatus.RUNNING, next_check_epoch_ms=None, contract_version="old"),
        mine("01OVER", status=ExecutionStatus.FAILED, next_check_epoch_ms=None, contract_version="old"),
    )
    code, printed = look()
    assert code == 1
    finding = told(printed, f"{PIPELINE}: contract")
    assert f"{contract()[:12]}, and 2 in flight were submitted under old" in finding["said"]
    assert "01OLD" in finding["said"]
    assert "put the pipeline file of its time back" in finding["advice"]


def test_what_waits_in_order_is_shown_and_is_no_finding(tmp_path: Path, look: Look) -> None:
    now = SystemClock().now_ms()
    asked = interaction(
        tenant=TENANT,
        pipeline_id=PIPELINE,
        step_id=STEP,
        status=InteractionStatus.DISPATCHED,
        permit_slot=3,
        next_check_epoch_ms=now + 60_000,
        created_epoch_ms=now - 20_000,
    )
    other = InteractionId(f"{asked.interaction_id}x")
    over = evolve(asked, interaction_id=other, status=InteractionStatus.COMPLETED, permit_slot=4)
    fill(
        tmp_path,
        asked,
        permit(3, asked, now - 20_000),
        evolve(over, next_check_epoch_ms=None),
        permit(4, over, LONG_AGO),
        mine("01DUE", status=ExecutionStatus.QUEUED, next_check_epoch_ms=now - 1_000),
        mine("01PARKED", status=ExecutionStatus.WAITING_EXTERNAL, next_check_epoch_ms=None),
    )
    code, printed = look()
    assert code == 0, printed
    assert asked.interaction_id in told(printed, f"{PIPELINE}: waiting at {STEP}")["said"]
    assert told(printed, f"{PIPELINE}: budget of {STEP}")["said"].startswith("1 of 128 taken; the longest since PT20")
    assert told(printed, "due executions")["said"].startswith("1; the oldest since PT1")


def test_a_budget_that_is_held_for_longer_than_its_step_waits_is_told(tmp_path: Path, look: Look) -> None:
    asked = interaction(tenant=TENANT, pipeline_id=PIPELINE, step_id=STEP, permit_slot=0, next_check_epoch_ms=None)
    fill(tmp_path, asked, permit(0, asked, LONG_AGO))
    code, printed = look()
    assert code == 1
    assert not told(printed, f"{PIPELINE}: budget of {STEP}")["ok"]


def test_a_clock_that_is_ahead_is_told(tmp_path: Path, look: Look) -> None:
    fact = Fact(
        tenant_id=TENANT,
        execution_id=execution().execution_id,
        pipeline_id=PIPELINE,
        key="k",
        type=FactType.RUN_SUBMITTED,
        at_epoch_ms=SystemClock().now_ms() + 3_600_000,
        data={},
    )
    fill(tmp_path, facts=(fact,))
    code, printed = look()
    assert code == 1
    assert "in the future" in told(printed, "clocks")["said"]


def test_a_full_disk_and_a_log_that_grows_are_told() -> None:
    usual = {"version": 1, "known_version": 1, "file_bytes": 1, "wal_bytes": 0, "disk_bytes": 100 * FREE_MIN_BYTES}
    well = file_findings("f", FileState(**usual, free_bytes=50 * FREE_MIN_BYTES))
    assert all(one.ok for one in well)
    full = {one.about: one for one in file_findings("f", FileState(**usual, free_bytes=FREE_MIN_BYTES - 1))}
    assert not full["disk"].ok
    grown = FileState(**{**usual, "wal_bytes": WAL_MAX_BYTES + 1}, free_bytes=50 * FREE_MIN_BYTES)
    assert [one.about for one in file_findings("f", grown) if not one.ok] == ["write-ahead log"]


def test_it_makes_no_store_and_cannot_look_into_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.db"
    assert run(["doctor", "example:csv-payments", "--set", f"store.sqlite.path={path}"]) == 78
    assert "there is no" in capsys.readouterr().err
    assert not path.exists()
    assert run(["doctor", "example:csv-payments", "--set", "store.provider=memory"]) == 78
    assert "memory lives inside its daemon" in capsys.readouterr().err
