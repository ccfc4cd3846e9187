"""The pipelines that run in the simulation, what the outside answers, and what must come out in the end."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from attrs import field, frozen

from tests.engine.pipelines import Answer, Batch, Line, Row, Total, program, service, waiting
from tpfd.core import ids
from tpfd.core.records import ExecutionId
from tpfd.errors import NonRetryableError
from tpfd.program import Program
from tpfd.steps import StepContext


class StepFaults(Protocol):
    """What can go wrong in a step function."""

    async def step(self, context: StepContext) -> None:
        """Comes back, late or never, or raises."""


FAULTS: ContextVar[StepFaults] = ContextVar("FAULTS")
"""Those of the run that the calling task belongs to."""


# ── step functions: pure, but for the faults ──


async def begin(batch: Batch, context: StepContext) -> Row:
    await FAULTS.get().step(context)
    return begun(batch)


def begun(batch: Batch) -> Row:
    return Row(batch.count, batch.name)


async def parse(batch: Batch, context: StepContext) -> AsyncIterator[Row]:
    await FAULTS.get().step(context)
    for number in range(batch.count):
        yield Row(number, f"{batch.name}-{number}")


async def grow(row: Row, context: StepContext) -> Row:
    await FAULTS.get().step(context)
    return grown(row)


def grown(row: Row) -> Row:
    return Row(row.number, row.text + "+")


async def line(row: Row, context: StepContext) -> Line:
    await FAULTS.get().step(context)
    return Line(row.number, row.text)


async def finish(answer: Answer, context: StepContext) -> Line:
    await FAULTS.get().step(context)
    return Line(answer.number, answer.text)


async def again(answer: Answer, context: StepContext) -> Row:
    await FAULTS.get().step(context)
    return Row(answer.number, answer.text)


async def total(lines: AsyncIterator[Line], context: StepContext) -> Total:
    await FAULTS.get().step(context)
    texts = [line.text async for line in lines]
    return Total(len(texts), ",".join(texts))


async def gather(rows: AsyncIterator[Row], context: StepContext) -> Batch:
    await FAULTS.get().step(context)
    texts = [row.text async for row in rows]
    return Batch(",".join(texts), len(texts))


async def check(row: Row, context: StepContext) -> Row:
    """Its items are rejected when it fails, so it fails for reasons of its own only."""
    return _kept(row)


async def sift(answer: Answer, context: StepContext) -> Answer:
    return _kept(answer)


N = TypeVar("N", Row, Answer)


def _kept(item: N) -> N:
    if item.number % 3 == REJECTED:
        raise NonRetryableError("this item is no good")
    return item


REJECTED = 1
"""Rows with this remainder are rejected, where anything is."""


# ── the outside ──


def respond(request: Any, gives_many: bool, says: str) -> Any:
    """The answer to a request; `says` makes two honest answers to one request differ."""
    rows = request if isinstance(request, list) else [request]
    if isinstance(request, list) and not gives_many:
        return {"number": len(rows), "text": says + " " + ",".join(row["text"] for row in rows)}
    if not isinstance(request, list) and gives_many:
        return [{"number": n, "text": f"{says} {n} of {request['text']}"} for n in range(request["number"])]
    answers = [{"number": row["number"], "text": f"{says} {row['text']}"} for row in rows]
    return answers if gives_many else answers[0]


# ── what must come out ──

Answered = Callable[[str], Any]
"""The admitted answer of an interaction, as JSON data."""
Expected = Callable[[ExecutionId, str, int, Answered], list[dict[str, Any]]]
"""The output rows of an execution, from its id, the name and count of its batch, and the admitted answers."""


def _interaction(execution: ExecutionId, step_index: int, item: int = 0) -> str:
    return ids.interaction_id(ids.unit_id(execution, step_index), item)


def _chain(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [{"number": count, "text": f"{name}++"}]


def _scalar(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [answered(_interaction(execution, 1))]


def _items(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [answered(_interaction(execution, 1, item)) for item in range(count)]


def _kept_items(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [answered(_interaction(execution, 2, item)) for item in range(count) if item % 3 != REJECTED]


def _sifted_items(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [answered(_interaction(execution, 1, item)) for item in range(count) if item % 3 != REJECTED]


def _total(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    texts = [answered(_interaction(execution, 1, item))["text"] for item in range(count)]
    return [{"count": count, "text": ",".join(texts)}]


def _list(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return list(answered(_interaction(execution, 1)))


def _twice(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [answered(_interaction(execution, 3))]


def _rounds(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    return [answered(_interaction(execution, 5, item)) for item in range(count)]


def _nested(execution: ExecutionId, name: str, count: int, answered: Answered) -> list[dict[str, Any]]:
    children = [ids.child_id(ids.unit_id(execution, 1), item) for item in range(count)]
    return [answered(_interaction(child, 3)) for child in children]


@frozen
class Scenario:
    """One pipeline of the simulation.

    Attributes:
        expected: its output rows.
        ordered: they come in the order of the items.
        steps: ids of its await steps by transport.
    """

    program: Program
    expected: Expected
    ordered: bool = True
    steps: Mapping[str, tuple[str, ...]] = field(init=False)

    @steps.default
    def _(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for step in self.program.pipeline.steps:
            if step.await_spec is not None:
                found.setdefault(step.await_spec.transport, []).append(step.step_id)
        return {transport: tuple(steps) for transport, steps in found.items()}

    @property
    def name(self) -> str:
        return self.program.pipeline_id

    def gives_many(self, step_id: str) -> bool:
        """Whether the answer of an await step is a list."""
        return self.program.pipeline.await_step(step_id).cardinality.gives_many

    def budget(self, step_id: str) -> int | None:
        """Requests of a step that may be out at once; None: any number."""
        step = self.program.pipeline.await_step(step_id)
        return None if self.program.terms[step.index].budget_scope is None else self.program.budget_size(step)


BEGIN = service("begin", "Batch", "Row")
PARSE = service("parse", "Batch", "Row", "ONE_TO_MANY")
FINISH = service("finish", "Answer", "Line", more="maxConcurrency: 3")
TOTAL = service("total", "Line", "Total", "MANY_TO_ONE")
DEFAULT_ANSWER = 'onTimeout: {complete-with: {number: 0, text: "nobody answered"}}'
HOOK = 'webhook, request: {url: "https://hooks.example/ask"}'
HUMAN = "assignee: ann, group: clerks, remindAfter: PT4S, escalateTo: bob, escalateAfter: PT8S"


def _scenarios(through: str) -> Sequence[Scenario]:
    asking = functools.partial(waiting, transport=through)
    functions: dict[str, Callable[..., Any]] = {
        one.__name__: one for one in (begin, parse, grow, line, finish, again, gather, total, check, sift)
    }
    functions |= {"more": grow, "spread": parse}
    few = "maxConcurrency: 3"
    many_in = "cardinality: MANY_TO_ONE"
    many_out = "cardinality: ONE_TO_MANY"
    both = "cardinality: MANY_TO_MANY"
    people = "interaction-api"
    grow_twice = service("grow", "Row", "Row") + service("more", "Row", "Row")
    to_line = service("line", "Row", "Line")
    in_order = service("finish", "Answer", "Line", more="parallelism: SEQUENTIAL")
    checked = service("check", "Row", "Row", more="recoverOnFailure: true")
    sifted = service("sift", "Answer", "Answer", more="recoverOnFailure: true")
    then = service("again", "Answer", "Row") + asking("sign", timeout="PT40S")
    defaulted = asking(timeout="PT6S", settings=DEFAULT_ANSWER)
    briefly = asking(more=few, timeout="PT30S")
    by_people = asking(transport=people, timeout="PT60S")
    twice = asking(timeout="PT20S") + service("again", "Answer", "Row") + asking("sign", transport=people)
    gathered = service("again", "Answer", "Row") + service("gather", "Row", "Batch", "MANY_TO_ONE")
    rounds = asking(more=few, timeout="PT40S") + gathered + service("spread", "Batch", "Row", "ONE_TO_MANY")
    sign = asking("sign", timeout="PT30S")
    made = functools.partial(_made, functions)
    return (
        made("Chain", BEGIN + grow_twice + to_line, _chain),
        made("Scalar", BEGIN + asking(timeout="PT20S") + FINISH, _scalar),
        made("Default", BEGIN + defaulted + FINISH, _scalar, publish=True),
        made("Person", BEGIN + asking(transport=people, timeout="PT40S", settings=HUMAN) + FINISH, _scalar),
        made("Live", PARSE + briefly + FINISH, _items, publish=True, ordered=False),
        made("Hasty", PARSE + asking(more=few, timeout="PT5S") + FINISH, _items, publish=True, ordered=False),
        made("OneByOne", PARSE + asking(more="parallelism: SEQUENTIAL", timeout="PT40S") + FINISH, _items),
        made("People", PARSE + by_people + FINISH, _items, publish=True),
        made("Total", PARSE + asking(more=few, timeout="PT40S") + FINISH + TOTAL, _total),
        made("ManyIn", PARSE + asking(more=many_in, timeout="PT30S") + FINISH, _scalar),
        made("ManyOut", BEGIN + asking(transport=people, more=many_out, timeout="PT40S") + FINISH, _list),
        made("ManyBoth", PARSE + asking(more=both, timeout="PT30S") + in_order, _list, publish=True),
        made("Checked", PARSE + checked + briefly + in_order, _kept_items, publish=True, ordered=False),
        made("Sifted", PARSE + by_people + sifted + FINISH, _sifted_items, publish=True),
        made("Hook", BEGIN + asking(transport=HOOK, timeout="PT30S") + FINISH, _scalar),
        made("Hooks", PARSE + asking(transport=HOOK, timeout="PT60S") + FINISH, _items, publish=True),
        made("Twice", BEGIN + twice + FINISH, _twice),
        made("Rounds", PARSE + rounds + sign + FINISH, _rounds, publish=True, ordered=False),
        made("Nested", PARSE + by_people + then + FINISH, _nested, publish=True),
    )


def _made(
    functions: Mapping[str, Callable[..., Any]],
    name: str,
    steps: str,
    expected: Expected,
    *,
    publish: bool = False,
    ordered: bool = True,
) -> Scenario:
    return Scenario(program(steps, functions, publish=publish, name=name), expected, ordered)


@functools.cache
def scenarios(through: str = "websocket") -> Mapping[str, Scenario]:
    """All pipelines, by name.

    Args:
        through: how providers are asked where nothing else is said: by ``websocket``, or through a broker (``kafka``).
    """
    return {one.name: one for one in _scenarios(through)}
