"""A pipeline file that changes while executions are in flight: they wait for the file of their time, none is lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from attrs import evolve

from tests.engine.asking import attach, silent
from tests.engine.expected import Expected
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    PARSE,
    Answer,
    Functions,
    Line,
    Row,
    batch,
    begin,
    finish,
    parse,
    program,
    service,
    waiting,
)
from tests.engine.world import POLICY, S, World
from tpfd.core.kinds import INTERACTION, KINDS, UNIT
from tpfd.core.records import InteractionStatus, UnitStatus
from tpfd.errors import Conflict
from tpfd.program import Program

ANSWER = {"number": 1, "text": "x"}
ASK = waiting(transport="interaction-api", timeout="P1D")


def same(row: Row) -> Row:
    return row


FUNCTIONS: Functions = {"begin": begin, "parse": parse, "finish": finish, "same": same}
NEW_STEP = service("same", "Row", "Row", more="inline: true")
OLD = program(BEGIN + ASK + FINISH, FUNCTIONS)
NEW = program(BEGIN + NEW_STEP + ASK + FINISH, FUNCTIONS)


def only(loaded: Program) -> Mapping[str, Program]:
    return {loaded.pipeline_id: loaded}


async def test_a_parked_execution_waits_for_the_file_of_its_time_and_then_finishes(
    world: World, expected: Expected
) -> None:
    a = await world.start("a", programs=only(OLD))
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await a.drain()
    b = await world.start("b", programs=only(NEW))
    (asked,) = world.observed.rows(INTERACTION)
    before = await world.execution(done.execution_id)
    with pytest.raises(Conflict, match="cannot be answered here") as refused:
        await b.complete(asked.interaction_id, ANSWER)
    assert refused.value.code == "contract_changed"
    await trio.sleep(300)
    assert await world.execution(done.execution_id) == before
    assert "put the pipeline file of its time back" in (b.coordinator.held_reason(before) or "")
    fresh = await b.submit(batch(2))
    await world.until_status(fresh.execution_id, S.WAITING_EXTERNAL)
    assert b.coordinator.readiness().ready
    await b.drain()
    again = await world.start("a2", programs=only(OLD))
    assert again.coordinator.held_reason(before) is None
    await again.complete(asked.interaction_id, ANSWER)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (await world.execution(fresh.execution_id)).status is S.WAITING_EXTERNAL


async def test_what_is_due_is_left_to_the_replica_that_has_its_contract_and_told_once(
    world: World, expected: Expected
) -> None:
    """Also when its lease has run out: a rolling deployment may end in either order."""
    a = await world.start("a", programs=only(OLD))
    done = [await a.submit(batch(number)) for number in range(3)]
    for one in done:
        await world.until_status(one.execution_id, S.WAITING_EXTERNAL)
    b = await world.start("b", programs=only(NEW))
    held = trio.Event()

    async def hold(answer: Answer) -> Line:
        await held.wait()
        return finish(answer)

    a.kill()
    holding = BEGIN + ASK + service("finish", "Answer", "Line")
    slow = await world.start("slow", programs=only(program(holding, {**FUNCTIONS, "finish": hold})))
    for asked in world.observed.rows(INTERACTION):
        await slow.complete(asked.interaction_id, ANSWER)
    for one in done:
        await world.until_status(one.execution_id, S.RUNNING)
    slow.kill()
    await trio.sleep(300)
    for one in done:
        record = await world.execution(one.execution_id)
        assert (record.status, record.worker_losses, record.lease_owner) == (S.RUNNING, 0, "slow")
    (told,) = expected.logged("contract_changed")
    assert told["execution_id"] in {one.execution_id for one in done}
    assert told["loaded_version"] == NEW.pipeline.contract_version
    assert b.running() == []
    await world.start("a2", programs=only(OLD))
    for one in done:
        await world.until_status(one.execution_id, S.SUCCEEDED)


async def test_what_does_not_change_the_contract_stops_nothing(world: World, expected: Expected) -> None:
    a = await world.start("a", programs=only(OLD))
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await a.drain()
    steps = BEGIN + waiting(transport="interaction-api", timeout="PT5M", settings="group: desk") + FINISH
    b = await world.start("b", programs=only(program("  # tidied\n" + steps, FUNCTIONS)))
    await b.complete(world.observed.rows(INTERACTION)[0].interaction_id, ANSWER)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert expected.logged("contract_changed") == []


async def test_answered_items_are_not_put_together_under_another_contract(world: World, expected: Expected) -> None:
    old = program(PARSE + ASK + FINISH, FUNCTIONS)
    new = program(PARSE + NEW_STEP + ASK + FINISH, FUNCTIONS)
    a = await world.start("a", programs=only(old))
    done = await a.submit(batch(3))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    a.sweeper.continuations.runtime = evolve(a.runtime, programs=only(new))  # it does not release
    for asked in world.observed.rows(INTERACTION):
        await a.complete(asked.interaction_id, ANSWER)

    async def all_continued() -> bool:
        return all(unit.full_block_count == 1 for unit in world.observed.rows(UNIT))

    await world.until(all_continued)
    a.kill()
    await world.start("b", programs=only(new))
    await trio.sleep(120)
    assert [unit.status for unit in world.observed.rows(UNIT)] == [UnitStatus.WAITING_EXTERNAL]
    assert (await world.execution(done.execution_id)).status is S.WAITING_EXTERNAL
    assert len(expected.logged("contract_changed")) <= 2, "once by each process"
    await world.start("a2", programs=only(old))
    await world.until_status(done.execution_id, S.SUCCEEDED)


async def test_requests_are_not_sent_where_their_answers_cannot_be_read(world: World) -> None:
    old = program(BEGIN + waiting(timeout="P1D") + FINISH, FUNCTIONS)
    new = program(BEGIN + NEW_STEP + waiting(timeout="P1D") + FINISH, FUNCTIONS)
    a = await world.start("a", programs=only(old))
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    b = await world.start("b", programs=only(new))
    there = await attach(world, b, answer=silent)
    await trio.sleep(60)
    assert not there.asked
    here = await attach(world, a)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert len(here.asked) == 1
    assert not there.asked


async def test_a_deadline_still_ends_it_and_a_cancel_releases_all_of_it(world: World) -> None:
    """Neither reads a value. What hangs below is found by the execution's own row, not by the steps loaded here."""
    world.policy = evolve(POLICY, failed_ttl_ms=3_600_000)
    again = waiting("again", "Answer", "Answer", transport="interaction-api", timeout="PT10M")
    steps = BEGIN + ASK + again + FINISH
    a = await world.start("a", programs=only(program(steps, FUNCTIONS)))
    done = [await a.submit(batch(number)) for number in range(2)]
    for one in done:
        await world.until_status(one.execution_id, S.WAITING_EXTERNAL)
    for asked in world.observed.rows(INTERACTION):
        await a.complete(asked.interaction_id, ANSWER)

    async def all_asked_again() -> bool:
        return len(world.observed.rows(INTERACTION)) == 4

    await world.until(all_asked_again)
    await a.drain()
    b = await world.start("b", programs=only(program(BEGIN + service("same", "Row", "Row"), FUNCTIONS)))
    await b.cancel(done[0].execution_id)
    await world.until_status(done[1].execution_id, S.FAILED)
    await trio.sleep(5)
    statuses = [one.status for one in world.observed.rows(INTERACTION)]
    assert sorted(statuses) == sorted(
        [InteractionStatus.COMPLETED] * 2 + [InteractionStatus.CANCELLED, InteractionStatus.TIMED_OUT]
    )
    await trio.sleep(3_600 + 60)
    left = {kind.name: world.observed.rows(kind) for kind in KINDS if world.observed.rows(kind)}
    assert left == {}
