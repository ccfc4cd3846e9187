"""``python -m tests.bench [NAME…]``: runs benchmarks, prints a table, writes JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.bench import csv_payments, hosts, items, parked, submits, takeover, units
from tests.bench.figures import Figure, Result, Run, Workload
from tests.bench.machine import load_average
from tests.bench.processes import BenchFailed
from tests.bench.report import print_profile, print_result, read_profile, write_json

WORKLOADS: tuple[Workload, ...] = (
    *submits.WORKLOADS,
    *items.WORKLOADS,
    *parked.WORKLOADS,
    *takeover.WORKLOADS,
    *csv_payments.WORKLOADS,
    *hosts.WORKLOADS,
    *units.WORKLOADS,
)


def _arguments() -> argparse.Namespace:
    known = ", ".join(one.name + ("" if one.usual else " (only by name)") for one in WORKLOADS)
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=f"Benchmarks: {known}.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; all usual ones if absent")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each; the median counts (3)")
    parser.add_argument("--profile", action="store_true", help="sample the daemon and show where its time goes")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of C2, items of U1")
    arguments = parser.parse_args()
    by_name = {one.name.lower(): one for one in WORKLOADS}
    unknown = [name for name in arguments.names if name.lower() not in by_name]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are {known}")
    arguments.workloads = [by_name[name.lower()] for name in arguments.names] or [one for one in WORKLOADS if one.usual]
    return arguments


def _run(workload: Workload, arguments: argparse.Namespace, cache: Path) -> Result:
    runs: list[Sequence[Figure]] = []
    loads: list[float] = []
    for number in range(min(arguments.runs, workload.most_runs)):
        # Kept when the workload fails: the logs and the database in it say why.
        folder = Path(tempfile.mkdtemp(prefix=f"tpfd-bench-{workload.name}-"))
        samples = cache / f"{workload.name}-{number}.json" if arguments.profile else None
        loads.append(load_average())
        try:
            runs.append(workload.measure(Run(folder=folder, cache=cache, profile=samples, row_count=arguments.rows)))
        except BenchFailed as error:
            raise SystemExit(f"{workload.name} failed: {error}\nits files are in {folder}") from error
        shutil.rmtree(folder)
    files = sorted(cache.glob(f"{workload.name}-*.json"))
    profile = read_profile(files) if files else {}
    return Result(workload=workload.name, what=workload.what, runs=runs, load_averages=loads, profile=profile)


def main() -> int:
    """Runs what the command line asks for; 1 when a figure was not reached."""
    arguments = _arguments()
    console = Console(width=150 if not sys.stdout.isatty() else None)
    results = []
    with tempfile.TemporaryDirectory(prefix="tpfd-bench-") as cache:
        for workload in arguments.workloads:
            result = _run(workload, arguments, Path(cache))
            print_result(console, result)
            if result.profile:
                print_profile(console, result.profile)
            results.append(result)
            if arguments.json is not None:
                write_json(arguments.json, results)
    reached = [one.goal is None or one.goal.reached(one.value) for result in results for one in result.medians()]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
