"""W3, I1, S1: executions that wait for the outside; what they cost while they wait, and how fast they go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import Figure, Run, Workload, at_least, at_most
from tests.bench.processes import BenchFailed, Daemon, load, serving, wait_until, write_config
from tests.bench.seed import parked_database, waiting_count

WARM_COUNT = 1_000
COUNT = 20_000
IN_FLIGHT = 16
STREAMED_AT_ONCE = 128
IDLE_COUNT = 100_000
FEW_COUNT = 100
IDLE_S = 20.0
SWEEPS = {"interval": "1s"}
"""Thirty times as often as usual, so that what a sweep reads is seen."""
SETTLE_S = 3.0


def _park(daemon: Daemon, count: int) -> None:
    """Submits tickets and waits until they are parked."""
    parked = waiting_count(daemon) + count
    load(daemon, "submit", str(count), "4", "100")
    wait_until("all executions to be parked", lambda: waiting_count(daemon) >= parked, 300.0, every_s=0.5)


def _pending(daemon: Daemon, count: int) -> list[str]:
    names = [one["interactionId"] for one in daemon.pages("/pipeline/interactions/pending?limit=1000")]
    if len(names) != count:
        raise BenchFailed(f"{len(names)} interactions are pending, not {count}")
    return names


def _complete(daemon: Daemon, kind: str, names: Sequence[str], file: Path, *arguments: str) -> tuple[float, float]:
    """Completes interactions; completions answered per second, and executions ended per second."""
    file.write_text("\n".join(names), encoding="utf-8")
    before = daemon.succeeded_count("parked")
    client = load(daemon, kind, str(file), *arguments)
    wait_until("the end of all", lambda: daemon.succeeded_count("parked") >= before + len(names), 120.0, every_s=0.05)
    ended_s = time.time()
    began_s = client["beganEpochMs"] / 1000
    return len(names) / (client["endedEpochMs"] / 1000 - began_s), len(names) / (ended_s - began_s)


def _measure_parked(run: Run) -> Sequence[Figure]:
    config = write_config(run.folder, "parked")
    with serving(config, run.profile) as daemon:
        _park(daemon, WARM_COUNT)
        time.sleep(1.0)
        rss_bytes = daemon.rss_bytes()
        began_s, cpu_s = time.monotonic(), daemon.cpu_s()
        _park(daemon, COUNT)
        parking_s, parking_cpu_s = time.monotonic() - began_s, daemon.cpu_s() - cpu_s
        time.sleep(1.0)
        growth_bytes = daemon.rss_bytes() - rss_bytes
        # The gauge is sampled now and then; zero must be seen once.
        wait_until("no execution in flight", lambda: daemon.metric("tpf_executions_in_flight") == 0, 40.0, every_s=1.0)
        names = _pending(daemon, WARM_COUNT + COUNT)[:COUNT]
        half = COUNT // 2
        cpu_s = daemon.cpu_s()
        answered, ended = _complete(daemon, "complete", names[:half], run.folder / "http", str(IN_FLIGHT))
        http_cpu_s = daemon.cpu_s() - cpu_s
        streamed, streamed_ended = _complete(
            daemon, "stream", names[half:], run.folder / "stream", str(STREAMED_AT_ONCE), "decide"
        )
        stream_cpu_s = daemon.cpu_s() - cpu_s - http_cpu_s
    return [
        Figure("KiB of memory per parked execution", growth_bytes / COUNT / 1024, at_most(0.2)),
        Figure("completions/s over HTTP", answered, at_least(1_200)),
        Figure("executions ended/s meanwhile, HTTP", ended),
        Figure("completions/s over WebSocket", streamed, at_least(1_200)),
        Figure("executions ended/s meanwhile, WebSocket", streamed_ended),
        Figure("daemon CPU ms/completion, HTTP", http_cpu_s / half * 1000),
        Figure("daemon CPU ms/completion, WebSocket", stream_cpu_s / half * 1000),
        Figure("parked/s", COUNT / parking_s),
        Figure("daemon CPU ms/parked", parking_cpu_s / COUNT * 1000),
    ]


def _idle(run: Run, count: int, cache: Path) -> tuple[float, float]:
    """Share of a core and bytes read per second by a daemon that only has `count` parked executions."""
    folder = run.folder / f"idle-{count}"
    folder.mkdir()
    config = parked_database(count, folder, cache, sweep=SWEEPS)
    with serving(config, run.profile) as daemon:
        time.sleep(SETTLE_S)
        cpu_s, read_bytes = daemon.cpu_s(), daemon.read_bytes()
        time.sleep(IDLE_S)
        return (daemon.cpu_s() - cpu_s) / IDLE_S, (daemon.read_bytes() - read_bytes) / IDLE_S


def _measure_idle(run: Run) -> Sequence[Figure]:
    few_share, few_bytes = _idle(run, FEW_COUNT, run.cache)
    share, read = _idle(run, IDLE_COUNT, run.cache)
    return [
        Figure("% of one core", share * 100, at_most(1)),
        Figure(f"% of one core with {FEW_COUNT} parked", few_share * 100),
        Figure(f"KiB/s read more than with {FEW_COUNT} parked", (read - few_bytes) / 1024, at_most(16)),
        Figure("KiB/s read", read / 1024),
    ]


def _measure_start(run: Run) -> Sequence[Figure]:
    config = parked_database(IDLE_COUNT, run.folder, run.cache)
    with serving(config, run.profile) as daemon:
        ready_s, cpu_s = daemon.ready_s, daemon.cpu_s()
    return [Figure("start to ready s", ready_s, at_most(1.5)), Figure("CPU s until then", cpu_s)]


WORKLOADS = (
    Workload(
        name="W3",
        what="20,000 executions parked on an interaction, then all completed, half of them over each road",
        measure=_measure_parked,
    ),
    Workload(name="I1", what="idle daemon, 100,000 parked rows", measure=_measure_idle),
    Workload(name="S1", what="start to ready, SQLite with 100,000 executions", measure=_measure_start),
)
