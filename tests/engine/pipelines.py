"""Small pipelines: a few types, steps as YAML text, functions given by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.contract import bind_functions, bind_types
from tpfd.pipeline.loader import load_pipeline
from tpfd.pipeline.routing import routes
from tpfd.program import Program, StepDefaults, compile_program


@frozen
class Batch:
    name: str
    count: int


@frozen
class Row:
    number: int
    text: str


@frozen
class Answer:
    number: int
    text: str


@frozen
class Refusal:
    number: int
    why: str


@frozen
class Line:
    number: int
    text: str


@frozen
class Total:
    count: int
    text: str


TYPES = """
version: 3
appName: Test
types:
  Batch: {fields: [[name, string], [count, int64]]}
  Row: {fields: [[number, int64], [text, string]]}
  Answer: {fields: [[number, int64], [text, string]]}
  Refusal: {fields: [[number, int64], [why, string]]}
  Decision: {variants: {yes: Answer, no: Refusal}}
  Line: {fields: [[number, int64], [text, string]]}
  Total: {fields: [[count, int64], [text, string]]}
python:
  types: {Batch: "t:Batch", Row: "t:Row", Answer: "t:Answer", Refusal: "t:Refusal", Line: "t:Line", Total: "t:Total"}
"""
PUBLISH = """
publish:
  out: {kind: object, provider: filesystem, location: {root: out}, naming: {keyTemplate: "{executionId}.csv"},
        payload: {contentType: text/csv, format: csv}}
output: {to: out, consumes: {typeName: Line}}
"""

Functions = Mapping[str, Callable[..., Any]]
QUICK = StepDefaults(retry_limit=0, buffer_capacity=4, max_concurrency=8)
"""No retries within the attempt, short channels."""


def service(function: str, input_type: str, output_type: str, cardinality: str = "ONE_TO_ONE", more: str = "") -> str:
    """A service step named after its function."""
    kind = f"cardinality: {cardinality}, input: {input_type}, output: {output_type}"
    return f'  - {{name: {function}, {kind}, python: "t:{function}"{", " + more if more else ""}}}\n'


def waiting(
    name: str = "ask",
    input_type: str = "Row",
    output_type: str = "Answer",
    transport: str = "websocket",
    *,
    more: str = "",
    timeout: str = "PT10M",
    settings: str = "",
) -> str:
    """An await step. `more` goes to the step, `settings` to its `await`."""
    wait = f"{{transport: {{type: {transport}}}{', ' + settings if settings else ''}}}"
    rest = f"timeout: {timeout}, await: {wait}{', ' + more if more else ''}"
    return f"  - {{name: {name}, kind: await, input: {input_type}, output: {output_type}, {rest}}}\n"


def program(
    steps: str, functions: Functions, *, publish: bool = False, defaults: StepDefaults = QUICK, name: str = "Test"
) -> Program:
    """A pipeline of these steps, ready to run."""
    types = (Batch, Row, Answer, Refusal, Line, Total)
    known: dict[str, object] = {**{one.__name__: one for one in types}, **functions}

    def resolve(reference: str) -> object:
        wanted = reference.partition(":")[2]
        if wanted not in known:
            raise ConfigError([Problem("$", f"the test has no {wanted}")])
        return known[wanted]

    text = TYPES.replace("appName: Test", f"appName: {name}") + (PUBLISH if publish else "") + "steps:\n" + steps
    pipeline = bind_types(load_pipeline(text, "test.yaml", {}), resolve)
    return compile_program(pipeline, bind_functions(pipeline, resolve), routes(pipeline), defaults)


# ── functions that many tests use ──


async def parse(batch: Batch) -> Any:
    """The rows of a batch."""
    for number in range(batch.count):
        yield Row(number, f"{batch.name}-{number}")


def finish(answer: Answer) -> Line:
    """An answer as a line of the output."""
    return Line(answer.number, answer.text)


def begin(batch: Batch) -> Row:
    return Row(batch.count, batch.name)


INLINE = "inline: true"
PARSE = service("parse", "Batch", "Row", "ONE_TO_MANY")
FINISH = service("finish", "Answer", "Line", more=INLINE)
BEGIN = service("begin", "Batch", "Row", more=INLINE)


def batch(count: int, name: str = "row") -> dict[str, object]:
    """The JSON input of a batch."""
    return {"name": name, "count": count}
