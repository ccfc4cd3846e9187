"""Completions that race: with their deadline, and with each other. One outcome each, and everybody is told which."""

from __future__ import annotations

from collections import Counter
from random import Random

import trio

from tests.awaits.conftest import Seat
from tests.awaits.desk import Desk, HandClock, asked
from tests.engine.pipelines import BEGIN, FINISH, PARSE, batch, begin, finish, parse, program, waiting
from tests.engine.world import TENANT, S
from tpfd.core.admission import Verdict
from tpfd.core.kinds import LATE_BY_EXECUTION, late_partition
from tpfd.core.records import ExecutionId, FactType, InteractionStatus
from tpfd.errors import Conflict, TimedOut
from tpfd.http.service import SubmitItem, Submitted

ASK = waiting(transport="interaction-api")
SCALAR = program(BEGIN + ASK + FINISH, {"begin": begin, "finish": finish})
STREAM = program(PARSE + ASK + FINISH, {"parse": parse, "finish": finish})
STEP = 1
ROUNDS = 1_000


async def park(desk: Desk, count: int) -> list[ExecutionId]:
    """So many executions that wait for one answer each."""
    items = [SubmitItem(input=batch(number), key=None, pipeline=None) for number in range(count)]
    submitted = await desk.process.coordinator.submit_many(TENANT, items, trace_parent=None)
    await desk.work()
    return [one.execution_id for one in submitted if isinstance(one, Submitted)]


async def test_a_completion_and_its_deadline_a_thousand_times(desk_for: Seat) -> None:
    """The answerer's clock is a millisecond before the deadline, the sweeper's is there: both are in the right."""
    answerer = desk_for(SCALAR)
    sweeper = desk_for(SCALAR, name="b", clock=HandClock())
    executions = await park(answerer, ROUNDS)
    assert len(executions) == ROUNDS
    deadlines = {(await answerer.interaction(one, STEP)).deadline_epoch_ms for one in executions}
    (deadline,) = deadlines
    answerer.clock.now, sweeper.clock.now = deadline - 1, deadline
    told: dict[ExecutionId, tuple[str, Verdict]] = {}
    random = Random(14)

    async def one_round(execution: ExecutionId) -> None:
        answered: list[str] = []
        expired: list[Verdict] = []

        async def answer() -> None:
            try:
                done = await answerer.complete(asked(execution, STEP), {"number": 1, "text": "yes"})
                answered.append("duplicate" if done.duplicate else "admitted")
            except TimedOut:
                answered.append("timed_out")

        async def expire() -> None:
            seen = await sweeper.interaction(execution, STEP)
            expired.append((await sweeper.process.coordinator.admission.expire(seen)).verdict)

        async with trio.open_nursery() as nursery:
            for racer in random.sample([answer, expire], 2):
                nursery.start_soon(racer)
        told[execution] = (answered[0], expired[0])

    for first in range(0, ROUNDS, 50):
        async with trio.open_nursery() as nursery:
            for execution in executions[first : first + 50]:
                nursery.start_soon(one_round, execution)

    outcomes = Counter(told.values())
    assert set(outcomes) == {("admitted", Verdict.ENDED), ("timed_out", Verdict.TIMED_OUT)}, outcomes
    for execution in executions:
        record, parent = await answerer.interaction(execution, STEP), await answerer.execution(execution)
        late = await answerer.late(execution)
        if told[execution][0] == "admitted":
            assert (record.status, parent.status, late) == (InteractionStatus.COMPLETED, S.QUEUED, ())
        else:
            assert (record.status, parent.status) == (InteractionStatus.TIMED_OUT, S.FAILED)
            assert [one.reason for one in late] == ["late"]


async def test_clients_that_answer_at_once_each_twice_and_some_differently(desk_for: Seat) -> None:
    """One answer is admitted for each item, every repeat is a duplicate, every other answer is refused."""
    count, clients = 400, 4
    desk = desk_for(STREAM)
    beside = desk_for(STREAM, name="b", clock=desk.clock)
    execution = await desk.submit(batch(count))
    odd = set(range(0, count, 20))
    told: Counter[tuple[int, str]] = Counter()
    admitted: dict[int, str] = {}

    async def send(client: int, item: int, text: str) -> None:
        try:
            through = (desk, beside)[client % 2]
            done = await through.complete(asked(execution, STEP, item), {"number": item, "text": text})
        except Conflict as error:
            told[item, error.code] += 1
        else:
            told[item, "duplicate" if done.duplicate else "admitted"] += 1
            if not done.duplicate:
                admitted[item] = text

    async def client(number: int) -> None:
        mine = list(range(count))
        Random(number).shuffle(mine)
        for item in mine:
            await send(number, item, "yes")
            await send(number, item, f"not {number}" if item in odd else "yes")

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(client, number)

    assert len(admitted) == count
    for item in range(count):
        assert told[item, "admitted"] == 1
        sent, same = 2 * clients, 2 * clients
        if item in odd:
            same = clients if admitted[item] == "yes" else 1
        assert told[item, "duplicate"] == same - 1
        assert told[item, "conflicting_completion"] == sent - same
    partition = late_partition(TENANT, execution)
    kept = await desk.store.query(LATE_BY_EXECUTION, partition, limit=1_000)
    refused = {(one.interaction_id, one.body) for one in kept.records}
    assert len(refused) == len(kept.records) == len(odd) * clients, "each different body once"

    await desk.sweep()
    lines = await desk.result(execution)
    assert [line["number"] for line in lines] == list(range(count))
    assert {line["number"]: line["text"] for line in lines} == admitted


async def test_two_answers_to_a_scalar_await_release_it_once(desk_for: Seat) -> None:
    desk = desk_for(SCALAR)
    executions = await park(desk, 100)
    told: Counter[str] = Counter()

    async def answer(execution: str, text: str) -> None:
        try:
            await desk.complete(asked(execution, STEP), {"number": 1, "text": text})
            told["admitted"] += 1
        except Conflict:
            told["refused"] += 1

    async with trio.open_nursery() as nursery:
        for execution in executions:
            for text in ("yes", "no"):
                nursery.start_soon(answer, execution, text)
    assert told == {"admitted": 100, "refused": 100}
    await desk.work()
    feed = await desk.store.feed(after=0, limit=100_000)
    released = Counter(one.fact.execution_id for one in feed if one.fact.type is FactType.RESUME_RELEASED)
    assert released == dict.fromkeys(executions, 1)
    assert {(await desk.execution(one)).status for one in executions} == {S.SUCCEEDED}
