"""Counters, measures and levels, shown in Prometheus' text format.

The instruments here only add to plain numbers (well under a microsecond); prometheus_client forms the text when
somebody asks for it. They are not locked: use them from the event loop's thread only.

Labels come from the configuration (pipelines, steps, routes) or from fixed lists (statuses, reasons), never from what
a caller sends, so that the number of series is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_BOUNDS_S = (0.005, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0, 86400.0)
WAIT_BOUNDS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0)

Labels = tuple[str, ...]


class Counted:
    """Something that only grows."""

    __slots__ = ("_help", "_label_names", "_name", "_values")

    def __init__(self, name: str, help_text: str, *label_names: str) -> None:
        self._name = name
        self._help = help_text
        self._label_names = label_names
        self._values: defaultdict[Labels, int] = defaultdict(int)
        if not label_names:
            self._values[()] = 0  # shown before anything happened, so that a rate sees the first time

    def add(self, *labels: str, count: int = 1) -> None:
        """Adds to the series with these label values, in the order of the names."""
        self._values[labels] += count

    def family(self) -> Metric:
        family = CounterMetricFamily(self._name, self._help, labels=self._label_names)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Level:
    """Something that goes up and down; set by whoever samples it."""

    __slots__ = ("_help", "_label_names", "_name", "_values")

    def __init__(self, name: str, help_text: str, *label_names: str) -> None:
        self._name = name
        self._help = help_text
        self._label_names = label_names
        self._values: dict[Labels, float] = {}

    def set(self, value: float, *labels: str) -> None:
        self._values[labels] = value

    def move(self, difference: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0) + difference

    def clear(self) -> None:
        """Forgets every series, before a sampler sets those that exist now."""
        self._values.clear()

    def family(self) -> Metric:
        family = GaugeMetricFamily(self._name, self._help, labels=self._label_names)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Measured:
    """Values sorted into buckets."""

    __slots__ = ("_bounds", "_counts", "_help", "_label_names", "_name", "_sums")

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...], *label_names: str) -> None:
        self._name = name
        self._help = help_text
        self._bounds = bounds
        self._label_names = label_names
        self._counts: dict[Labels, list[int]] = {}
        self._sums: defaultdict[Labels, float] = defaultdict(float)

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._help, labels=self._label_names)
        edges = [*(str(bound) for bound in self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            family.add_metric(labels, list(zip(edges, accumulate(counts), strict=True)), self._sums[labels])
        return family


class Metrics(Collector):
    """Every instrument of the daemon."""

    def __init__(self) -> None:
        step = ("pipeline", "step")
        # executions
        self.transitions = Counted(
            "tpf_execution_transitions", "Transitions of executions.", "pipeline", "status"
        )
        self.lease_losses = Counted("tpf_execution_lease_losses", "Attempts that lost their lease.", "pipeline")
        self.in_flight = Level("tpf_executions_in_flight", "Executions that this daemon runs now.")
        self.work_hints = Counted(
            "tpf_work_hints", "Hints of due work between hosts: sent and received, by what became of them.", "outcome"
        )
        # awaits
        self.interactions_dispatched = Counted(
            "tpf_await_interaction_dispatched", "Interactions handed to their transport.", *step
        )
        self.dispatches_complete = Counted(
            "tpf_await_unit_dispatch_complete", "Units whose interactions all exist.", *step
        )
        self.completions_admitted = Counted("tpf_await_completion_admitted", "Completions admitted.", *step)
        self.items_completed = Counted("tpf_await_item_completed", "Items of units completed.", *step)
        self.completions_held = Counted(
            "tpf_await_completion_early_held", "Completions stored before their execution was parked.", *step
        )
        self.resumes_released = Counted("tpf_await_resume_released", "Parked executions released.", *step)
        self.units_terminal = Counted("tpf_await_unit_terminal", "Units that ended.", *step, "status")
        self.completions_dropped = Counted(
            "tpf_await_completion_dropped", "Completions that changed nothing, by reason.", "reason"
        )
        self.completion_latency_s = Measured(
            "tpf_await_completion_latency_seconds", "From dispatch to admission.", LATENCY_BOUNDS_S, *step
        )
        self.unit_duration_s = Measured(
            "tpf_await_unit_duration_seconds", "From the creation of a unit to its end.", LATENCY_BOUNDS_S, *step
        )
        self.permits_taken = Level("tpf_await_admission_pending", "Places of the admission budget in use.", *step)
        self.permit_outcomes = Counted(
            "tpf_await_admission_outcomes", "What happened to places of the admission budget.", *step, "outcome"
        )
        self.permit_wait_s = Measured(
            "tpf_await_admission_wait_seconds", "Waiting for a place of the admission budget.", WAIT_BOUNDS_S, *step
        )
        # ages, set by a sampler so that they move when nothing else does
        self.oldest_due_s = Level("tpf_oldest_due_seconds", "Age of the oldest work that is due.", *step)
        self.oldest_leased_s = Level("tpf_oldest_leased_seconds", "Age of the oldest running attempt.", *step)
        self.oldest_parked_s = Level("tpf_oldest_parked_seconds", "Age of the oldest open interaction.", *step)
        # store and channels
        self.store_decisions = Level("tpf_store_decisions", "Decisions taken since the start.")
        self.store_commits = Level("tpf_store_commits", "Commits since the start; each costs a sync, or a request.")
        self.store_largest_group = Level("tpf_store_largest_group", "Most decisions in one commit.")
        self.store_waiting = Level("tpf_store_waiting", "Decisions that wait for the writer.")
        self.aws_requests = Counted(
            "tpf_aws_requests", "Requests to AWS, by outcome.", "service", "operation", "outcome"
        )
        self.store_items = Counted(
            "tpf_store_items", "Items of DynamoDB asked for, shown, written or checked.", "operation", "table"
        )
        self.channel_items = Level("tpf_channel_items", "Items waiting in memory channels before a step.", *step)
        self.channel_capacity = Level("tpf_channel_capacity", "Items that those channels can hold.", *step)
        # edge
        self.http_answers = Counted("tpf_http_answers", "Answers, by route and status.", "route", "status")
        self.http_connections = Level("tpf_http_connections", "Open connections.")
        self.http_refused = Counted("tpf_http_connections_refused", "Connections over the limit.")
        self.sockets = Level("tpf_http_websockets", "Open WebSockets.", "route")
        self._instruments = tuple(
            instrument for instrument in vars(self).values() if isinstance(instrument, Counted | Level | Measured)
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        return (instrument.family() for instrument in self._instruments)

    def exposition(self) -> bytes:
        """Everything, as text of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)
