"""What the outside sends may have a type of its own; a projector makes the step's value of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.awaits.conftest import Seat
from tests.awaits.desk import Desk, asked
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    PARSE,
    Answer,
    Functions,
    Line,
    Refusal,
    Row,
    Total,
    batch,
    begin,
    finish,
    parse,
    program,
    waiting,
)
from tests.engine.world import S
from tpfd.errors import NonRetryableError, PayloadError
from tpfd.program import Program

SETTINGS = 'completion: {type: Total, projector: "t:project"}'
ASK = waiting(transport="interaction-api", settings=SETTINGS)
TOTAL = {"count": 3, "text": "paid"}
STEP = 1


def with_projector(project: Any) -> Program:
    return program(BEGIN + ASK + FINISH, {"begin": begin, "finish": finish, "project": project})


async def parked(desk: Desk) -> str:
    execution = await desk.submit(batch(7, "order"))
    assert await desk.status(execution) is S.WAITING_EXTERNAL
    return execution


async def test_a_projector_sees_request_completion_and_metadata(desk_for: Seat) -> None:
    seen: list[tuple[Any, Any, dict[str, object]]] = []

    def project(request: Row, completion: Total, metadata: Mapping[str, object]) -> Answer:
        seen.append((request, completion, dict(metadata)))
        return Answer(request.number, f"{completion.text} {completion.count}")

    desk = desk_for(with_projector(project))
    execution = await parked(desk)
    await desk.complete(asked(execution, STEP), TOTAL)
    await desk.work()
    assert await desk.result(execution) == {"number": 7, "text": "paid 3"}
    (request, completion, metadata) = seen[0]
    assert (request, completion) == (Row(7, "order"), Total(3, "paid"))
    assert metadata == {
        "interactionId": asked(execution, STEP),
        "executionId": execution,
        "stepId": "ask",
        "itemIndex": 0,
    }


async def test_duplicates_are_compared_behind_the_projector(desk_for: Seat) -> None:
    def project(request: Row, completion: Total, metadata: Mapping[str, object]) -> Answer:
        return Answer(request.number, completion.text)

    desk = desk_for(with_projector(project))
    execution = await parked(desk)
    await desk.complete(asked(execution, STEP), TOTAL)
    assert (await desk.complete(asked(execution, STEP), {**TOTAL, "count": 4})).duplicate
    assert (await desk.refused(asked(execution, STEP), {**TOTAL, "text": "no"})).code == "conflicting_completion"
    (kept,) = await desk.late(execution)
    assert kept.body == '{"number":7,"text":"no"}'


async def test_the_payload_is_checked_against_the_completion_type_first(desk_for: Seat) -> None:
    def project(request: Row, completion: Total, metadata: Mapping[str, object]) -> Answer:
        raise AssertionError("it is not called for what does not fit")

    desk = desk_for(with_projector(project))
    execution = await parked(desk)
    error = await desk.refused(asked(execution, STEP), {"number": 7, "text": "yes"})
    assert isinstance(error, PayloadError)
    assert (error.code, [problem.path for problem in error.problems]) == ("payload_invalid", ["$.count"])


def raises(request: Row, completion: Total, metadata: Mapping[str, object]) -> Answer:
    raise ZeroDivisionError("count by nothing")


def refuses(request: Row, completion: Total, metadata: Mapping[str, object]) -> Answer:
    raise NonRetryableError("the amounts differ", code="amounts_differ")


def gives_another_record(request: Row, completion: Total, metadata: Mapping[str, object]) -> Any:
    return Line(1, "no answer")


def gives_no_record(request: Row, completion: Total, metadata: Mapping[str, object]) -> Any:
    return {"number": 7, "text": "yes"}


def gives_a_misfit(request: Row, completion: Total, metadata: Mapping[str, object]) -> Any:
    return Answer("seven", "yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("project", "said"),
    [
        (raises, "count by nothing"),
        (refuses, "the amounts differ"),
        (gives_another_record, "it gave Line, which is no Answer"),
        (gives_no_record, "dict is no record type"),
        (gives_a_misfit, "$.number"),
    ],
)
async def test_a_projector_that_fails_refuses_the_completion_and_harms_nothing(
    desk_for: Seat, project: Any, said: str
) -> None:
    desk = desk_for(with_projector(project))
    execution = await parked(desk)
    before = await desk.interaction(execution, STEP)
    error = await desk.refused(asked(execution, STEP), TOTAL)
    assert isinstance(error, PayloadError)
    assert error.code == "projector_failed"
    assert said in error.message
    assert await desk.interaction(execution, STEP) == before
    assert await desk.late(execution) == ()


DECIDE = waiting(output_type="Decision", transport="interaction-api", settings=SETTINGS)


async def test_a_projector_may_give_any_variant_of_a_union(desk_for: Seat) -> None:
    def project(request: Row, completion: Total, metadata: Mapping[str, object]) -> Answer | Refusal:
        return Refusal(request.number, completion.text) if completion.count else Answer(request.number, "")

    desk = desk_for(program(BEGIN + DECIDE, {"begin": begin, "project": project}))
    execution = await parked(desk)
    await desk.complete(asked(execution, STEP), TOTAL)
    await desk.work()
    assert await desk.result(execution) == {"no": {"number": 7, "why": "paid"}}


MANY = waiting(transport="interaction-api", settings=SETTINGS, more="cardinality: MANY_TO_MANY")


async def test_of_a_list_each_part_is_read_as_the_completion_type_and_projected_at_once(desk_for: Seat) -> None:
    def project(rows: list[Row], totals: list[Total], metadata: Mapping[str, object]) -> list[Answer]:
        return [Answer(row.number, total.text) for row, total in zip(rows, totals, strict=True)]

    functions: Functions = {"parse": parse, "finish": finish, "project": project}
    desk = desk_for(program(PARSE + MANY + FINISH, functions))
    execution = await desk.submit(batch(2))
    short = await desk.refused(asked(execution, STEP), [TOTAL])
    assert (short.code, "shorter" in short.message) == ("projector_failed", True)
    await desk.complete(asked(execution, STEP), [TOTAL, {**TOTAL, "text": "open"}])
    await desk.work()
    assert [line["text"] for line in await desk.result(execution)] == ["paid", "open"]


async def test_a_projector_of_a_list_gives_a_list(desk_for: Seat) -> None:
    def project(rows: list[Row], totals: list[Total], metadata: Mapping[str, object]) -> Any:
        return Answer(1, "alone")

    functions: Functions = {"parse": parse, "finish": finish, "project": project}
    desk = desk_for(program(PARSE + MANY + FINISH, functions))
    execution = await desk.submit(batch(2))
    error = await desk.refused(asked(execution, STEP), [TOTAL])
    assert (error.code, "not a list of Answer" in error.message) == ("projector_failed", True)
