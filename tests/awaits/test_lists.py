"""Awaits with lists, and awaits in every place of a pipeline, from the input to the result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from tests.awaits.conftest import Seat
from tests.awaits.desk import Desk, asked
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    INLINE,
    PARSE,
    Answer,
    Functions,
    Line,
    Total,
    batch,
    begin,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import TENANT, S
from tpfd import payloads
from tpfd.codec.strict_json import parse_json
from tpfd.core.kinds import CHUNK, EXECUTION, MANIFEST
from tpfd.core.records import FactType
from tpfd.errors import PayloadError, TooLarge
from tpfd.program import Program

API = "interaction-api"
FUNCTIONS: Functions = {"parse": parse, "begin": begin, "finish": finish}


def aggregate(cardinality: str, name: str = "ask", **named: Any) -> str:
    return waiting(name, transport=API, more=f"cardinality: {cardinality}", **named)


COLLECT = program(PARSE + aggregate("MANY_TO_ONE") + FINISH, FUNCTIONS)
SPREAD = program(BEGIN + aggregate("ONE_TO_MANY") + FINISH, FUNCTIONS)
TRADE = program(PARSE + aggregate("MANY_TO_MANY") + FINISH, FUNCTIONS)


def answer(number: int, text: str = "yes") -> dict[str, object]:
    return {"number": number, "text": text}


def answers(count: int, text: str = "yes") -> list[dict[str, object]]:
    return [answer(number, text) for number in range(count)]


async def request(desk: Desk, execution: str, step: int = 1) -> Any:
    """What is asked, as the list of pending interactions shows it."""
    (record,) = [one for one in await desk.pending() if one.interaction_id == asked(execution, step)]
    return parse_json(record.request or "")


# ── the three aggregates ──


async def test_a_list_in_and_one_out(desk_for: Seat) -> None:
    desk = desk_for(COLLECT)
    execution = await desk.submit(batch(3))
    assert await desk.status(execution) is S.WAITING_EXTERNAL
    assert await request(desk, execution) == [{"number": n, "text": f"row-{n}"} for n in range(3)]
    await desk.complete(asked(execution, 1), answer(3))
    await desk.work()
    assert await desk.result(execution) == answer(3)


async def test_one_in_and_a_list_out(desk_for: Seat) -> None:
    desk = desk_for(SPREAD)
    execution = await desk.submit(batch(7))
    assert await request(desk, execution) == {"number": 7, "text": "row"}
    await desk.complete(asked(execution, 1), answers(4))
    await desk.work()
    assert await desk.result(execution) == answers(4)


async def test_a_list_in_and_a_list_out(desk_for: Seat) -> None:
    desk = desk_for(TRADE)
    execution = await desk.submit(batch(3))
    assert len(await request(desk, execution)) == 3
    await desk.complete(asked(execution, 1), answers(5))
    await desk.work()
    assert await desk.result(execution) == answers(5)


async def test_an_empty_list_is_a_list(desk_for: Seat) -> None:
    desk = desk_for(TRADE)
    execution = await desk.submit(batch(0))
    assert await request(desk, execution) == []
    await desk.complete(asked(execution, 1), [])
    await desk.work()
    assert await desk.result(execution) == []


@pytest.mark.parametrize(
    ("payload", "paths"),
    [
        (answer(1), ["$"]),
        (None, ["$"]),
        ([answer(0), {"number": "x"}, None], ["$[1].number", "$[1].text", "$[2]"]),
    ],
)
async def test_a_list_that_does_not_fit_is_refused_with_every_path(
    desk_for: Seat, payload: object, paths: list[str]
) -> None:
    desk = desk_for(SPREAD)
    execution = await desk.submit(batch(7))
    error = await desk.refused(asked(execution, 1), payload)
    assert isinstance(error, PayloadError)
    assert [problem.path for problem in error.problems] == paths


async def test_the_same_list_again_is_a_duplicate_and_another_order_is_another_answer(desk_for: Seat) -> None:
    desk = desk_for(SPREAD)
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, 1), answers(3))
    assert (await desk.complete(asked(execution, 1), answers(3))).duplicate
    error = await desk.refused(asked(execution, 1), answers(3)[::-1])
    assert error.code == "conflicting_completion"


# ── guards ──


@pytest.mark.parametrize("subject", [COLLECT, TRADE], ids=["collect", "trade"])
async def test_a_request_over_the_guard_fails_with_the_counts_before_anything_is_asked(
    desk_for: Seat, subject: Program
) -> None:
    desk = desk_for(subject, max_input_items=3)
    execution = await desk.submit(batch(4))
    record = await desk.execution(execution)
    assert (record.status, record.error_code, record.attempt) == (S.FAILED, "too_many_items", 0)
    assert record.error_message == (
        "the request of ask has more than 3 items; await.aggregate-max-input-items allows no more"
    )
    assert await desk.pending() == ()
    assert await desk.facts(execution, FactType.INTERACTION_DISPATCHED) == []
    within = await desk.submit(batch(3))
    assert await desk.status(within) is S.WAITING_EXTERNAL


@pytest.mark.parametrize("subject", [SPREAD, TRADE], ids=["spread", "trade"])
async def test_an_answer_over_the_guard_is_413_and_a_shorter_one_is_taken(desk_for: Seat, subject: Program) -> None:
    desk = desk_for(subject, max_result_items=3)
    execution = await desk.submit(batch(1))
    error = await desk.refused(asked(execution, 1), answers(4))
    assert isinstance(error, TooLarge)
    assert error.message == "the answer has 4 items; await.aggregate-max-output-items allows 3"
    await desk.complete(asked(execution, 1), answers(3))
    await desk.work()
    assert await desk.result(execution) == answers(3)


async def test_a_guard_of_zero_is_none(desk_for: Seat) -> None:
    desk = desk_for(TRADE, max_input_items=0, max_result_items=0)
    execution = await desk.submit(batch(50))
    await desk.complete(asked(execution, 1), answers(60))
    await desk.work()
    assert len(await desk.result(execution)) == 60


async def test_a_large_list_is_stored_apart_both_ways_and_goes_with_its_execution(desk_for: Seat) -> None:
    desk = desk_for(TRADE)
    count = 4_000
    execution = await desk.submit(batch(count))
    record = await desk.interaction(execution, 1)
    assert (record.request, record.request_count) == (None, count)
    assert len(await request(desk, execution)) == count
    large = answers(count, "some words so that it is long")
    await desk.complete(asked(execution, 1), large)
    assert (await desk.complete(asked(execution, 1), large)).duplicate
    assert (await desk.refused(asked(execution, 1), answers(count, "others"))).code == "conflicting_completion"
    record = await desk.interaction(execution, 1)
    assert (record.response, record.response_count) == (None, count)
    (kept,) = await desk.late(execution)
    assert (kept.body or "").count("others") == count
    await desk.work()
    assert await desk.result(execution) == large
    result = (await desk.execution(execution)).result
    assert result is not None
    stored = [record.request_stored_id, record.response_stored_id, result.stored_id, kept.stored_id]
    assert None not in stored
    assert len(set(stored)) == 4

    await desk.pass_time(desk.process.runtime.policy.succeeded_ttl_ms)
    assert await desk.store.get(EXECUTION.key(TENANT, execution)) is None
    for name in stored:
        assert name is not None
        assert await desk.store.get(MANIFEST.key(TENANT, name)) is None
        assert await desk.store.get(CHUNK.key(TENANT, payloads.chunk_id(name, 0))) is None


# ── where an await may stand ──


async def test_an_await_may_be_the_first_and_the_last_step(desk_for: Seat) -> None:
    only = waiting(input_type="Batch", transport=API)
    desk = desk_for(program(only, FUNCTIONS))
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, 0), answer(7))
    await desk.work()
    assert await desk.result(execution) == answer(7)


async def test_an_aggregate_may_be_the_first_and_the_last_step(desk_for: Seat) -> None:
    desk = desk_for(program(aggregate("ONE_TO_MANY", input_type="Batch"), FUNCTIONS))
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, 0), answers(3))
    await desk.work()
    assert await desk.result(execution) == answers(3)


async def test_a_stream_await_may_be_the_last_step(desk_for: Seat) -> None:
    desk = desk_for(program(PARSE + waiting(transport=API), FUNCTIONS))
    execution = await desk.submit(batch(3))
    for item in (2, 0, 1):
        await desk.complete(asked(execution, 1, item), answer(item))
    await desk.sweep()
    assert await desk.result(execution) == answers(3)


ONE_THEN_ONE = BEGIN + waiting("first", "Row", "Row", API) + waiting("second", "Row", "Answer", API) + FINISH
MANY_THEN_MANY = PARSE + waiting("first", "Row", "Row", API) + waiting("second", "Row", "Answer", API) + FINISH


async def test_awaits_one_after_another_ask_one_after_another(desk_for: Seat) -> None:
    desk = desk_for(program(ONE_THEN_ONE, FUNCTIONS))
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, 1), answer(8, "first"))
    assert await desk.pending(step_id="second") == ()
    await desk.work()
    assert await request(desk, execution, 2) == answer(8, "first")
    await desk.complete(asked(execution, 2), answer(9, "second"))
    await desk.work()
    assert await desk.result(execution) == answer(9, "second")


async def test_items_are_asked_again_each_in_its_own_child(desk_for: Seat) -> None:
    desk = desk_for(program(MANY_THEN_MANY, FUNCTIONS))
    execution = await desk.submit(batch(3))
    for item in (1, 2, 0):
        await desk.complete(asked(execution, 1, item), answer(item, "first"))
    await desk.sweep()
    assert await desk.status(execution) is S.WAITING_EXTERNAL
    second = await desk.pending(step_id="second")
    assert [one.interaction_id for one in second] == [
        asked(f"{execution}.s001.c{item:09d}", 2) for item in range(3)
    ]
    for one in reversed(second):
        await desk.complete(one.interaction_id, answer(one.item_index, f"second of {one.execution_id[-1]}"))
    await desk.work()
    await desk.sweep()
    assert [line["text"] for line in await desk.result(execution)] == [f"second of {item}" for item in range(3)]


def in_order(then: Callable[[Sequence[int]], object]) -> Callable[[AsyncIterator[Answer]], Any]:
    async def total(stream: AsyncIterator[Answer]) -> Total:
        seen = [one.number async for one in stream]
        return Total(len(seen), str(then(seen)))

    return total


async def test_an_await_in_a_childs_suffix_and_then_an_aggregate(desk_for: Seat) -> None:
    """Stream await, an await per child, a reduction of all children's outputs, an await on its result."""
    steps = (
        PARSE
        + waiting("first", "Row", "Row", API)
        + waiting("second", "Row", "Answer", API)
        + service("total", "Answer", "Total", "MANY_TO_ONE")
        + waiting("third", "Total", "Line", API)
    )
    desk = desk_for(program(steps, {**FUNCTIONS, "total": in_order(list)}))
    execution = await desk.submit(batch(3))
    for item in (2, 1, 0):
        await desk.complete(asked(execution, 1, item), answer(item))
    await desk.sweep()
    for item in (1, 2, 0):
        child = f"{execution}.s001.c{item:09d}"
        await desk.complete(asked(child, 2), answer(10 + item))
    await desk.work()
    await desk.sweep()
    assert await request(desk, execution, 4) == {"count": 3, "text": "[10, 11, 12]"}
    await desk.complete(asked(execution, 4), answer(4, "third"))
    await desk.work()
    assert await desk.result(execution) == answer(4, "third")


async def test_an_aggregate_await_takes_the_outputs_of_a_stream_awaits_children(desk_for: Seat) -> None:
    steps = PARSE + waiting("first", "Row", "Row", API) + aggregate("MANY_TO_MANY", "second") + FINISH
    desk = desk_for(program(steps, FUNCTIONS))
    execution = await desk.submit(batch(3))
    for item in (2, 0, 1):
        await desk.complete(asked(execution, 1, item), answer(item, f"first {item}"))
    await desk.sweep()
    assert await request(desk, execution, 2) == [answer(item, f"first {item}") for item in range(3)]
    await desk.complete(asked(execution, 2), answers(2, "second"))
    await desk.work()
    assert await desk.result(execution) == answers(2, "second")


async def test_a_list_answer_can_be_asked_about_item_by_item(desk_for: Seat) -> None:
    steps = BEGIN + aggregate("ONE_TO_MANY", "first", output_type="Row") + waiting("second", transport=API) + FINISH
    desk = desk_for(program(steps, FUNCTIONS))
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, 1), answers(3, "first"))
    await desk.work()
    assert len(await desk.pending(step_id="second")) == 3
    for item in (1, 0, 2):
        await desk.complete(asked(execution, 2, item), answer(item, "second"))
    await desk.sweep()
    assert await desk.result(execution) == answers(3, "second")


async def test_a_list_that_fails_half_way_is_replayed_as_a_whole(desk_for: Seat) -> None:
    calls: list[int] = []

    def flaky(one: Answer) -> Line:
        calls.append(one.number)
        if calls.count(2) == 1 and one.number == 2:
            raise ConnectionError("not now")
        return finish(one)

    in_turn = f"{INLINE}, parallelism: SEQUENTIAL"
    steps = BEGIN + aggregate("ONE_TO_MANY") + service("flaky", "Answer", "Line", more=in_turn)
    desk = desk_for(program(steps, {**FUNCTIONS, "flaky": flaky}))
    execution = await desk.submit(batch(7))
    await desk.complete(asked(execution, 1), answers(4))
    await desk.work()
    assert await desk.status(execution) is S.WAIT_RETRY
    desk.clock.now += 10 * 60_000
    await desk.work()
    assert await desk.result(execution) == answers(4)
    assert calls == [0, 1, 2, 0, 1, 2, 3]
