"""Submits: one execution per key, whatever comes at once; batches; nothing accepted that is not stored."""

from __future__ import annotations

import pytest
import trio

from tests.engine.pipelines import BEGIN, INLINE, Line, Row, batch, begin, program, service
from tests.engine.world import TENANT, Process, S, World
from tpfd.core.kinds import EXECUTION
from tpfd.errors import Conflict, MalformedError, NotFound, PayloadError, StoreError, TooLarge, TpfdError
from tpfd.http.service import SubmitItem, Submitted
from tpfd.service.submitting import KeyPolicy


async def slow(row: Row) -> Line:
    await trio.sleep(60)
    return Line(row.number, row.text)


SLOW = program(BEGIN + service("slow", "Row", "Line"), {"begin": begin, "slow": slow})


async def test_a08_the_same_key_with_another_input_is_told_apart_while_running_and_after(world: World) -> None:
    world.load(SLOW)
    a = await world.start()
    first = await a.submit(batch(1, "A"), key="K")
    await world.until_status(first.execution_id, S.RUNNING)
    for status in (S.RUNNING, S.SUCCEEDED):
        await world.until_status(first.execution_id, status)
        with pytest.raises(Conflict, match=first.execution_id) as caught:
            await a.submit(batch(2, "B"), key="K")
        assert caught.value.code == "idempotency_key_reused"
        again = await a.submit({"count": 1, "name": "A"}, key="K")
        assert (again.execution_id, again.duplicate) == (first.execution_id, True), "canonical: key order is no matter"
    assert len(world.observed.rows(EXECUTION)) == 1


async def test_submits_of_one_key_at_once_make_one_execution(world: World) -> None:
    world.load(SLOW)
    processes = [await world.start(name) for name in "abc"]
    accepted: list[Submitted] = []
    refused: list[str] = []

    async def client(process: Process, number: int) -> None:
        try:
            accepted.append(await process.submit(batch(1, "A" if number % 3 else "B"), key="K"))
        except Conflict as error:
            refused.append(error.code)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(client, processes[number % len(processes)], number)
    assert len({one.execution_id for one in accepted}) == 1
    assert [one.duplicate for one in accepted].count(False) == 1
    assert set(refused) == {"idempotency_key_reused"}
    assert len(accepted) in {10, 20}
    assert len(world.observed.rows(EXECUTION)) == 1


async def test_a_batch_answers_each_item_in_its_place(world: World) -> None:
    world.load(SLOW)
    a = await world.start()
    items = [SubmitItem(input=batch(number), key=f"k{number}", pipeline=None) for number in range(40)]
    items[3] = SubmitItem(input={"name": "x"}, key="bad", pipeline=None)
    items[5] = SubmitItem(input=batch(1), key=None, pipeline="nowhere")
    items[20] = items[2]
    items[21] = SubmitItem(input=batch(99), key="k2", pipeline=None)
    items[22] = items[2]
    outcomes = await a.coordinator.submit_many(TENANT, items, trace_parent=None)
    assert len(outcomes) == 40
    for place, outcome in enumerate(outcomes):
        if place not in {3, 5, 20, 21, 22}:
            assert isinstance(outcome, Submitted)
            assert not outcome.duplicate
            assert (await world.execution(outcome.execution_id)).execution_key == f"k{place}"
    first = outcomes[2]
    assert isinstance(first, Submitted)
    assert isinstance(outcomes[3], PayloadError)
    assert isinstance(outcomes[5], NotFound)
    assert _code(outcomes[21]) == "idempotency_key_reused"
    for place in (20, 22):
        again = outcomes[place]
        assert isinstance(again, Submitted)
        assert (again.execution_id, again.duplicate) == (first.execution_id, True)
    assert len(world.observed.rows(EXECUTION)) == 35


def _code(outcome: Submitted | TpfdError) -> str:
    assert isinstance(outcome, TpfdError)
    return outcome.code


async def test_a_batch_without_keys_makes_an_execution_of_each(world: World) -> None:
    world.load(SLOW)
    a = await world.start()
    items = [SubmitItem(input=batch(1), key=None, pipeline=None)] * 30
    outcomes = await a.coordinator.submit_many(TENANT, items, trace_parent=None)
    assert len({one.execution_id for one in outcomes if isinstance(one, Submitted)}) == 30


async def test_a_server_makes_the_key_from_the_canonical_input(world: World) -> None:
    world.load(SLOW)
    a = await world.start(key_policy=KeyPolicy.SERVER_KEY_ONLY)
    first = await a.submit(batch(1))
    again = await a.submit({"count": 1, "name": "row"})
    other = await a.submit(batch(2))
    assert (again.execution_id, again.duplicate) == (first.execution_id, True)
    assert other.execution_id != first.execution_id
    with pytest.raises(MalformedError, match="send none"):
        await a.submit(batch(1), key="mine")


async def test_a_client_may_have_to_give_the_key(world: World) -> None:
    world.load(SLOW)
    a = await world.start(key_policy=KeyPolicy.CLIENT_KEY_REQUIRED)
    with pytest.raises(MalformedError, match="Idempotency-Key"):
        await a.submit(batch(1))
    assert not (await a.submit(batch(1), key="k")).duplicate


async def test_nothing_is_accepted_that_is_not_stored(world: World) -> None:
    world.load(SLOW)
    a = world.build(max_payload_bytes=1000)
    with pytest.raises(TooLarge, match="1,000"):
        await a.submit(batch(1, "x" * 1001))
    with pytest.raises(PayloadError, match="count"):
        await a.submit({"name": "x", "count": "many"})
    a.gate.failing = "disk full"
    with pytest.raises(StoreError, match="disk full"):
        await a.submit(batch(1))
    outcomes = await a.coordinator.submit_many(
        TENANT, [SubmitItem(input=batch(1), key=None, pipeline=None)] * 15, trace_parent=None
    )
    assert {_code(one) for one in outcomes} == {"store_unavailable"}
    assert world.observed.rows(EXECUTION) == []


async def test_a16_equal_submits_without_a_key_are_two_executions(world: World) -> None:
    last = service("last", "Row", "Line", more=INLINE)
    world.load(program(BEGIN + last, {"begin": begin, "last": lambda row: Line(row.number, row.text)}))
    a = await world.start()
    one, two = await a.submit(batch(1)), await a.submit(batch(1))
    assert one.execution_id != two.execution_id
    for each in (one, two):
        await world.until_status(each.execution_id, S.SUCCEEDED)
