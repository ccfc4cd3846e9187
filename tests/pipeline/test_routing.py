"""Routing by type: who takes what, and what can never arrive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpfd.pipeline.model import Pipeline
from tpfd.pipeline.routing import routes

Load = Callable[..., Pipeline]
Problems = Callable[..., list[str]]

BRANCHES = """
  OutA: {fields: [[v, string]]}
  OutB: {fields: [[v, string]]}
  Out: {variants: {a: OutA, b: OutB}}
steps:
  - {name: Decide, input: Order, output: Decision, python: "m:f"}
  - {name: On Accept, input: Accepted, output: OutA, python: "m:f"}
  - {name: On Decline, input: Decision, accepts: [Declined], output: OutB, python: "m:f"}
  - {name: Merge, input: Out, output: Done, terminal: true, python: "m:f"}
"""


def test_each_branch_takes_its_own_and_lets_others_pass(load: Load) -> None:
    pipeline = load(BRANCHES)
    table = routes(pipeline)
    decide, accept, decline, merge = pipeline.steps
    assert table.takes(decide, "Order")
    assert table.takes(accept, "Accepted")
    assert not table.takes(accept, "Declined")
    assert table.takes(decline, "Declined")
    assert not table.takes(decline, "OutA")
    assert table.takes(merge, "OutA")
    assert table.takes(merge, "OutB")
    assert [sorted(route.passes) for route in table.routes] == [[], ["Declined"], ["OutA"], []]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "input: Out, output",
            "input: OutA, output",
            "'Merge' is the last step and must take everything; it does not take OutB @ $.steps[3]",
        ),
        (
            "input: Accepted",
            "input: Done",
            "nothing that 'On Accept' takes (Done) can arrive; what arrives is Accepted, Declined @ $.steps[1]",
        ),
        ("output: OutA, python", "output: OutA, terminal: true, python", "is terminal, but steps follow it"),
        (
            "input: Accepted, output: OutA",
            "input: Accepted, output: OutA, cardinality: MANY_TO_ONE",
            "Declined cannot pass by 'On Accept': only a ONE_TO_ONE step can be passed by @ $.steps[1]",
        ),
        ("accepts: [Declined]", "accepts: [OutA]", "'OutA' is not a variant of Decision"),
    ],
)
def test_branches_that_do_not_fit_are_found_at_load_time(problems: Problems, old: str, new: str, expected: str) -> None:
    assert old in BRANCHES
    assert any(expected in problem for problem in problems(BRANCHES.replace(old, new)))


def test_a_side_effect_gives_what_it_takes(load: Load) -> None:
    pipeline = load(
        """
steps:
  - {name: Decide, input: Order, output: Decision, python: "m:f"}
  - {name: Log, cardinality: SIDE_EFFECT, input: Accepted, python: "m:f"}
  - {name: Close, input: Decision, output: Done, python: "m:f"}
"""
    )
    table = routes(pipeline)
    assert table.routes[1].gives == {"Accepted"}
    assert table.routes[2].takes == {"Accepted", "Declined"}


def test_a_side_effect_on_one_variant_gives_only_that_one(load: Load) -> None:
    pipeline = load(
        """
steps:
  - {name: Decide, input: Order, output: Decision, python: "m:f"}
  - {name: Log, cardinality: SIDE_EFFECT, input: Decision, accepts: [Accepted], python: "m:f"}
  - {name: Close, input: Decision, output: Done, python: "m:f"}
"""
    )
    assert routes(pipeline).routes[1].gives == {"Accepted"}
    assert routes(pipeline).routes[1].passes == {"Declined"}


def test_a_step_path_in_a_problem_is_the_authored_one(problems: Problems) -> None:
    rest = """
steps:
  - name: Ask
    input: Order
    output: Decision
    await: {operationOutput: {type: Order}, timeout: PT5M, transport: {type: interaction-api}}
  - {name: Close, input: Accepted, output: Done, python: "m:f"}
"""
    assert any("does not take Declined @ $.steps[1]" in problem for problem in problems(rest))
