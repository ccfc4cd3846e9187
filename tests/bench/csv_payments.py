"""C1, C2: ``tpfd demo csv-payments``, a file in, a file out, a provider process in between."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import Figure, Run, Workload, at_least, at_most
from tests.bench.processes import PROFILE_VARIABLE, BenchFailed, process_cpu_s, start, tail

ROWS = 10_000
MANY_ROWS = 200_000
FEWEST_ROWS = 200_000
WINDOW = 250
LATENCY_S = 0.02
LOOK_S = 0.05


def demo(folder: Path, row_count: int, profile: Path | None, more: Sequence[str] = ()) -> dict[str, float]:
    """Runs the demo, with further arguments; its summary."""
    arguments = ["--output", "json", "demo", "csv-payments", "--rows", str(row_count), "--dir", str(folder / "demo")]
    arguments += ["--latency", f"{LATENCY_S * 1000:.0f}ms", "--window", str(WINDOW)]
    arguments += ["--reject-probability", "0.08", *more]
    log = folder / "demo.log"
    if profile is None:
        child = start("tpfd.cli.main", arguments, log)
    else:
        child = start("tests.bench.profiled", arguments, log, {PROFILE_VARIABLE: str(profile)})
    cpu_s = 0.0
    while child.process.poll() is None:
        cpu_s = max([cpu_s, *(process_cpu_s(pid) for pid in child.children("serve"))])
        time.sleep(LOOK_S)
    if child.process.returncode:
        raise BenchFailed(f"the demo ended with {child.process.returncode}: {tail(log)}")
    text = tail(log)
    summary: dict[str, float] = json.loads(text[text.index("{") :])
    return {**summary, "daemonCpuS": cpu_s}


def _measure(run: Run) -> Sequence[Figure]:
    summary = demo(run.folder, ROWS, run.profile)
    return [
        Figure("rows/s", summary["rowsPerS"], at_least(1_200)),
        Figure("peak memory of the daemon MiB", summary["peakRssBytes"] / 2**20, at_most(120)),
        Figure("daemon CPU µs/row", summary["daemonCpuS"] / ROWS * 1e6),
        Figure("daemon CPU share", summary["daemonCpuS"] / summary["elapsedS"]),
        Figure("first output s", summary["firstOutputS"]),
        Figure("limit: rows/s of window ÷ latency", WINDOW / LATENCY_S),
    ]


def _measure_many(run: Run) -> Sequence[Figure]:
    row_count = run.row_count or MANY_ROWS
    if row_count < FEWEST_ROWS:
        raise BenchFailed(f"C2 says nothing with less than {FEWEST_ROWS} rows")
    few_folder, many_folder = run.folder / "few", run.folder / "many"
    few_folder.mkdir()
    many_folder.mkdir()
    few = demo(few_folder, ROWS, None)
    many = demo(many_folder, row_count, run.profile)
    return [
        Figure("rows/s ÷ rows/s of C1", many["rowsPerS"] / few["rowsPerS"], at_least(0.85)),
        Figure("peak memory ÷ peak memory of C1", many["peakRssBytes"] / few["peakRssBytes"], at_most(1.2)),
        Figure("rows", row_count),
        Figure("daemon CPU µs/row", many["daemonCpuS"] / row_count * 1e6),
        Figure("daemon CPU µs/row of C1", few["daemonCpuS"] / ROWS * 1e6),
        Figure("rows/s", many["rowsPerS"]),
        Figure("rows/s of C1", few["rowsPerS"]),
        Figure("peak memory of the daemon MiB", many["peakRssBytes"] / 2**20),
        Figure("peak memory of C1 MiB", few["peakRssBytes"] / 2**20),
    ]


WORKLOADS = (
    Workload(
        name="C1",
        what="csv-payments, 10,000 rows, latency 20 ms, window 250, as `tpfd demo` runs it",
        measure=_measure,
    ),
    Workload(
        name="C2",
        what=f"csv-payments with --rows (at least {FEWEST_ROWS:,}), and C1 beside it: constant speed and memory",
        measure=_measure_many,
        usual=False,
        most_runs=1,
    ),
)
