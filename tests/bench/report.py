"""The table for people and the JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.figures import Result, number

PROFILE_ROWS = 40


def print_result(console: Console, result: Result) -> None:
    """One workload: its medians, what was to be reached, and whether it was."""
    loads = ", ".join(f"{load:.1f}" for load in result.load_averages)
    table = Table(title=f"{result.workload}: {result.what}", title_justify="left", caption=f"load average {loads}")
    table.add_column("figure")
    table.add_column("median", justify="right")
    table.add_column("to reach", justify="right")
    table.add_column("")
    table.add_column("runs", style="dim")
    for figure in result.medians():
        runs = " ".join(number(one.value) for run in result.runs for one in run if one.name == figure.name)
        goal, verdict = "", ""
        if figure.goal is not None:
            goal = str(figure.goal)
            verdict = "[green]reached[/]" if figure.goal.reached(figure.value) else "[red]not reached[/]"
        table.add_row(figure.name, number(figure.value), goal, verdict, runs)
    console.print(table)


def read_profile(files: Sequence[Path]) -> dict[str, object]:
    """Shares of the samples of all runs that found a thread at work, by thread, module and function.

    Returns:
        ``{"samples": n, "threads": {…}, "modules": {…}, "functions": {…}, "innermost": {…}}``, shares of all samples.
    """
    rows: list[tuple[str, str, str, int]] = []
    for file in files:
        rows += json.loads(file.read_text(encoding="utf-8"))
    threads: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    inner: Counter[str] = Counter()
    for thread, ours, innermost, count in rows:
        threads[thread] += count
        modules[ours.partition(":")[0]] += count
        functions[ours] += count
        inner[innermost] += count
    total = threads.total() or 1

    def shares(counts: Counter[str]) -> Mapping[str, float]:
        return {name: round(count / total, 4) for name, count in counts.most_common(PROFILE_ROWS)}

    return {
        "samples": total,
        "threads": shares(threads),
        "modules": shares(modules),
        "functions": shares(functions),
        "innermost": shares(inner),
    }


def print_profile(console: Console, profile: Mapping[str, object]) -> None:
    """A profile as tables."""
    console.print(f"profile of all runs, {profile['samples']} samples")
    for title in ("threads", "modules", "functions", "innermost"):
        shares = profile[title]
        assert isinstance(shares, dict)
        table = Table(title=title, title_justify="left", show_header=False)
        for name, share in shares.items():
            table.add_row(f"{share:6.1%}", name)
        console.print(table)


def write_json(file: Path, results: Sequence[Result]) -> None:
    """All results with what they were measured on."""
    document = {
        "atEpochMs": int(time.time() * 1000),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "workloads": [
            {
                "name": result.workload,
                "what": result.what,
                "loadAverages": list(result.load_averages),
                "figures": [
                    {
                        "name": figure.name,
                        "median": figure.value,
                        "toReach": None if figure.goal is None else str(figure.goal),
                        "reached": None if figure.goal is None else figure.goal.reached(figure.value),
                        "runs": [one.value for run in result.runs for one in run if one.name == figure.name],
                    }
                    for figure in result.medians()
                ],
                "profile": dict(result.profile),
            }
            for result in results
        ],
    }
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
