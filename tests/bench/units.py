"""U1: units of very many items that are answered after their execution was parked, released and published."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.bench.figures import Figure, Run, Workload, at_most
from tests.bench.load import ticket
from tests.bench.processes import PIPELINES, BenchFailed, Daemon, load, serving, write_config

FEW_COUNT = 10_000
COUNT = 100_000
BEHIND_COUNT = 3
STREAMED_AT_ONCE = 128
TIMEOUT_S = 1.0
"""As in ``pipelines/hasty.yaml``."""
WITHIN_S = 1_800.0
SWEEPS = {"interval": "1s"}
"""So that a timeout that comes later has waited for a sweep to end."""
OUTPUT_VARIABLE = "BENCH_OUTPUT"


@frozen(kw_only=True)
class Unit:
    """What one unit cost.

    Attributes:
        parking_s: from the submit until the execution is parked.
        answering_s: until the last answer is admitted.
        finishing_s: from there to the end.
        late_s: how much later than it should each wait ended that timed out beside it.
        behind_s: the same of those right behind its end, while it is cleaned up.
    """

    parking_s: float
    answering_s: float
    finishing_s: float
    cpu_s: float
    peak_bytes: int
    idle_bytes: int
    late_s: Sequence[float]
    behind_s: Sequence[float]


def _interaction(execution_id: str, number: int) -> str:
    return f"{execution_id}.s001.{number:09d}"


def _view(daemon: Daemon, path: str, *statuses: str, every_s: float = 0.02) -> Any:
    """An execution once it has one of the statuses."""
    end_s = time.monotonic() + WITHIN_S
    while (view := daemon.call("GET", path))["status"] not in statuses:
        if time.monotonic() > end_s:
            raise BenchFailed(f"waited {WITHIN_S:.0f} s for {statuses}: {view}")
        time.sleep(every_s)
    return view


def _late_s(daemon: Daemon) -> float:
    """Lets something time out; how much later than it should that happened, in seconds."""
    path = f"/pipeline/executions/{daemon.call('POST', '/pipeline/run-async?pipeline=hasty', ticket(0))['executionId']}"
    parked = _view(daemon, path, "WAITING_EXTERNAL", "FAILED")
    if parked["status"] == "FAILED":
        return 0.0
    ended = _view(daemon, path, "FAILED")
    return float(ended["updatedAtEpochMs"] - parked["updatedAtEpochMs"]) / 1000 - TIMEOUT_S


def _run(folder: Path, count: int, profile: Path | None) -> Unit:
    folder.mkdir()
    os.environ[OUTPUT_VARIABLE] = str(folder)
    pipelines = [str(PIPELINES / f"{name}.yaml") for name in ("units", "hasty")]
    config = write_config(folder, "units", pipelines=pipelines, sweep=SWEEPS)
    with serving(config, profile) as daemon, ThreadPoolExecutor(1) as clients:
        _late_s(daemon)
        idle_bytes, cpu_s, began_s = daemon.rss_bytes(), daemon.cpu_s(), time.monotonic()
        body = daemon.call("POST", "/pipeline/run-async?pipeline=units", {"count": count})
        execution_id, path = body["executionId"], f"/pipeline/executions/{body['executionId']}"
        _view(daemon, path, "WAITING_EXTERNAL", every_s=0.2)
        parked_s = time.monotonic()
        names = folder / "names"
        names.write_text("\n".join(_interaction(execution_id, number) for number in range(count)), encoding="utf-8")
        arguments = ("stream", str(names), str(STREAMED_AT_ONCE), "ask")
        answering = clients.submit(load, daemon, *arguments, within_s=WITHIN_S)
        late_s: list[float] = []
        while daemon.call("GET", path)["status"] != "SUCCEEDED":
            late_s.append(_late_s(daemon))
            time.sleep(0.2)
        ended_s = time.monotonic()
        behind_s = [_late_s(daemon) for _ in range(BEHIND_COUNT)]
        answered_s = answering.result()["endedEpochMs"] / 1000 - time.time() + ended_s
        cpu_s, peak_bytes = daemon.cpu_s() - cpu_s, daemon.peak_rss_bytes()
    lines = (folder / f"{execution_id}.csv").read_text(encoding="utf-8").splitlines()[1:]
    if lines != [f"{_interaction(execution_id, number)},approved" for number in range(count)]:
        raise BenchFailed(f"{len(lines)} rows of {count} came out, or in another order: {folder}")
    return Unit(
        parking_s=parked_s - began_s,
        answering_s=answered_s - parked_s,
        finishing_s=ended_s - answered_s,
        cpu_s=cpu_s,
        peak_bytes=peak_bytes,
        idle_bytes=idle_bytes,
        late_s=late_s,
        behind_s=behind_s,
    )


def _measure(run: Run) -> Sequence[Figure]:
    few = _run(run.folder / "few", FEW_COUNT, None)
    many = _run(run.folder / "many", run.row_count or COUNT, run.profile)
    count = run.row_count or COUNT
    return [
        Figure(f"peak memory ÷ peak memory of {FEW_COUNT:,} items", many.peak_bytes / few.peak_bytes, at_most(1.1)),
        Figure("latest timeout beside it, s late", max(many.late_s), at_most(2)),
        Figure("latest timeout behind it, s late", max(many.behind_s), at_most(2)),
        Figure("items/s, from submit to end", count / (many.parking_s + many.answering_s + many.finishing_s)),
        Figure(f"items/s of {FEW_COUNT:,}", FEW_COUNT / (few.parking_s + few.answering_s + few.finishing_s)),
        Figure("items", count),
        Figure("asked/s", count / many.parking_s),
        Figure("answered/s", count / many.answering_s),
        Figure("s from the last answer to the end", many.finishing_s),
        Figure("daemon CPU µs/item", many.cpu_s / count * 1e6),
        Figure("peak memory MiB", many.peak_bytes / 2**20),
        Figure(f"peak memory of {FEW_COUNT:,} items MiB", few.peak_bytes / 2**20),
        Figure("memory before MiB", many.idle_bytes / 2**20),
    ]


WORKLOADS = (
    Workload(
        name="U1",
        what="a unit of 100,000 items (or --rows), all answered after it was parked, released and published",
        measure=_measure,
        usual=False,
        most_runs=1,
    ),
)
