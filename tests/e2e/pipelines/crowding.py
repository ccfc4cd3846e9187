"""Many questions, each with an answer that the result shows."""

from __future__ import annotations

from collections.abc import AsyncIterator

from attrs import frozen


@frozen
class Batch:
    count: int


@frozen
class Question:
    number: int


@frozen
class Answer:
    number: int
    text: str


@frozen
class Line:
    number: int
    text: str


async def make_questions(batch: Batch) -> AsyncIterator[Question]:
    """As many as were asked for."""
    for number in range(batch.count):
        yield Question(number)


def note(answer: Answer) -> Line:
    """The answer as it was admitted."""
    return Line(answer.number, answer.text)
