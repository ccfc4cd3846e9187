"""The demos: their files, their arithmetic, and both of them once for real."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from tpfd.cli.demo.children import DemoFailed, child_environ, running
from tpfd.cli.demo.files import LineCounter, count_output, count_rows, peak_rss_bytes, write_payments
from tpfd.cli.demo.restaurant import decision_payload
from tpfd.cli.main import run
from tpfd.codec.payloads import PayloadCodec
from tpfd.examples import pipeline_text
from tpfd.examples.csv_payments.csv_check import check_file
from tpfd.pipeline.loader import load_pipeline

TPFD = [sys.executable, "-m", "tpfd.cli.main"]


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_count", [1, 10_000, 10_001])
def test_the_file_that_is_made_is_one_that_the_pipeline_takes(tmp_path: Path, row_count: int) -> None:
    file = tmp_path / "payments.csv"
    write_payments(file, row_count)
    report = check_file(file)
    assert (report.row_count, report.problem_count) == (row_count, 0)
    assert count_rows(file) == row_count


def test_rows_are_records_and_not_lines(tmp_path: Path) -> None:
    file = tmp_path / "payments.csv"
    file.write_bytes('\ufeffID,Recipient,Amount,Currency\r\n1,"Two\r\nlines",1.00,EUR\r\n\r\n2,B,2.00,EUR'.encode())
    assert count_rows(file) == 2
    file.write_bytes(b"")
    assert count_rows(file) == 0


def test_the_output_is_counted_by_its_status_column(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text('csvId,status,message\n1,approved,"status\nunapproved"\n2,unapproved,x\n3,strange,x\n')
    counted = count_output(file)
    assert (counted.rows, counted.approved, counted.unapproved) == (3, 1, 1)


def test_a_growing_file_is_counted_on_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "log"
    counter = LineCounter(file)
    assert counter.update() == 0
    file.write_bytes(b"a\nb")
    assert counter.update() == 1
    with file.open("ab") as handle:
        handle.write(b"b\nc\n")
    assert counter.update() == 3


def test_peak_memory_of_a_process_and_of_none() -> None:
    mine = peak_rss_bytes(os.getpid())
    assert mine is not None
    assert mine > 2**20
    assert peak_rss_bytes(2**22 + 1) is None


@pytest.mark.parametrize("decision", ["accept", "decline"])
def test_the_decision_fits_the_type_that_the_pipeline_waits_for(decision: str) -> None:
    pipeline = load_pipeline(pipeline_text("restaurant-approval"), "pipeline.yaml", {})
    order = "0b6e2f0a-5d0e-5b6b-8a5e-3f2f3a3a3a3a"
    payload = decision_payload(decision, order, datetime(2026, 11, 30, 12, tzinfo=UTC))
    PayloadCodec(pipeline.types).decode("RestaurantDecision", payload)
    (answer,) = payload.values()
    assert (answer["orderId"], answer["decidedAt"]) == (order, "2026-11-30T12:00:00Z")


# --- dry run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_every_problem_and_writes_them_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, errors = tmp_path / "payments.csv", tmp_path / "payments.csv.errors.csv"
    file.write_text("ID,Recipient,Amount,Currency\n1,A,1.00,EUR\n2,B,1e3,EUR\n3,C,1.00,EURO\n")
    assert run(["--output", "json", "demo", "csv-payments", "--file", str(file), "--dry-run"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said == {"rows": 3, "badRows": 2, "problems": 2, "errorFile": str(errors)}
    with errors.open(newline="") as handle:
        assert [row["line"] for row in csv.DictReader(handle)] == ["3", "4"]
    assert run(["demo", "csv-payments", "--file", str(file), "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "line 3: Amount" in out
    assert "nothing was paid" in out


def test_a_dry_run_of_a_good_file_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "payments.csv"
    write_payments(file, 3)
    assert run(["demo", "csv-payments", "--file", str(file), "--dry-run"]) == 0
    assert "3 rows, all of them good" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [file]


# --- processes ----------------------------------------------------------------------------------------------------


async def test_a_process_that_dies_fails_the_demo_with_the_end_of_its_log(tmp_path: Path) -> None:
    with trio.fail_after(60), pytest.raises(DemoFailed, match=r"(?s)exit code 2.*No such option"):
        async with running("tpfd serve", ["serve", "--nonsense"], tmp_path / "log", child_environ({})) as child:
            await child.must_live()


async def test_no_process_outlives_the_block(tmp_path: Path) -> None:
    with trio.fail_after(60):
        arguments = ["provider", "--url", "http://127.0.0.1:9", "--step", "s"]
        async with running("tpfd provider", arguments, tmp_path / "log", child_environ({})) as child:
            while b"not connected" not in (tmp_path / "log").read_bytes():
                await trio.sleep(0.01)
    assert child.process.returncode == 0


def test_a_childs_environment_is_ours_without_what_would_configure_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPFD_STORE__PROVIDER", "memory")
    monkeypatch.setenv("SOMETHING", "else")
    environ = child_environ({"CSV_FOLDER_PATH": "/in"})
    assert "TPFD_STORE__PROVIDER" not in environ
    assert (environ["SOMETHING"], environ["CSV_FOLDER_PATH"]) == ("else", "/in")


def test_a_folder_with_an_earlier_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "payments.csv").touch()
    assert run(["demo", "csv-payments", "--dir", str(tmp_path)]) == 1
    assert "holds an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("store", "transport"), [("sqlite", "websocket"), ("memory", "websocket"), ("sqlite", "webhook")]
)
def test_csv_payments_for_real(tmp_path: Path, store: str, transport: str) -> None:
    source = tmp_path / "mine.csv"
    write_payments(source, 60)
    options = ["--file", str(source), "--dir", str(tmp_path / "run"), "--store", store, "--window", "20"]
    options += ["--transport", transport]
    ended = subprocess.run(
        [*TPFD, "--output", "json", "demo", "csv-payments", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert set(summary) == {
        "rows", "approved", "unapproved", "elapsedS", "rowsPerS", "firstOutputS", "output", "executionId",
        "peakRssBytes", "store", "transport",
    }  # fmt: skip
    assert (summary["rows"], summary["store"], summary["transport"]) == (60, store, transport)
    assert summary["approved"] + summary["unapproved"] == 60
    assert 0 < summary["firstOutputS"] <= summary["elapsedS"]
    assert Path(summary["output"]) == tmp_path / "run" / "csv" / "mine.csv.out"
    assert source.exists()
    if transport == "webhook":
        assert (tmp_path / "run" / "webhook.secret").stat().st_mode & 0o077 == 0


def test_a_file_that_the_pipeline_refuses_ends_the_demo_with_1_and_the_reason(tmp_path: Path) -> None:
    source = tmp_path / "bad.csv"
    source.write_text("ID,Recipient,Amount,Currency\n1,A,1e3,EUR\n")
    ended = subprocess.run(
        [*TPFD, "demo", "csv-payments", "--file", str(source), "--dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "line 2: Amount" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("decision", "outcome"), [("accept", "ACCEPTED"), ("decline", "DECLINED")])
def test_restaurant_approval_for_real(tmp_path: Path, decision: str, outcome: str) -> None:
    options = ["--decision", decision, "--dir", str(tmp_path), "--store", "memory"]
    ended = subprocess.run(
        [*TPFD, "--output", "json", "demo", "restaurant-approval", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["restaurantStatus"] == outcome
    assert "totalAmount" in ended.stderr


def test_nobody_to_ask_is_said_before_anything_starts(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*TPFD, "demo", "restaurant-approval", "--dir", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_is_told_to_stop_takes_its_processes_with_it(tmp_path: Path) -> None:
    options = ["--dir", str(tmp_path), "--rows", "5000", "--permits-per-second", "10"]
    demo = subprocess.Popen([*TPFD, "demo", "csv-payments", *options], stderr=subprocess.PIPE, text=True)
    try:
        log = tmp_path / "provider.jsonl"
        while demo.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.02)
        assert demo.poll() is None, demo.communicate()[1]
        spawned = _children_of(demo.pid)
        assert len(spawned) == 2
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(timeout=60) == 130
    finally:
        demo.kill()
        demo.communicate()
    assert not [pid for pid in spawned if Path(f"/proc/{pid}").exists()]


def _children_of(pid: int) -> list[str]:
    """Processes that any thread of ``pid`` has started."""
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += (task / "children").read_text().split()
    return found
