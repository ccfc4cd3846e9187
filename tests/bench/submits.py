"""W1 and W1b: many short executions, submitted one by one and a hundred per request."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.figures import Figure, Goal, Run, Workload, at_least, at_most
from tests.bench.machine import syncs_per_s
from tests.bench.processes import BenchFailed, Daemon, load, serving, wait_until, write_config

COUNT = 1_000
IN_FLIGHT = 16


def ended_epoch_ms(daemon: Daemon, pipeline: str, count: int, within_s: float) -> float:
    """Waits until all executions have succeeded; when the last one did."""
    wait_until("all executions", lambda: daemon.succeeded_count(pipeline) >= count, within_s)
    moments = [view["updatedAtEpochMs"] for view in daemon.pages("/pipeline/executions?status=SUCCEEDED&limit=1000")]
    if len(moments) != count:
        raise BenchFailed(f"{len(moments)} of {count} executions have succeeded")
    return float(max(moments))


def _measure(run: Run, batch: int, goal: Goal, slowest: Goal | None) -> Sequence[Figure]:
    config = write_config(run.folder, "noop")
    with serving(config, run.profile) as daemon:
        cpu_s = daemon.cpu_s()
        client = load(daemon, "submit", str(COUNT), str(IN_FLIGHT), str(batch))
        took_s = (ended_epoch_ms(daemon, "noop", COUNT, 60.0) - client["beganEpochMs"]) / 1000
        cpu_s = daemon.cpu_s() - cpu_s
    return [
        Figure("executions/s", COUNT / took_s, goal),
        Figure("submit p99 ms", client["p99Ms"], slowest),
        Figure("submit p50 ms", client["p50Ms"]),
        Figure("submits/s", COUNT / (client["endedEpochMs"] - client["beganEpochMs"]) * 1000),
        Figure("daemon CPU ms/execution", cpu_s / COUNT * 1000),
        Figure("daemon CPU share", cpu_s / took_s),
        Figure("client CPU share", client["cpuS"] / took_s),
        Figure("limit: syncs/s of the disk", syncs_per_s(run.folder)),
    ]


WORKLOADS = (
    Workload(
        name="W1",
        what="1,000 executions of 3 no-op steps, 200-byte JSON, 16 submits in flight",
        measure=lambda run: _measure(run, 1, at_least(650), at_most(60)),
    ),
    Workload(
        name="W1b",
        what="the same, submitted 100 per request",
        measure=lambda run: _measure(run, 100, at_least(2_000), None),
    ),
)
