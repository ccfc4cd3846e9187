"""Metrics as Prometheus reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tpfd
from tpfd.metrics import Counted, Level, Measured, Metrics

# The names of the framework, in Prometheus' form.
FRAMEWORK = {
    "tpf_await_interaction_dispatched_total",
    "tpf_await_unit_dispatch_complete_total",
    "tpf_await_completion_admitted_total",
    "tpf_await_item_completed_total",
    "tpf_await_completion_early_held_total",
    "tpf_await_resume_released_total",
    "tpf_await_unit_terminal_total",
    "tpf_await_completion_dropped_total",
    "tpf_await_completion_latency_seconds",
    "tpf_await_unit_duration_seconds",
    "tpf_await_admission_pending",
    "tpf_await_admission_outcomes_total",
    "tpf_await_admission_wait_seconds",
}


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def test_every_name_of_the_framework_is_there_from_the_start() -> None:
    text = Metrics().exposition().decode()
    for name in FRAMEWORK:
        assert f"# HELP {name} " in text, name


def test_counters_levels_and_measures() -> None:
    metrics = Metrics()
    metrics.completions_admitted.add("orders", "pay")
    metrics.completions_admitted.add("orders", "pay", count=4)
    metrics.completions_admitted.add("orders", "ship")
    metrics.oldest_parked_s.set(7.5, "orders", "pay")
    metrics.sockets.move(1, "/x")
    metrics.sockets.move(1, "/x")
    metrics.sockets.move(-1, "/x")
    for waited_s in (0.001, 0.002, 0.03, 0.6, 1000):
        metrics.permit_wait_s.observe(waited_s, "orders", "pay")
    seen = samples(metrics)
    pay = (("pipeline", "orders"), ("step", "pay"))
    assert seen["tpf_await_completion_admitted_total", pay] == 5
    assert seen["tpf_oldest_parked_seconds", pay] == 7.5
    assert seen["tpf_http_websockets", (("route", "/x"),)] == 1
    name = "tpf_await_admission_wait_seconds"
    buckets = {dict(labels)["le"]: value for (found, labels), value in seen.items() if found == f"{name}_bucket"}
    assert buckets["+Inf"] == 5
    assert (buckets["0.001"], buckets["0.005"], buckets["0.1"], buckets["1.0"], buckets["30.0"]) == (1, 2, 3, 4, 4)
    assert seen[f"{name}_sum", pay] == pytest.approx(1000.633)
    assert seen[f"{name}_count", pay] == 5
    metrics.oldest_parked_s.clear()
    assert ("tpf_oldest_parked_seconds", pay) not in samples(metrics)


def test_two_daemons_in_one_process_do_not_share() -> None:
    one, other = Metrics(), Metrics()
    one.http_refused.add()
    assert samples(one)["tpf_http_connections_refused_total", ()] == 1
    assert samples(other)["tpf_http_connections_refused_total", ()] == 0


def test_the_process_is_measured_too() -> None:
    assert samples(Metrics())["process_resident_memory_bytes", ()] > 0


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.completions_dropped.add('a"b\n')
    assert samples(metrics)["tpf_await_completion_dropped_total", (("reason", 'a"b\n'),)] == 1


def test_no_instrument_is_shown_that_nobody_moves() -> None:
    """A gauge that stands still is an untrue answer."""
    modules = [path for path in Path(tpfd.__file__).parent.rglob("*.py") if path.name != "metrics.py"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    instruments = [name for name, value in vars(Metrics()).items() if isinstance(value, Counted | Level | Measured)]
    still = [name for name in instruments if not re.search(rf"\b{name}\.(add|set|move|observe)\b", source)]
    assert still == []
