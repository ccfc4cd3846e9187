"""What one claim runs: a segment as a list of stages. Pure; the tasks are in ``segment``.

A segment goes from the cursor to the terminal output, to the next await that must suspend, or (in a child) to its
stop. On its way it is first *scalar* (one value), from the first expansion on a *stream*, behind an aggregate scalar
again.
"""

from __future__ import annotations

from attrs import frozen

from tpfd.core.records import ExecutionRecord
from tpfd.errors import InternalError
from tpfd.pipeline.model import Cardinality, Step, StepKind
from tpfd.program import LIVE_TRANSPORTS, Program


@frozen
class Call:
    """One-to-one steps in a row, on one value or on each item of a stream."""

    steps: tuple[Step, ...]


@frozen
class Expand:
    """One value becomes a stream."""

    step: Step


@frozen
class Transform:
    """A stream becomes another stream."""

    step: Step


@frozen
class Reduce:
    """A stream becomes one value."""

    step: Step


@frozen
class Live:
    """A stream is asked of the outside, answers are handed on."""

    step: Step


@frozen
class ParkItems:
    """A stream is asked of the outside, then the execution is parked."""

    step: Step


@frozen
class ParkOne:
    """One value is asked of the outside and the execution is parked; one that the step does not take goes on."""

    step: Step


@frozen
class ParkList:
    """A stream is collected, asked of the outside as one list, and the execution is parked."""

    step: Step


Stage = Call | Expand | Transform | Reduce | Live | ParkItems | ParkOne | ParkList


@frozen
class Plan:
    """The stages of one segment.

    Attributes:
        stages: in order; a parking stage is the last, unless values can pass it by.
        starts_many: the input is a stream.
        ends_many: what comes out is a stream.
        stop: cursor behind the segment.
    """

    stages: tuple[Stage, ...]
    starts_many: bool
    ends_many: bool
    stop: int

    @property
    def live(self) -> Live | None:
        """The live await of the segment, if it has one."""
        return next((stage for stage in self.stages if isinstance(stage, Live)), None)


def plan(program: Program, record: ExecutionRecord) -> Plan:
    """The segment that a claim of this execution runs."""
    stop = program.end if record.stop_index is None else record.stop_index
    starts_many = record.input.item_count is not None
    stages: list[Stage] = []
    many = starts_many
    for step in program.pipeline.steps[record.step_index : stop]:
        if step.kind is StepKind.AWAIT:
            if step.cardinality.takes_many:
                return Plan((*stages, ParkList(step)), starts_many, many, step.index)
            if not many:
                stages.append(ParkOne(step))
                if program.routing.can_be_passed(step):
                    continue
                return Plan(tuple(stages), starts_many, many, step.index)
            if not is_live(program, step):
                return Plan((*stages, ParkItems(step)), starts_many, many, step.index)
            stages.append(Live(step))
        elif step.cardinality in (Cardinality.ONE_TO_ONE, Cardinality.SIDE_EFFECT):
            _append_call(program, stages, step)
        elif step.cardinality is Cardinality.ONE_TO_MANY:
            stages.append(Expand(step))
            many = True
        elif step.cardinality is Cardinality.MANY_TO_ONE:
            stages.append(Reduce(step))
            many = False
        else:
            stages.append(Transform(step))
            many = True
    return Plan(tuple(stages), starts_many, many, stop)


def is_live(program: Program, step: Step) -> bool:
    """Whether a stream await can be answered while its stream is alive: a live transport and a suffix of scalar steps.

    Anything else parks: an aggregate or another await behind it must not depend on a stream staying alive.
    """
    if step.await_spec is None:
        raise InternalError(f"await step {step.step_id} has no await settings")
    suffix = program.pipeline.steps[step.index + 1 :]
    scalar = (Cardinality.ONE_TO_ONE, Cardinality.SIDE_EFFECT)
    return step.await_spec.transport in LIVE_TRANSPORTS and all(
        later.kind is StepKind.SERVICE and later.cardinality in scalar for later in suffix
    )


def _append_call(program: Program, stages: list[Stage], step: Step) -> None:
    """Steps that run with the same concurrency share their tasks and channels."""
    last = stages[-1] if stages else None
    if isinstance(last, Call) and program.concurrency(last.steps[0]) == program.concurrency(step):
        stages[-1] = Call((*last.steps, step))
    else:
        stages.append(Call((step,)))
