"""The shapes of a segment: chains, streams, aggregates, routing, early ends, rejects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest
import trio

from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    INLINE,
    PARSE,
    QUICK,
    Answer,
    Batch,
    Line,
    Refusal,
    Row,
    Total,
    batch,
    begin,
    finish,
    parse,
    program,
    service,
)
from tests.engine.world import Process, S, World
from tpfd.errors import NonRetryableError
from tpfd.steps import StepContext

TO_LINE = service("to_line", "Row", "Line", more=INLINE)
SEQUENTIAL = "parallelism: SEQUENTIAL"


def to_line(row: Row) -> Line:
    return Line(row.number, row.text)


async def run(world: World, data: object, *, status: S = S.SUCCEEDED) -> tuple[Process, str]:
    """Runs one execution to its end."""
    process = await world.start()
    done = await process.submit(data)
    await world.until_status(done.execution_id, status)
    return process, done.execution_id


async def test_a_chain_of_scalar_steps_gives_one_value(world: World) -> None:
    async def slowly(row: Row) -> Line:
        await trio.sleep(5)
        return to_line(row)

    world.load(program(BEGIN + service("slowly", "Row", "Line"), {"begin": begin, "slowly": slowly}))
    a, execution = await run(world, batch(7))
    assert await a.result(execution) == {"number": 7, "text": "row"}


async def test_an_expansion_is_mapped_and_collected(world: World) -> None:
    world.load(program(PARSE + TO_LINE, {"parse": parse, "to_line": to_line}))
    a, execution = await run(world, batch(100))
    assert sorted(line["number"] for line in await a.result(execution)) == list(range(100))


async def test_an_expansion_is_mapped_and_published(world: World) -> None:
    world.load(program(PARSE + TO_LINE, {"parse": parse, "to_line": to_line}, publish=True))
    a, execution = await run(world, batch(100))
    lines = world.disk.lines(f"{execution}.csv")
    assert sorted(lines) == sorted(f"{number},row-{number}" for number in range(100))
    record = await world.execution(execution)
    assert record.publication is not None
    assert (record.publication.item_count, record.result, await a.result(execution)) == (100, None, None)
    assert world.disk.temporaries == {}


async def test_one_value_is_published_as_one_row(world: World) -> None:
    world.load(program(BEGIN + TO_LINE, {"begin": begin, "to_line": to_line}, publish=True))
    _, execution = await run(world, batch(7))
    assert world.disk.lines(f"{execution}.csv") == ["7,row"]


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_streams_of_any_length_end(world: World, count: int) -> None:
    async def total(rows: AsyncIterator[Row]) -> Total:
        return Total(len([row async for row in rows]), "")

    world.load(program(PARSE + service("total", "Row", "Total", "MANY_TO_ONE"), {"parse": parse, "total": total}))
    a, execution = await run(world, batch(count))
    assert await a.result(execution) == {"count": count, "text": ""}


async def test_what_a_reduction_gives_can_be_expanded_again(world: World) -> None:
    async def total(rows: AsyncIterator[Row]) -> Total:
        return Total(len([row async for row in rows]), "")

    async def again(total: Total) -> AsyncIterator[Line]:
        for number in range(total.count + 1):
            yield Line(number, "")

    steps = PARSE + service("total", "Row", "Total", "MANY_TO_ONE") + service("again", "Total", "Line", "ONE_TO_MANY")
    world.load(program(steps, {"parse": parse, "total": total, "again": again}))
    a, execution = await run(world, batch(3))
    assert [line["number"] for line in await a.result(execution)] == [0, 1, 2, 3]


async def test_each_item_of_a_stream_can_be_expanded(world: World) -> None:
    async def twice(row: Row) -> AsyncIterator[Line]:
        yield to_line(row)
        yield to_line(row)

    world.load(program(PARSE + service("twice", "Row", "Line", "ONE_TO_MANY"), {"parse": parse, "twice": twice}))
    a, execution = await run(world, batch(3))
    assert [line["number"] for line in await a.result(execution)] == [0, 0, 1, 1, 2, 2]


async def test_a_transformation_sees_the_stream_as_one(world: World) -> None:
    async def pairs(rows: AsyncIterator[Row]) -> AsyncIterator[Line]:
        held: list[Row] = []
        async for row in rows:
            held.append(row)
            if len(held) == 2:
                yield Line(held[0].number, held[1].text)
                held = []
        for row in held:
            yield Line(row.number, "alone")

    world.load(program(PARSE + service("pairs", "Row", "Line", "MANY_TO_MANY"), {"parse": parse, "pairs": pairs}))
    a, execution = await run(world, batch(5))
    assert [(line["number"], line["text"]) for line in await a.result(execution)] == [
        (0, "row-1"),
        (2, "row-3"),
        (4, "alone"),
    ]


async def test_sequential_steps_keep_the_order_and_parallel_ones_the_place(world: World) -> None:
    random = Random(1)
    places: list[tuple[int | None, int]] = []
    last_seen: list[tuple[int | None, int]] = []

    async def jitter(row: Row, context: StepContext) -> Row:
        places.append((context.item_index, row.number))
        await trio.sleep(random.random())
        return row

    async def last(row: Row, context: StepContext) -> Line:
        last_seen.append((context.item_index, row.number))
        return to_line(row)

    ordered = PARSE + service("jitter", "Row", "Row", more=SEQUENTIAL) + service("last", "Row", "Line", more=SEQUENTIAL)
    mixed = PARSE + service("jitter", "Row", "Row") + service("last", "Row", "Line", more=SEQUENTIAL)
    world.load(program(ordered, {"parse": parse, "jitter": jitter, "last": last}, name="Ordered"))
    world.load(program(mixed, {"parse": parse, "jitter": jitter, "last": last}, name="Mixed"))
    a = await world.start()
    results = []
    for pipeline in ("ordered", "mixed"):
        done = await a.submit(batch(40), pipeline=pipeline)
        await world.until_status(done.execution_id, S.SUCCEEDED)
        results.append([line["number"] for line in await a.result(done.execution_id)])
    assert results == [list(range(40)), list(range(40))], "a list is in source order whoever was quicker"
    assert [number for _, number in last_seen[:40]] == list(range(40))
    assert [number for _, number in last_seen[40:]] != list(range(40))
    assert all(place == number for place, number in [*places, *last_seen]), "an item keeps its place in the source"


async def test_a_variant_that_a_step_does_not_take_passes_it_by(world: World) -> None:
    async def judge(batch: Batch) -> AsyncIterator[Answer | Refusal]:
        for number in range(batch.count):
            yield Refusal(number, "odd") if number % 2 else Answer(number, "even")

    def reprieve(refusal: Refusal) -> Answer:
        return Answer(refusal.number, f"was {refusal.why}")

    steps = service("judge", "Batch", "Decision", "ONE_TO_MANY") + service(
        "reprieve", "Refusal", "Answer", more=f"{INLINE}, {SEQUENTIAL}"
    )
    world.load(program(steps + FINISH, {"judge": judge, "reprieve": reprieve, "finish": finish}))
    a, execution = await run(world, batch(4))
    texts = {line["number"]: line["text"] for line in await a.result(execution)}
    assert texts == {0: "even", 1: "was odd", 2: "even", 3: "was odd"}


async def test_a_consumer_that_has_enough_ends_the_stream(world: World) -> None:
    parsed: list[int] = []
    closed: list[bool] = []

    async def endless(batch: Batch) -> AsyncIterator[Row]:
        try:
            for number in range(10**9):
                parsed.append(number)
                yield Row(number, batch.name)
        finally:
            closed.append(True)

    async def three(rows: AsyncIterator[Row]) -> Total:
        seen = 0
        async for _ in rows:
            if (seen := seen + 1) == 3:
                break
        return Total(seen, "enough")

    steps = service("endless", "Batch", "Row", "ONE_TO_MANY") + service("three", "Row", "Total", "MANY_TO_ONE")
    world.load(program(steps, {"endless": endless, "three": three}))
    a, execution = await run(world, batch(1))
    assert await a.result(execution) == {"count": 3, "text": "enough"}
    assert closed == [True]
    assert len(parsed) < 20, "channels are short and nobody parses ahead of them"


async def test_a_transformation_that_has_enough_ends_the_stream(world: World) -> None:
    async def first_two(rows: AsyncIterator[Row]) -> AsyncIterator[Line]:
        async for row in rows:
            yield to_line(row)
            if row.number == 1:
                return

    steps = PARSE + service("same", "Row", "Row", more=SEQUENTIAL) + service("first_two", "Row", "Line", "MANY_TO_MANY")

    async def same(row: Row) -> Row:
        return row

    world.load(program(steps, {"parse": parse, "same": same, "first_two": first_two}))
    a, execution = await run(world, batch(1000))
    assert [line["number"] for line in await a.result(execution)] == [0, 1]


async def test_memory_is_bounded_by_channels_and_workers(world: World) -> None:
    out = 0
    most = 0

    async def counted(batch: Batch) -> AsyncIterator[Row]:
        nonlocal out, most
        for number in range(batch.count):
            out += 1
            most = max(most, out)
            yield Row(number, "")

    async def slow(row: Row) -> Line:
        nonlocal out
        await trio.sleep(0.1)
        out -= 1
        return to_line(row)

    steps = service("counted", "Batch", "Row", "ONE_TO_MANY") + service("slow", "Row", "Line")
    world.load(program(steps, {"counted": counted, "slow": slow}))
    await run(world, batch(500))
    assert most <= QUICK.buffer_capacity + QUICK.max_concurrency + 2


@pytest.mark.parametrize("where", ["step", "source", "transform"])
async def test_a_broken_connection_in_user_code_is_a_failure_and_not_the_end_of_the_stream(
    world: World, where: str
) -> None:
    def fail_at(number: int, here: str) -> None:
        if where == here and number == 5:
            raise trio.BrokenResourceError

    async def source(batch: Batch) -> AsyncIterator[Row]:
        for number in range(batch.count):
            fail_at(number, "source")
            yield Row(number, "")

    async def step(row: Row) -> Row:
        fail_at(row.number, "step")
        return row

    async def transform(rows: AsyncIterator[Row]) -> AsyncIterator[Line]:
        async for row in rows:
            fail_at(row.number, "transform")
            yield to_line(row)

    steps = (
        service("source", "Batch", "Row", "ONE_TO_MANY")
        + service("step", "Row", "Row", more=SEQUENTIAL)
        + service("transform", "Row", "Line", "MANY_TO_MANY")
    )
    world.load(program(steps, {"source": source, "step": step, "transform": transform}, publish=True))
    _, execution = await run(world, batch(10), status=S.WAIT_RETRY)
    assert (await world.execution(execution)).error_code == "BrokenResourceError"
    assert world.disk.objects == {}


@pytest.mark.parametrize("failing", [0, 3, 9])
async def test_a_failure_never_looks_like_the_end_of_a_stream(world: World, failing: int) -> None:
    ended: list[str] = []

    async def check(row: Row) -> Row:
        if row.number == failing:
            raise NonRetryableError("no", code="not_wanted")
        await trio.sleep(row.number / 10)
        return row

    async def same(rows: AsyncIterator[Row]) -> AsyncIterator[Row]:
        async for row in rows:
            yield row
        ended.append("transformation")

    async def total(rows: AsyncIterator[Row]) -> Line:
        count = len([row async for row in rows])
        ended.append("reduction")
        return Line(count, "")

    steps = (
        PARSE
        + service("check", "Row", "Row")
        + service("same", "Row", "Row", "MANY_TO_MANY")
        + service("total", "Row", "Line", "MANY_TO_ONE")
    )
    world.load(program(steps, {"parse": parse, "check": check, "same": same, "total": total}, publish=True))
    _, execution = await run(world, batch(10), status=S.FAILED)
    assert (await world.execution(execution)).error_code == "not_wanted"
    assert (ended, world.disk.placed) == ([], [])


async def test_rejected_items_go_to_the_sink_and_the_rest_goes_on(world: World) -> None:
    async def check(row: Row) -> Line:
        if row.number == 3:
            raise NonRetryableError("three is not wanted", code="three")
        return to_line(row)

    steps = PARSE + service("check", "Row", "Line", more="recoverOnFailure: true")
    world.load(program(steps, {"parse": parse, "check": check}))
    a, execution = await run(world, batch(6))
    assert sorted(line["number"] for line in await a.result(execution)) == [0, 1, 2, 4, 5]
    (reject,) = a.rejects.rejects
    assert (reject.step_name, reject.reject_scope, reject.error_message) == ("check", "ITEM", "three is not wanted")
    assert reject.payload == '{"number":3,"text":"row-3"}'
    assert reject.idempotency_key.endswith(":check:3")


async def test_items_that_a_parser_gives_up_on_are_rejected_too(world: World) -> None:
    async def careful(batch: Batch, context: StepContext) -> AsyncIterator[Line]:
        for number in range(batch.count):
            if number % 2:
                context.reject_item(f"line {number}", ValueError("odd"))
            else:
                yield Line(number, "")

    world.load(program(service("careful", "Batch", "Line", "ONE_TO_MANY"), {"careful": careful}))
    a, execution = await run(world, batch(4))
    assert [line["number"] for line in await a.result(execution)] == [0, 2]
    assert [reject.payload for reject in a.rejects.rejects] == ["line 1", "line 3"]


async def test_without_recovery_one_bad_item_fails_the_execution(world: World) -> None:
    async def check(row: Row) -> Line:
        raise NonRetryableError(f"{row.number} is not wanted", code="not_wanted")

    world.load(program(PARSE + service("check", "Row", "Line"), {"parse": parse, "check": check}))
    _, execution = await run(world, batch(6), status=S.FAILED)
    record = await world.execution(execution)
    assert (record.error_code, record.attempt) == ("not_wanted", 0)


async def test_a_result_over_the_guard_fails_and_says_what_to_do(world: World) -> None:
    world.load(program(PARSE + TO_LINE, {"parse": parse, "to_line": to_line}))
    a = await world.start(max_result_items=10)
    done = await a.submit(batch(11))
    record = await world.until_status(done.execution_id, S.FAILED)
    assert record.error_code == "too_many_items"
    assert "await.aggregate-max-output-items" in (record.error_message or "")
