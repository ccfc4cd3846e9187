"""W2: one execution of many items, each of which asks a provider process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

from tests.bench.figures import Figure, Run, Workload, at_least, at_most
from tests.bench.processes import BenchFailed, serving, start, wait_until, write_config
from tests.bench.steps import FIRST_OUT_VARIABLE

COUNT = 1_000
WINDOW = 100
LATENCY_S = 0.02


def _measure(run: Run) -> Sequence[Figure]:
    first_out = run.folder / "first.out"
    os.environ[FIRST_OUT_VARIABLE] = str(first_out)
    config = write_config(run.folder, "items", steps={"max-concurrency": WINDOW})
    with serving(config, run.profile) as daemon:
        arguments = [daemon.url, "ask", str(WINDOW), str(LATENCY_S)]
        provider = start("tests.bench.provider", arguments, run.folder / "provider.log")
        try:
            wait_until("the provider", lambda: daemon.metric("tpf_http_websockets") == 1, 30.0)
            cpu_s = daemon.cpu_s()
            began_s = time.time()
            execution = daemon.call("POST", "/pipeline/run-async", {"count": COUNT})["executionId"]
            path = f"/pipeline/executions/{execution}"
            values = daemon.call("GET", f"{path}/result?wait=PT20S")
            view = daemon.call("GET", path)
            cpu_s = daemon.cpu_s() - cpu_s
        finally:
            provider.stop()
    if view["status"] != "SUCCEEDED" or len(values) != COUNT:
        raise BenchFailed(f"{len(values)} of {COUNT} items: {view}")
    took_s = view["updatedAtEpochMs"] / 1000 - began_s
    provider_cpu_s = json.loads(provider.log.read_text(encoding="utf-8"))["cpuS"]
    return [
        Figure("items/s", COUNT / took_s, at_least(1_500)),
        Figure("first item out s", float(first_out.read_text(encoding="ascii")) - began_s, at_most(0.15)),
        Figure("daemon CPU µs/item", cpu_s / COUNT * 1e6),
        Figure("daemon CPU share", cpu_s / took_s),
        Figure("provider CPU share", provider_cpu_s / took_s),
        Figure("limit: items/s of window ÷ latency", WINDOW / LATENCY_S),
    ]


WORKLOADS = (
    Workload(
        name="W2",
        what="1,000 items, each awaits a provider that answers after 20 ms, then a no-op step; window 100",
        measure=_measure,
    ),
)
