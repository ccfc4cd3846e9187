"""W4: a daemon is killed in the middle of its work, another process takes over."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.bench.figures import Figure, Run, Workload, at_most
from tests.bench.processes import BenchFailed, Daemon, load, serving, start_daemon, wait_until, write_config
from tests.bench.submits import ended_epoch_ms

COUNT = 200
KILLED_AT = COUNT * 40 // 100
LEASE_S = 3.0
SKEW_S = 0.2
LEASE = {"duration": "3s", "skew": "200ms"}


def _submit(daemon: Daemon) -> None:
    load(daemon, "submit", str(COUNT), "4", "50")


def _wait_for_part(daemon: Daemon) -> float:
    """When 40 % of the executions have succeeded."""
    wait_until("40 %", lambda: daemon.succeeded_count("slow") >= KILLED_AT, 60.0, every_s=0.01)
    return time.time()


def _undisturbed_s(run: Run) -> float:
    """Seconds from 40 % to the end when nobody disturbs."""
    folder = run.folder / "undisturbed"
    folder.mkdir()
    with serving(write_config(folder, "slow", lease=LEASE)) as daemon:
        _submit(daemon)
        part_s = _wait_for_part(daemon)
        return ended_epoch_ms(daemon, "slow", COUNT, 60.0) / 1000 - part_s


def _measure(run: Run) -> Sequence[Figure]:
    undisturbed_s = _undisturbed_s(run)
    config = write_config(run.folder, "slow", lease=LEASE)
    first = start_daemon(config)
    try:
        _submit(first)
        killed_s = _wait_for_part(first)
    finally:
        first.kill()
    with serving(config, run.profile, "second") as second:
        wait_until("all executions", lambda: _succeeded(second) == COUNT, 60.0, every_s=0.05)
        views = list(second.pages("/pipeline/executions?limit=1000"))
    took_s = max(view["updatedAtEpochMs"] for view in views) / 1000 - killed_s
    statuses = {view["status"] for view in views}
    if len(views) != COUNT or statuses != {"SUCCEEDED"}:
        raise BenchFailed(f"{len(views)} of {COUNT} executions, {statuses}")
    allowed_s = LEASE_S + SKEW_S + 1.5 * undisturbed_s
    return [
        Figure("s from the kill to the end ÷ s allowed", took_s / allowed_s, at_most(1)),
        Figure("s from the kill to the end", took_s),
        Figure("s allowed: lease + skew + 1.5 * undisturbed", allowed_s),
        Figure("s undisturbed from 40 % to the end", undisturbed_s),
        Figure("executions lost", COUNT - len(views), at_most(0)),
        Figure("s until the second process was ready", second.ready_s),
    ]


def _succeeded(daemon: Daemon) -> int:
    return sum(1 for _ in daemon.pages("/pipeline/executions?status=SUCCEEDED&limit=1000"))


WORKLOADS = (
    Workload(
        name="W4",
        what="200 executions of 10 steps of 50 ms, SIGKILL at 40 %, another process takes over; lease 3 s, skew 0.2 s",
        measure=_measure,
    ),
)
