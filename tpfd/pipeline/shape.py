"""The shape of a pipeline's segments: where it can run live through an await, and where a segment ends.

A segment is what runs under one claim. It ends before an await that parks the execution, or at the end. A *live* await
does not end it: a streaming producer, the await right behind it, and one-to-one steps to the end form one flow that
stays in memory while the attempt lives.
"""

from __future__ import annotations

from attrs import frozen

from tpfd.pipeline.model import Cardinality, Pipeline, Step, StepKind

LIVE_TRANSPORTS = frozenset({"websocket", "kafka", "sqs"})
"""Transports whose completions can be handed to a waiting attempt."""

_SCALAR = frozenset({Cardinality.ONE_TO_ONE, Cardinality.SIDE_EFFECT})


@frozen
class LiveShape:
    """A stretch of the pipeline that one attempt runs as one flow.

    Attributes:
        producer_index: the step that gives the stream.
        await_index: the await behind it.
        suffix_start: first step after the await.
        suffix_stop: one past the last step; always the end of the pipeline.
    """

    producer_index: int
    await_index: int
    suffix_start: int
    suffix_stop: int


def live_shape(pipeline: Pipeline, from_index: int) -> LiveShape | None:
    """The live shape of the segment that starts at a step.

    Scalar service steps may stand before the producer and between producer and await (they run in the same flow).

    Args:
        pipeline: the pipeline.
        from_index: first step of the segment.

    Returns:
        None where the next await is not itemised over a stream, its transport has no live window, or something other
        than scalar service steps follows it.
    """
    waiting = _next_await(pipeline, from_index)
    if waiting is None or waiting.await_spec is None:
        return None
    producers = [
        step.index for step in pipeline.steps[from_index : waiting.index] if step.cardinality.gives_many
    ]
    between = pipeline.steps[producers[-1] + 1 : waiting.index] if producers else ()
    suffix = pipeline.steps[waiting.index + 1 :]
    eligible = (
        bool(producers)
        and all(_scalar_service(step) for step in between)
        and waiting.cardinality is Cardinality.ONE_TO_ONE
        and waiting.await_spec.transport in LIVE_TRANSPORTS
        and all(_scalar_service(step) for step in suffix)
    )
    if not eligible:
        return None
    return LiveShape(producers[-1], waiting.index, waiting.index + 1, len(pipeline.steps))


def segment_end(pipeline: Pipeline, from_index: int) -> int:
    """Index of the await that ends the segment starting at a step; the number of steps where none does.

    A live await ends it too, for the durable way: what runs live is said by `live_shape`.
    """
    waiting = _next_await(pipeline, from_index)
    return len(pipeline.steps) if waiting is None else waiting.index


def _next_await(pipeline: Pipeline, from_index: int) -> Step | None:
    return next((step for step in pipeline.steps[from_index:] if step.kind is StepKind.AWAIT), None)


def _scalar_service(step: Step) -> bool:
    return step.kind is StepKind.SERVICE and step.cardinality in _SCALAR
