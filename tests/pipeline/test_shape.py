"""Where a pipeline can run live, and where its segments end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpfd.pipeline.model import Pipeline
from tpfd.pipeline.shape import LiveShape, live_shape, segment_end

Load = Callable[..., Pipeline]

STEPS = """
steps:
  - {name: Prepare, input: Order, output: Order, python: "m:f"}
  - {name: Split, cardinality: ONE_TO_MANY, input: Order, output: Order, python: "m:f"}
  - {name: Enrich, input: Order, output: Order, python: "m:f"}
  - name: Ask
    kind: await
    input: Order
    output: Decision
    timeout: PT5M
    await: {transport: {type: websocket}}
  - {name: Log, cardinality: SIDE_EFFECT, input: Decision, python: "m:f"}
  - {name: Close, input: Decision, output: Done, python: "m:f"}
"""


def test_producer_await_and_scalar_suffix_run_live(load: Load) -> None:
    pipeline = load(STEPS)
    assert live_shape(pipeline, 0) == LiveShape(producer_index=1, await_index=3, suffix_start=4, suffix_stop=6)
    assert segment_end(pipeline, 0) == 3
    assert segment_end(pipeline, 4) == 6


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("type: websocket", "type: interaction-api"),
        ("cardinality: ONE_TO_MANY, ", ""),
        ('output: Done, python: "m:f"', 'output: Done, python: "m:f", cardinality: MANY_TO_ONE'),
        ("name: Enrich,", "name: Enrich, cardinality: MANY_TO_ONE,"),
    ],
)
def test_other_shapes_do_not(load: Load, old: str, new: str) -> None:
    assert old in STEPS
    assert live_shape(load(STEPS.replace(old, new)), 0) is None


def test_a_second_await_behind_the_first_is_not_live(load: Load) -> None:
    second = """
  - name: Ask Again
    kind: await
    input: Done
    output: Done
    timeout: PT5M
    await: {transport: {type: websocket}}
"""
    pipeline = load(STEPS + second)
    assert live_shape(pipeline, 0) is None
    assert live_shape(pipeline, 4) is None
    assert segment_end(pipeline, 4) == 6


def test_a_segment_that_starts_behind_the_producer_is_not_live(load: Load) -> None:
    assert live_shape(load(STEPS), 2) is None


def test_no_await_no_live_shape(load: Load) -> None:
    assert live_shape(load(STEPS), 4) is None
