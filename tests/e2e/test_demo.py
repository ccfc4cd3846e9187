"""`tpfd demo csv-payments` as somebody meets it first: other stores, bad files, Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.processes import Process, running, wait_for_file

DEMO = ("--output", "json", "demo", "csv-payments")
BAD = "ID,Recipient,Amount,Currency\n1,A,1e3,EUR\n2,B,1.000,JPY\n3,C,3.00,EUR\n"


async def test_without_a_database(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "run"))
    async with running("demo", [*DEMO, "--rows", "150", "--store", "memory", *where], tmp_path) as demo:
        assert await demo.ended() == 0, demo.text()
        summary = demo.printed()
    assert (summary["rows"], summary["store"]) == (150, "memory")
    assert not (tmp_path / "run" / "tpfd.db").exists()


async def test_a_bad_file_is_told_line_by_line_and_nothing_is_paid(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(BAD, "utf-8")
    for option, more in (("--dry-run", ()), ("--dir", (str(tmp_path / "run"),))):
        async with running("demo", ["demo", "csv-payments", "--file", str(file), option, *more], tmp_path) as demo:
            assert await demo.ended() == 1
            said = demo.text() + demo.log.with_suffix(".out").read_text("utf-8")
        assert "line 2: Amount '1e3' has an exponent" in said
        assert "line 3: Amount '1.000' has 3 decimals, JPY has 0" in said
        assert "Traceback" not in said
    assert not (tmp_path / "run" / "csv" / "bad.csv.out").exists()
    assert (tmp_path / "run" / "provider.jsonl").read_text() == ""


def children(process: Process) -> list[int]:
    """What any of its threads has started."""
    lists = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(pid) for one in lists for pid in one.read_text("ascii").split()]


async def test_ctrl_c_ends_everything_it_started(tmp_path: Path) -> None:
    books = tmp_path / "run" / "provider.jsonl"
    slow = ("--rows", "1000", "--latency", "PT1M", "--dir", str(tmp_path / "run"))
    async with running("demo", ["demo", "csv-payments", *slow], tmp_path) as demo:
        await wait_for_file(books)
        started = children(demo)
        assert len(started) == 2
        demo.send(signal.SIGINT)
        assert await demo.ended() == 130
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
        assert "Traceback" not in demo.text()
