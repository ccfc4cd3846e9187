"""Which values reach which step: pure routing by type.

After a union, a step takes the records its input (narrowed by `accepts`) names; the others pass it by unchanged. The
table follows every record through the pipeline, so that a step nothing can reach, and a record that nothing takes in
the end, are found when the file is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from tpfd.pipeline.model import Cardinality, Pipeline, Step
from tpfd.pipeline.section import Report
from tpfd.pipeline.types import TypeTable

_CAN_BE_PASSED = frozenset({Cardinality.ONE_TO_ONE, Cardinality.SIDE_EFFECT})


@frozen
class Route:
    """What arrives at one step and what becomes of it. Names of records."""

    step_index: int
    takes: frozenset[str]  # these are given to the step
    passes: frozenset[str]  # these go on to the next step unchanged
    gives: frozenset[str]  # these come out of the step


@frozen
class Routing:
    """The routes of a pipeline, by step."""

    routes: tuple[Route, ...]

    def takes(self, step: Step, type_name: str) -> bool:
        """Whether a record is given to the step; False: it passes by."""
        return type_name in self.routes[step.index].takes

    def can_be_passed(self, step: Step) -> bool:
        """Whether anything that arrives at the step passes it by."""
        return bool(self.routes[step.index].passes)


def routes(pipeline: Pipeline) -> Routing:
    """The routing table of a loaded pipeline."""
    return Routing(_follow(pipeline.steps, pipeline.types))


def check_routes(report: Report, steps: tuple[Step, ...], types: TypeTable, paths: Mapping[int, str]) -> None:
    """Note steps that nothing reaches, streams that cannot be split, and records that the last step does not take.

    Args:
        report: where problems go.
        steps: all of them.
        types: their types.
        paths: path of each step in the file, by index.
    """
    last = steps[-1].index
    for step, route in zip(steps, _follow(steps, types), strict=True):
        path = paths[step.index]
        arriving = ", ".join(sorted(route.takes | route.passes))
        if not route.takes:
            wanted = ", ".join(_accepted(step, types))
            report.problem(path, f"nothing that {step.name!r} takes ({wanted}) can arrive; what arrives is {arriving}")
        if step.terminal and step.index != last:
            report.problem(path, f"{step.name!r} is terminal, but steps follow it")
        if step.index == last and route.passes:
            left = ", ".join(sorted(route.passes))
            report.problem(path, f"{step.name!r} is the last step and must take everything; it does not take {left}")
        elif route.takes and route.passes and step.cardinality not in _CAN_BE_PASSED:
            left = ", ".join(sorted(route.passes))
            report.problem(path, f"{left} cannot pass by {step.name!r}: only a ONE_TO_ONE step can be passed by")


def _follow(steps: tuple[Step, ...], types: TypeTable) -> tuple[Route, ...]:
    arriving = frozenset(types.concrete(steps[0].input_type))
    found: list[Route] = []
    for step in steps:
        takes = arriving & _accepted(step, types)
        gives = takes if step.cardinality is Cardinality.SIDE_EFFECT else frozenset(types.concrete(step.output_type))
        found.append(Route(step.index, takes, arriving - takes, gives))
        arriving = (arriving - takes) | gives
    return tuple(found)


def _accepted(step: Step, types: TypeTable) -> frozenset[str]:
    return frozenset(step.accepts or types.concrete(step.input_type))
