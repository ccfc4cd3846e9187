"""Retries: of a step within its attempt, of an attempt, and what is not tried again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import trio
from attrs import evolve

from tests.engine.expected import Expected
from tests.engine.pipelines import BEGIN, PARSE, QUICK, Line, Row, batch, begin, parse, program, service
from tests.engine.world import POLICY, S, World
from tpfd.core.records import FactType, TerminalReason
from tpfd.core.retry import Backoff
from tpfd.errors import Conflict, InternalError, MalformedError, NonRetryableError, RetryableStepError, StepError
from tpfd.steps import StepContext

RETRYING = evolve(QUICK, retry_limit=2, retry_wait_ms=1_000)


def failing(*errors: BaseException | None) -> tuple[Callable[[Row], object], list[float]]:
    """A step that fails in turn and notes when it was called; behind the last error it works."""
    called_at: list[float] = []

    async def step(row: Row) -> Line:
        called_at.append(trio.current_time())
        error = errors[len(called_at) - 1] if len(called_at) <= len(errors) else None
        if error is not None:
            raise error
        return Line(row.number, row.text)

    return step, called_at


async def test_a_step_is_tried_again_within_its_attempt_with_growing_waits(world: World) -> None:
    step, called_at = failing(ValueError("1"), ValueError("2"))
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}, defaults=RETRYING))
    a = await world.start()
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (record.attempt, record.fence) == (0, 1)
    first, second = called_at[1] - called_at[0], called_at[2] - called_at[1]
    assert 1 <= first <= 1.2
    assert 2 <= second <= 2.4


async def test_what_a_provider_asks_for_is_a_floor(world: World) -> None:
    step, called_at = failing(RetryableStepError("busy", delay_ms=30_000))
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}, defaults=RETRYING))
    a = await world.start()
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert 30 <= called_at[1] - called_at[0] <= 36


async def test_a07_what_failed_together_comes_back_apart_and_not_before_it_may(world: World) -> None:
    world.policy = evolve(POLICY, backoff=Backoff(60_000, 2.0, 300_000, 0.2))
    called: dict[str, list[float]] = {}

    async def outage(row: Row, context: StepContext) -> Line:
        times = called.setdefault(context.execution_id, [])
        times.append(trio.current_time())
        if len(times) == 1:
            raise RetryableStepError("all down", delay_ms=60_000)
        return Line(row.number, row.text)

    world.load(program(BEGIN + service("outage", "Row", "Line"), {"begin": begin, "outage": outage}))
    a = world.build(max_in_flight=500)
    done = [await a.submit(batch(number)) for number in range(500)]
    await world.nursery.start(a.run)
    for one in done:
        await world.until_status(one.execution_id, S.SUCCEEDED)
    waits = [times[1] - times[0] for times in called.values()]
    assert all(59.9 <= wait <= 72.5 for wait in waits), (min(waits), max(waits))
    assert max(Counter(int(times[1]) for times in called.values()).values()) <= 0.15 * 500


async def test_an_attempt_is_tried_again_until_the_dead_letters(world: World) -> None:
    step, called_at = failing(*[ValueError("down")] * 10)
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}))
    a = await world.start()
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.DLQ)
    assert (record.attempt, record.error_code) == (4, "ValueError")
    assert record.terminal_reason is TerminalReason.RETRY_EXHAUSTED
    assert len(called_at) == 4, "max-retries 3 means four runs"
    gaps = [later - earlier for earlier, later in itertools.pairwise(called_at)]
    assert [base <= gap <= 1.2 * base + 0.1 for base, gap in zip((10, 20, 40), gaps, strict=True)] == [True] * 3
    facts = [fact.type for fact in await world.facts(done.execution_id)]
    assert facts.count(FactType.SEGMENT_ATTEMPT_FAILED) == 4


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NonRetryableError("no", code="mine"), S.FAILED, "mine"),
        (MalformedError("cannot be read"), S.FAILED, "malformed"),
        (Conflict("somebody else was quicker"), S.FAILED, "conflict"),
        (StepError("plain"), S.FAILED, "step_failed"),
        (RetryableStepError("later"), S.WAIT_RETRY, "step_retryable"),
        (KeyError("x"), S.WAIT_RETRY, "KeyError"),
        (ExceptionGroup("several", [ValueError("1"), NonRetryableError("2", code="worst")]), S.FAILED, "worst"),
        (TimeoutError("by its own"), S.WAIT_RETRY, "TimeoutError"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else str(one),
)
async def test_what_an_error_of_a_step_means(world: World, error: BaseException, status: S, code: str) -> None:
    step, called_at = failing(error)
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}))
    a = await world.start()
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, status)
    assert (record.error_code, len(called_at)) == (code, 1)

    async def over() -> bool:
        return not a.running()

    await world.until(over, 1)


async def test_a_broken_invariant_ends_the_execution_and_is_loud(world: World, expected: Expected) -> None:
    step, _ = failing(InternalError("this cannot be"))
    world.load(program(BEGIN + service("step", "Row", "Line"), {"begin": begin, "step": step}, defaults=RETRYING))
    a = await world.start()
    done = await a.submit(batch(1))
    expected.error("execution_broken")
    record = await world.until_status(done.execution_id, S.FAILED)
    assert (record.terminal_reason, record.error_code) == (TerminalReason.INTERNAL, "internal")
    assert expected.logged("execution_broken")


async def test_a_step_that_takes_too_long_is_stopped_and_tried_again(world: World) -> None:
    stopped: list[float] = []
    runs = 0

    async def stuck(row: Row) -> Line:
        nonlocal runs
        runs += 1
        if runs < 3:
            try:
                await trio.sleep_forever()
            finally:
                stopped.append(trio.current_time())
        return Line(row.number, row.text)

    steps = BEGIN + service("stuck", "Row", "Line", more="timeout: PT5S")
    world.load(program(steps, {"begin": begin, "stuck": stuck}, defaults=RETRYING))
    a = await world.start()
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (record.attempt, runs, len(stopped)) == (0, 3, 2)


async def test_a_step_may_know_how_often_it_was_tried_and_until_when_it_has_time(world: World) -> None:
    contexts: list[StepContext] = []

    async def step(row: Row, context: StepContext) -> Line:
        contexts.append(context)
        if len(contexts) < 5:
            raise ValueError("not yet")
        return Line(row.number, row.text)

    steps = BEGIN + service("step", "Row", "Line", more="timeout: PT5S")
    world.load(program(steps, {"begin": begin, "step": step}, defaults=RETRYING))
    a = await world.start()
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert [context.attempt for context in contexts] == [0, 1, 2, 1, 2]
    assert len({context.idempotency_key for context in contexts}) == 1
    assert len({context.transition_key for context in contexts}) == 2
    assert contexts[0].deadline_epoch_ms == a.runtime.clock.now_ms() // 10**9 * 10**9 + 5000


async def test_one_item_that_is_tried_again_holds_up_no_other(world: World) -> None:
    order: list[int] = []

    async def shaky(row: Row, context: StepContext) -> Line:
        if row.number == 0 and context.attempt < 2:
            raise ValueError("not yet")
        order.append(row.number)
        return Line(row.number, row.text)

    world.load(program(PARSE + service("shaky", "Row", "Line"), {"parse": parse, "shaky": shaky}, defaults=RETRYING))
    a = await world.start()
    done = await a.submit(batch(5))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (sorted(order[:4]), order[4:]) == ([1, 2, 3, 4], [0])
    assert [line["number"] for line in await a.result(done.execution_id)] == [0, 1, 2, 3, 4]
