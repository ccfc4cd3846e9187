"""What a workload measures: figures with a value to reach, taken several times, told by their median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import field, frozen


@frozen
class Goal:
    """A value to reach.

    Attributes:
        at_least: the figure is good when it is not below; else when it is not above.
    """

    value: float
    at_least: bool

    def reached(self, value: float) -> bool:
        return value >= self.value if self.at_least else value <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {number(self.value)}"


def at_least(value: float) -> Goal:
    return Goal(value, True)


def at_most(value: float) -> Goal:
    return Goal(value, False)


@frozen
class Figure:
    """One measured value.

    Attributes:
        name: what it is, with its unit.
        goal: None: it only explains another figure.
    """

    name: str
    value: float
    goal: Goal | None = None


@frozen(kw_only=True)
class Run:
    """How one run of a workload is to be done.

    Attributes:
        folder: its own, empty.
        cache: shared by all runs; for what is made once.
        profile: where the daemon writes its samples; None: it is not profiled.
        row_count: rows, for the workload whose size is an argument; None: its usual one.
    """

    folder: Path
    cache: Path
    profile: Path | None = None
    row_count: int | None = None


@frozen(kw_only=True)
class Workload:
    """A row of the table of figures to reach.

    Attributes:
        name: as on the command line.
        what: one line for the report.
        measure: does one run.
        usual: part of a run without names.
        most_runs: it is not repeated more often than this, however many runs are asked for.
    """

    name: str
    what: str
    measure: Callable[[Run], Sequence[Figure]]
    usual: bool = True
    most_runs: int = 99


@frozen(kw_only=True)
class Result:
    """A workload's figures over all its runs."""

    workload: str
    what: str
    runs: Sequence[Sequence[Figure]]
    load_averages: Sequence[float]
    profile: Mapping[str, object] = field(factory=dict)

    def medians(self) -> list[Figure]:
        """Each figure's median, in the order in which the first run gave them."""
        found = []
        for first in self.runs[0]:
            values = [figure.value for run in self.runs for figure in run if figure.name == first.name]
            found.append(Figure(first.name, statistics.median(values), first.goal))
        return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def number(value: float) -> str:
    """A value for people: three or four digits that matter."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
