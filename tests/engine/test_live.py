"""Live sessions: the window, re-runs, answers from elsewhere, deadlines, hand back."""


from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest
import trio

from tests.engine.asking import LIVE, asked, attach, lines, only, silent, so, whole
from tests.engine.pipelines import (
    FINISH,
    PARSE,
    Answer,
    Batch,
    Line,
    Row,
    batch,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import Envelope, S, World, echo
from tpfd.core.admission import Ended, Verdict
from tpfd.core.kinds import INTERACTION, UNIT
from tpfd.core.records import InteractionRecord, InteractionStatus, TerminalReason, UnitStatus
from tpfd.errors import Conflict, TimedOut


async def test_every_row_is_asked_once_and_answered_into_the_output(world: World) -> None:
    world.load(LIVE)
    a = await world.start()
    provider = await attach(world, a)
    done = await a.submit(batch(100))
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(100)
    assert set(provider.asked.values()) == {1}
    assert len(provider.asked) == 100
    assert record.fence == 1
    (unit,) = world.observed.rows(UNIT)
    assert (unit.status, unit.dispatch_complete) == (UnitStatus.COMPLETED, False), "the live path writes no progress"
    assert world.observed.slots_held() == []


@pytest.mark.parametrize("window", [1, 5, 30])
async def test_the_window_bounds_what_is_out_and_paces_the_source(world: World, window: int) -> None:
    parsed = handed_on = most = 0

    async def counted(batch: Batch) -> AsyncIterator[Row]:
        nonlocal parsed
        async for row in parse(batch):
            parsed += 1
            yield row

    async def slow_finish(answer: Answer) -> Line:
        nonlocal handed_on, most
        most = max(most, parsed - handed_on)
        await trio.sleep(0.01)
        handed_on += 1
        return finish(answer)

    steps = (
        service("counted", "Batch", "Row", "ONE_TO_MANY")
        + waiting(more=f"maxConcurrency: {window}")
        + service("slow_finish", "Answer", "Line", more="parallelism: SEQUENTIAL, backpressureBufferCapacity: 2")
    )
    world.load(program(steps, {"counted": counted, "slow_finish": slow_finish}, publish=True))
    a = await world.start()
    provider = await attach(world, a, credit=100, latency_s=0.001)
    outstanding: list[int] = []

    async def watch() -> None:
        while True:
            outstanding.append(sum(one.status.open for one in world.observed.rows(INTERACTION)))
            await trio.sleep(0.005)

    world.nursery.start_soon(watch)
    done = await a.submit(batch(120))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(120)
    assert max(outstanding) <= window
    assert provider.outstanding_max <= window
    # Beside the window only the channels hold rows: before the await 4, behind it 2, and one in hand at each end.
    assert most <= window + 4 + 2 + 2


async def test_sequential_awaits_keep_the_order(world: World) -> None:
    random = Random(3)
    order: list[int] = []

    def jitter(envelope: Envelope) -> object:
        a.gate.delay_s = lambda: random.random() / 10
        order.append(envelope["requestPayload"]["number"])
        return echo(envelope)

    sequential = "parallelism: SEQUENTIAL"
    steps = PARSE + waiting(more=sequential) + service("finish", "Answer", "Line", more=f"inline: true, {sequential}")
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start()
    await attach(world, a, answer=jitter)
    done = await a.submit(batch(20))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert world.disk.lines(f"{done.execution_id}.csv") == whole(20)
    assert order == list(range(20))


async def test_a_re_run_asks_only_what_was_never_asked(world: World) -> None:
    steps = PARSE + waiting(more="maxConcurrency: 10") + FINISH
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a, b = await world.start("a"), world.build("b")
    times: Counter[int] = Counter()

    def until_seven(envelope: Envelope) -> object:
        number = envelope["requestPayload"]["number"]
        times[number] += 1
        return echo(envelope) if number < 7 else None

    await attach(world, a, answer=until_seven)
    done = await a.submit(batch(30))
    await world.until(lambda: so(sum(times.values()) >= 17))
    await trio.sleep(1)
    a.kill()
    await world.nursery.start(b.run)
    second = await attach(world, b)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(30)
    asked_again = {int(envelope["requestPayload"]["number"]) for envelope in second.envelopes}
    assert asked_again == set(range(7, 30)), "nothing that was answered is asked again"
    assert set(second.asked.values()) == {1}
    keys = Counter(envelope["idempotencyKey"] for envelope in second.envelopes)
    assert len(keys) == 23


async def test_answers_come_through_any_process_in_about_a_second(world: World) -> None:
    world.load(LIVE)
    # The work is leased by a, the provider is attached to b, its answers go through c.
    a, b, c = await world.start("a"), await world.start("b"), await world.start("c")
    provider = await attach(world, b, through=c, credit=200)
    done = await a.submit(batch(60))
    started = trio.current_time()
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(60)
    assert set(provider.asked.values()) == {1}
    assert trio.current_time() - started < 10


async def test_a_source_that_changed_under_a_retry_fails_and_sends_nothing_more(world: World) -> None:
    version = 0

    async def fickle(batch: Batch) -> AsyncIterator[Row]:
        nonlocal version
        version += 1
        for number in range(batch.count):
            yield Row(number, f"v{version}")

    steps = service("fickle", "Batch", "Row", "ONE_TO_MANY") + waiting() + FINISH
    world.load(program(steps, {"fickle": fickle, "finish": finish}, publish=True))
    a, b = await world.start("a"), world.build("b")
    await attach(world, a, answer=silent)
    done = await a.submit(batch(5))
    await world.until(lambda: so(asked(world) == 5))
    a.kill()
    await world.nursery.start(b.run)
    second = await attach(world, b, answer=silent)
    record = await world.until_status(done.execution_id, S.FAILED)
    assert (record.error_code, record.attempt) == ("source_changed", 0)
    assert "item 0" in (record.error_message or "")
    await trio.sleep(100)
    texts = {envelope["requestPayload"]["text"] for envelope in second.envelopes}
    assert texts <= {"v1"}, "what was out goes out again, nothing else"
    assert world.disk.objects == {}


async def test_nothing_is_sent_of_a_page_in_which_one_item_has_changed(world: World) -> None:
    version = 1

    async def fickle(row: Row) -> Row:
        if version == 1 and row.number == 0:
            await trio.sleep_forever()
        return Row(row.number, f"v{version}")

    world.load(
        program(
            PARSE + service("fickle", "Row", "Row") + waiting() + FINISH,
            {"parse": parse, "fickle": fickle, "finish": finish},
        )
    )
    a, b = await world.start("a"), world.build("b")
    first = await attach(world, a, answer=silent)
    done = await a.submit(batch(3))
    await world.until(lambda: so(len(first.asked) == 2))
    a.kill()
    version = 2
    b.gate.delay_s = lambda: 0.05  # so that all rows are there when the first is asked
    await world.nursery.start(b.run)
    second = await attach(world, b, answer=silent)
    record = await world.until_status(done.execution_id, S.FAILED)
    assert record.error_code == "source_changed"
    await trio.sleep(10)
    assert {envelope["requestPayload"]["text"] for envelope in second.envelopes} <= {"v1"}
    assert len(world.observed.rows(INTERACTION)) == 2


@pytest.mark.parametrize("more_rows", [0, 5])
async def test_a_deadline_fails_the_execution_while_its_stream_is_alive(world: World, more_rows: int) -> None:
    async def slowly(batch: Batch) -> AsyncIterator[Row]:
        async for row in parse(batch):
            yield row
        for number in range(more_rows):
            await trio.sleep(60)
            yield Row(batch.count + number, "")

    steps = service("slowly", "Batch", "Row", "ONE_TO_MANY") + waiting(timeout="PT1M") + FINISH
    world.load(program(steps, {"slowly": slowly, "finish": finish}, publish=True))
    a = await world.start()
    await attach(world, a, answer=only(0, 1, 3, 4, 5, 6, 7, 8, 9))
    done = await a.submit(batch(5))
    started = trio.current_time()
    record = await world.until_status(done.execution_id, S.FAILED)
    assert 60 <= trio.current_time() - started < 62
    assert (record.terminal_reason, record.error_code) == (TerminalReason.AWAIT_TIMEOUT, "await_timeout")
    assert record.attempt == 0
    with pytest.raises(TimedOut):
        await a.complete(f"{done.execution_id}.s001.{2:09d}", {"number": 2, "text": "late"})
    await trio.sleep(2)
    assert {one.status for one in world.observed.rows(INTERACTION)} == {
        InteractionStatus.COMPLETED,
        InteractionStatus.TIMED_OUT,
        *([InteractionStatus.CANCELLED] if more_rows else []),
    }
    assert world.disk.objects == {}
    assert world.observed.slots_held() == []


async def test_a_deadline_that_another_process_saw_fails_it_too(world: World) -> None:
    world.load(program(PARSE + waiting(timeout="PT1M") + FINISH, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start("a")
    await attach(world, a, answer=silent)
    done = await a.submit(batch(5))
    await world.until_status(done.execution_id, S.RUNNING)
    a.sweeper.deadlines = _Blind()  # a does not look at deadlines
    await world.start("b")
    record = await world.until_status(done.execution_id, S.FAILED, within_s=100)
    assert record.terminal_reason is TerminalReason.AWAIT_TIMEOUT


class _Blind:
    async def expire(self, seen: InteractionRecord) -> Ended:
        await trio.lowlevel.checkpoint()
        return Ended(verdict=Verdict.NOT_DUE)


async def test_at_the_deadline_the_given_value_stands_in_for_the_answer(world: World) -> None:
    settings = "onTimeout: {complete-with: {number: 0, text: nobody}}"
    steps = PARSE + waiting(timeout="PT1M", settings=settings) + FINISH
    world.load(program(steps, {"parse": parse, "finish": finish}, publish=True))
    a = await world.start()
    await attach(world, a, answer=only(0, 2))
    done = await a.submit(batch(4))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert sorted(world.disk.lines(f"{done.execution_id}.csv")) == ["0,nobody", "0,nobody", "0,ok row-0", "2,ok row-2"]
    late = f"{done.execution_id}.s001.{1:09d}"
    assert (await world.interaction(late)).actor == "timeout"
    with pytest.raises(Conflict, match="another payload"):
        await a.complete(late, {"number": 1, "text": "late"})


async def test_a_failing_step_behind_the_await_retries_without_asking_again(world: World) -> None:
    runs = 0

    def shaky(answer: Answer) -> Line:
        nonlocal runs
        if answer.number == 3 and (runs := runs + 1) < 3:
            raise ValueError("not yet")
        return finish(answer)

    steps = PARSE + waiting() + service("shaky", "Answer", "Line", more="inline: true")
    world.load(program(steps, {"parse": parse, "shaky": shaky}, publish=True))
    a = await world.start()
    provider = await attach(world, a)
    done = await a.submit(batch(20))
    await world.until_status(done.execution_id, S.WAIT_RETRY)
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (record.attempt, runs) == (2, 3)
    assert lines(world, done.execution_id) == whole(20)
    assert set(provider.asked.values()) == {1}


async def test_a_drain_hands_a_live_session_back_uncharged_and_the_next_owner_goes_on_live(world: World) -> None:
    world.load(LIVE)
    a, b = await world.start("a"), world.build("b")
    first = await attach(world, a, answer=only(0, 1, 2, 3))
    done = await a.submit(batch(20))
    await world.until(lambda: so(len(first.asked) >= 12))
    began = trio.current_time()
    first.scope.cancel("its connection is closed by the drain")
    await a.drain()
    assert trio.current_time() - began < 1, "nobody can answer here any more: it does not wait for the grace"
    record = await world.execution(done.execution_id)
    assert (record.status, record.attempt, record.worker_losses) == (S.QUEUED, 0, 0)
    await world.nursery.start(b.run)
    second = await attach(world, b)
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (2, 0)
    assert lines(world, done.execution_id) == whole(20)
    assert {int(envelope["requestPayload"]["number"]) for envelope in second.envelopes} == set(range(4, 20))


async def test_a_session_that_begins_during_a_drain_is_handed_back_too(world: World) -> None:
    begun = trio.Event()

    async def slow_start(batch: Batch) -> Batch:
        begun.set()
        await trio.sleep(3)
        return batch

    steps = service("slow_start", "Batch", "Batch") + PARSE + waiting() + FINISH
    world.load(program(steps, {"slow_start": slow_start, "parse": parse, "finish": finish}, publish=True))
    a = await world.start("a")
    a.gate.delay_s = lambda: 0.2
    done = await a.submit(batch(20))
    began = trio.current_time()

    async def claimed() -> bool:
        return (await world.execution(done.execution_id)).status is S.RUNNING

    await world.until(claimed)
    await a.drain()
    assert trio.current_time() - began < 6
    assert (await world.execution(done.execution_id)).status is S.QUEUED
    assert begun.is_set() in {True, False}


