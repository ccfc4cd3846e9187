"""Step functions against the contract: how they are called, and every way in which they do not fit."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attrs
import pytest

from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.contract import CallStyle, StepFunction, bind_functions, bind_types
from tpfd.pipeline.model import Pipeline

if TYPE_CHECKING:
    from nowhere import Context  # type: ignore[import-not-found]

Load = Callable[..., Pipeline]


@attrs.frozen
class Order:
    order_id: UUID


@attrs.frozen
class Accepted:
    order_id: UUID


@attrs.frozen
class Declined:
    order_id: UUID


HEAD = """
version: 3
appName: x
types:
  Order: {fields: [[orderId, uuid]]}
  Accepted: {fields: [[orderId, uuid]]}
  Declined: {fields: [[orderId, uuid]]}
  Decision: {variants: {accepted: Accepted, declined: Declined}}
python: {types: {Order: "m:Order", Accepted: "m:Accepted", Declined: "m:Declined"}}
"""


async def ask(order: Order) -> Decision:
    raise NotImplementedError


Decision = Accepted | Declined


async def ask_with_context(order: Order, context: Context) -> Accepted:
    raise NotImplementedError


def plain(order: Order, *, context: Any = None) -> Any:
    raise NotImplementedError


def untyped(order, context=None):  # type: ignore[no-untyped-def]
    raise NotImplementedError


async def agen(order: Order) -> AsyncIterator[Order]:
    yield order


def gen(order: Order) -> Iterator[Order]:
    yield order


def gen2(order: Order) -> Generator[Order, None, None]:
    yield order


async def reduce(orders: AsyncIterator[Order]) -> Order:
    raise NotImplementedError


async def transform(orders: AsyncIterator[Order]) -> AsyncGenerator[Order, None]:
    async for order in orders:
        yield order


async def takes_union(decision: Accepted | Declined) -> Order:
    raise NotImplementedError


async def takes_one(decision: Declined) -> Order:
    raise NotImplementedError


async def wrong_input(order: Accepted) -> Accepted:
    raise NotImplementedError


async def wrong_input_with_context(order: Accepted, context: Context) -> Accepted:
    raise NotImplementedError


async def wrong_output(order: Order) -> Order:
    raise NotImplementedError


async def wrong_item(order: Order) -> AsyncIterator[Accepted]:
    yield Accepted(order.order_id)


async def not_a_stream(order: Order) -> Order:
    raise NotImplementedError


async def two(order: Order, other: int) -> Accepted:
    raise NotImplementedError


async def nothing() -> Accepted:
    raise NotImplementedError


async def only_context(context: Any) -> Accepted:
    raise NotImplementedError


async def context_by_place(order: Order, context: Any, /) -> Accepted:
    raise NotImplementedError


def project(request: Order, completion: Any, metadata: Any) -> Decision:
    raise NotImplementedError


class Callee:
    async def __call__(self, order: Order) -> Accepted:
        raise NotImplementedError


def nested() -> Callable[[Order], Accepted]:
    def inner(order: Order) -> Accepted:
        raise NotImplementedError

    return inner


OBJECTS: dict[str, object] = {
    **{name: value for name, value in list(globals().items()) if not name.startswith("_")},
    "callee": Callee(),
    "partial": functools.partial(two, other=5),
    "inner": nested(),
    "number": 5,
}


def from_table(reference: str) -> object:
    name = reference.partition(":")[2]
    try:
        return OBJECTS[name]
    except KeyError:
        raise ConfigError([Problem("$", f"cannot import {reference}")]) from None


def bind(load: Load, step: str) -> dict[str, StepFunction]:
    pipeline = bind_types(load(f"steps:\n  - {{name: S, {step}}}\n", head=HEAD), from_table)
    return dict(bind_functions(pipeline, from_table))


def bind_problems(load: Load, step: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        bind(load, step)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("step", "style", "wants_context"),
    [
        ("input: Order, output: Decision, python: 'm:ask'", CallStyle.ASYNC, False),
        ("input: Order, output: Accepted, python: 'm:ask_with_context'", CallStyle.ASYNC, True),
        ("input: Order, output: Decision, python: 'm:ask_with_context'", CallStyle.ASYNC, True),
        ("input: Order, output: Accepted, python: 'm:plain'", CallStyle.THREAD, True),
        ("input: Order, output: Accepted, python: 'm:plain', inline: true", CallStyle.INLINE, True),
        ("input: Order, output: Accepted, python: 'm:untyped'", CallStyle.THREAD, True),
        ("input: Order, output: Accepted, python: 'm:inner'", CallStyle.THREAD, False),
        ("input: Order, output: Order, python: 'm:agen', cardinality: ONE_TO_MANY", CallStyle.ASYNC_GENERATOR, False),
        ("input: Order, output: Order, python: 'm:gen', cardinality: ONE_TO_MANY", CallStyle.GENERATOR, False),
        ("input: Order, output: Order, python: 'm:gen2', cardinality: ONE_TO_MANY", CallStyle.GENERATOR, False),
        ("input: Order, output: Order, python: 'm:reduce', cardinality: MANY_TO_ONE", CallStyle.ASYNC, False),
        (
            "input: Order, output: Order, python: 'm:transform', cardinality: MANY_TO_MANY",
            CallStyle.ASYNC_GENERATOR,
            False,
        ),
        ("input: Decision, output: Order, python: 'm:takes_union'", CallStyle.ASYNC, False),
        ("input: Order, cardinality: SIDE_EFFECT, python: 'm:wrong_output'", CallStyle.ASYNC, False),
        ("input: Order, output: Accepted, python: 'm:callee'", CallStyle.ASYNC, False),
        ("input: Order, output: Accepted, python: 'm:partial'", CallStyle.ASYNC, False),
    ],
)
def test_how_a_function_is_called(load: Load, step: str, style: CallStyle, wants_context: bool) -> None:
    found = bind(load, step)["s"]
    assert (found.style, found.wants_context) == (style, wants_context)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("input: Order, output: Accepted", "has no Python function"),
        ("input: Order, output: Accepted, python: 'm:gone'", "cannot import m:gone"),
        ("input: Order, output: Accepted, python: 'm:number'", "which is not a function"),
        ("input: Order, output: Accepted, python: 'm:Order'", "which is not a function"),
        ("input: Order, output: Accepted, python: 'm:two'", "needs 'other'"),
        ("input: Order, output: Accepted, python: 'm:nothing'", "without a parameter for the value"),
        ("input: Order, output: Accepted, python: 'm:only_context'", "without a parameter for the value"),
        ("input: Order, output: Accepted, python: 'm:context_by_place'", "positional-only"),
        (
            "input: Order, output: Accepted, python: 'm:wrong_input'",
            "takes Order, but its function is annotated Accepted",
        ),
        (
            "input: Order, output: Accepted, python: 'm:wrong_output'",
            "gives Accepted, but its function is annotated Order",
        ),
        (
            "input: Order, output: Accepted, python: 'm:wrong_input_with_context'",
            "takes Order, but its function is annotated Accepted",
        ),
        ("input: Order, output: Accepted, python: 'm:ask'", "gives Accepted, but its function is annotated"),
        ("input: Order, output: Accepted, python: 'm:gen'", "is ONE_TO_ONE, which takes an async def or a plain def"),
        (
            "input: Order, output: Order, python: 'm:not_a_stream', cardinality: ONE_TO_MANY",
            "is ONE_TO_MANY, which takes an async generator or a generator",
        ),
        (
            "input: Order, output: Order, python: 'm:wrong_item', cardinality: ONE_TO_MANY",
            "gives a stream of Order, but its function is annotated collections.abc.AsyncIterator[",
        ),
        (
            "input: Order, output: Order, python: 'm:wrong_output', cardinality: MANY_TO_ONE",
            "takes a stream of Order, but its function is annotated Order",
        ),
        (
            "input: Order, output: Order, python: 'm:plain', cardinality: MANY_TO_ONE",
            "an async def over an async iterator",
        ),
        ("input: Order, output: Accepted, python: 'm:ask_with_context', inline: true", "takes a plain def"),
        ("input: Order, output: Accepted, python: 'm:plain', process: true", "there is no context"),
        ("input: Order, output: Accepted, python: 'm:inner', process: true", "top level of a module"),
    ],
)
def test_what_does_not_fit_is_refused(load: Load, step: str, expected: str) -> None:
    found = bind_problems(load, step)
    assert any(expected in problem for problem in found), found
    assert all(problem.startswith("step 's' ") and problem.endswith(" @ $.steps[0]") for problem in found)


def test_accepts_narrows_the_annotation(load: Load) -> None:
    steps = """
steps:
  - {name: A, input: Order, output: Decision, python: "m:ask"}
  - {name: B, input: Decision, accepts: [Declined], output: Order, python: "m:takes_one"}
  - {name: C, input: Accepted, output: Order, python: "m:untyped"}
  - {name: D, input: Order, output: Order, python: "m:wrong_output"}
"""
    pipeline = bind_types(load(steps, head=HEAD), from_table)
    assert set(bind_functions(pipeline, from_table)) == {"a", "b", "c", "d"}


def test_a_process_step_needs_the_users_own_classes(load: Load) -> None:
    head = HEAD.replace(', Accepted: "m:Accepted"', "")
    steps = "steps: [{name: S, input: Order, output: Accepted, python: 'm:plain', process: true}]"
    pipeline = bind_types(load(steps, head=head), from_table)
    with pytest.raises(ConfigError, match="bind Accepted to a class of your own"):
        bind_functions(pipeline, from_table)


AWAIT = "kind: await, input: Order, output: Decision, timeout: PT5M, await: {transport: {type: sqs}%s}"


def test_an_await_needs_no_function(load: Load) -> None:
    assert bind(load, AWAIT % "") == {}


def test_an_await_with_a_completion_type_needs_its_projector(load: Load) -> None:
    assert any("has no Python function" in one for one in bind_problems(load, AWAIT % ", completion: {type: Order}"))
    found = bind(load, AWAIT % ", completion: {type: Order, projector: 'm:project'}")["s"]
    assert (found.call, found.style) == (project, CallStyle.INLINE)
    for name, expected in (("plain", "(request, completion, metadata)"), ("ask", "needs a plain function")):
        found_problems = bind_problems(load, AWAIT % f", completion: {{type: Order, projector: 'm:{name}'}}")
        assert any(expected in one for one in found_problems)


def test_every_step_is_checked_before_anything_is_refused(load: Load) -> None:
    steps = """
steps:
  - {name: A, input: Order, output: Order, python: "m:gone"}
  - {name: B, input: Order, output: Order}
  - {name: C, input: Order, output: Order, python: "m:ask"}
"""
    pipeline = bind_types(load(steps, head=HEAD), from_table)
    with pytest.raises(ConfigError) as caught:
        bind_functions(pipeline, from_table)
    assert [one.path for one in caught.value.problems] == ["$.steps[0]", "$.steps[1]", "$.steps[2]"]
