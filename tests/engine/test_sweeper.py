"""What is due by time and done by whoever sweeps: dead letters, clean-up, removal, and that none holds up another."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import evolve

from tests.engine.expected import Expected
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    PARSE,
    Batch,
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
from tests.engine.world import POLICY, SETTINGS, TENANT, Provider, S, World
from tpfd.core.kinds import (
    BLOCK,
    CHUNK,
    EXECUTION,
    EXECUTION_KEY,
    INGESTED,
    INTERACTION,
    KINDS,
    LATE,
    MANIFEST,
    SEARCH,
    SOCKET,
    UNIT,
)
from tpfd.core.records import InteractionStatus, UnitStatus
from tpfd.core.transact import Kind
from tpfd.errors import Conflict, NonRetryableError
from tpfd.payloads import INLINE_CHARS

HOURS = evolve(POLICY, succeeded_ttl_ms=3_600_000, failed_ttl_ms=2 * 3_600_000)
"""Ended executions are kept for one or two hours."""


async def refuse(row: Row) -> Line:
    raise NonRetryableError("not today", code="not_today")


FAILING = program(BEGIN + service("refuse", "Row", "Line"), {"begin": begin, "refuse": refuse})


async def test_a_dead_letter_says_what_happened_and_what_to_do(world: World) -> None:
    world.load(FAILING)
    a, b = await world.start("a"), await world.start("b")
    done = await a.submit(batch(1), key="k1")
    await world.until_status(done.execution_id, S.FAILED)
    await trio.sleep(1000)
    letter = world.letters.arrived[0]
    assert len({one.envelope_id for one in world.letters.arrived}) == 1, "two that sweep at once send the same letter"
    assert len(world.letters.arrived) <= 2
    assert (letter.envelope_id, letter.execution_key) == (f"{done.execution_id}:0", "k1")
    assert (letter.terminal_status, letter.terminal_reason) == ("FAILED", "non_retryable")
    assert letter.error_code == "not_today"
    assert letter.worker in {a.runtime.node, b.runtime.node}
    assert (letter.step_id, letter.retryable) == ("begin", False)
    assert f"tpfd redrive {done.execution_id}" in letter.redrive_hint
    assert not (await world.execution(done.execution_id)).dead_letter_due


async def test_letters_that_cannot_be_sent_keep_nothing_waiting_and_arrive_later(
    world: World, expected: Expected
) -> None:
    world.load(FAILING)
    world.load(program(PARSE + waiting(timeout="PT1M") + FINISH, {"parse": parse, "finish": finish}, name="Asks"))
    a = await world.start(sweep_limit=5)
    world.letters.failing = "the letter box is full"
    expected.error("dead_letter_failed")
    for number in range(20):
        await a.submit(batch(number), pipeline="test")
    asks = await a.submit(batch(3), pipeline="asks")
    record = await world.until_status(asks.execution_id, S.FAILED, within_s=70)
    await trio.sleep(31)
    record = await world.execution(asks.execution_id)
    assert (record.dead_letter_due, record.cleanup_due) == (True, False), "it is cleaned up all the same"
    assert [one.status for one in world.observed.rows(INTERACTION) if one.status.open] == []
    assert a.coordinator.readiness().reasons == ("dead_letters: the letter box is full",)
    world.letters.failing = None
    await trio.sleep(60)
    assert len({letter.envelope_id for letter in world.letters.arrived}) == len(world.letters.arrived) == 21
    assert a.coordinator.readiness().ready
    assert len(expected.logged("dead_letter_failed")) < 5, "one outage is told once"


async def test_a_sweep_gets_past_rows_that_stay_due(world: World) -> None:
    """Units of a pipeline that is not loaded here stay due, more than a page of them."""
    program_of_units = program(
        PARSE + waiting(transport="interaction-api") + FINISH, {"parse": parse, "finish": finish}, name="Elsewhere"
    )
    other = await world.start("b", programs={program_of_units.pipeline_id: program_of_units})
    parked = [await other.submit(batch(2)) for _ in range(7)]
    for one in parked:
        await world.until_status(one.execution_id, S.WAITING_EXTERNAL)
    await trio.sleep(10)
    other.sweeper.continuations.runtime = evolve(other.runtime, programs={})  # it has forgotten how to release them
    for interaction in world.observed.rows(INTERACTION):
        await other.complete(interaction.interaction_id, {"number": 1, "text": "x"})

    async def all_full() -> bool:
        return all(unit.full_block_count == 1 for unit in world.observed.rows(UNIT))

    await world.until(all_full)
    other.kill()
    world.load(FAILING)
    a = await world.start("a", sweep_limit=3)
    done = await a.submit(batch(1), pipeline="test")
    await world.until_status(done.execution_id, S.FAILED)

    async def sent() -> bool:
        return bool(world.letters.arrived)

    await world.until(sent, within_s=60)
    assert [unit.status for unit in world.observed.rows(UNIT)] == [UnitStatus.WAITING_EXTERNAL] * 7
    await world.start("c", programs={program_of_units.pipeline_id: program_of_units})
    for one in parked:
        await world.until_status(one.execution_id, S.SUCCEEDED)


async def test_clean_up_releases_everything_in_pages(world: World) -> None:
    world.load(program(PARSE + waiting(timeout="P1D") + FINISH, {"parse": parse, "finish": finish}))
    a = await world.start()
    provider = Provider(process=a, answer=lambda envelope: None, credit=30)
    await world.nursery.start(provider.run)
    done = await a.submit(batch(100))

    async def all_asked() -> bool:
        return len(world.observed.rows(INTERACTION)) == 8

    await world.until(all_asked)
    await a.cancel(done.execution_id)
    await trio.sleep(1)
    assert {one.status for one in world.observed.rows(INTERACTION)} == {InteractionStatus.CANCELLED}
    assert {one.status for one in world.observed.rows(UNIT)} == {UnitStatus.CANCELLED}
    record = await world.execution(done.execution_id)
    assert (record.status, record.cleanup_due) == (S.CANCELLED, False)
    with pytest.raises(Conflict, match="is over"):
        await a.complete(world.observed.rows(INTERACTION)[0].interaction_id, {"number": 0, "text": "late"})
    await trio.sleep(30)
    again = await a.submit(batch(100))
    await world.until(lambda: _asked(provider, 16))
    await a.cancel(again.execution_id)


async def _asked(provider: Provider, count: int) -> bool:
    return len(provider.asked) == count


async def test_when_its_time_is_over_nothing_is_left_of_an_execution(world: World) -> None:
    """Children, blocks, interactions, late answers, stored payloads, keys, search rows, facts."""
    world.policy = HOURS
    large = "x" * (INLINE_CHARS + 1)

    async def parse_large(batch: Batch) -> Any:
        for number in range(batch.count):
            yield Row(number, large)

    functions: Functions = {"parse_large": parse_large, "finish": finish, "begin": begin}
    steps = service("parse_large", "Batch", "Row", "ONE_TO_MANY") + waiting(transport="interaction-api") + FINISH
    world.load(program(steps, functions, name="Items"))
    world.load(program(BEGIN + waiting(transport="interaction-api") + FINISH, functions, name="Scalar"))
    a = await world.start()
    for pipeline, count in (("items", 3), ("scalar", 1)):
        done = await a.submit(batch(count, large), key=f"key of {pipeline}", pipeline=pipeline)
        await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
        await trio.sleep(1)
        for interaction in world.observed.rows(INTERACTION):
            if interaction.execution_id == done.execution_id:
                await a.complete(interaction.interaction_id, {"number": 0, "text": large})
                with pytest.raises(Conflict):
                    await a.complete(interaction.interaction_id, {"number": 0, "text": "other"})
        await world.until_status(done.execution_id, S.SUCCEEDED)
    expected: tuple[Kind[Any], ...] = (EXECUTION, UNIT, INTERACTION, LATE, MANIFEST, CHUNK, EXECUTION_KEY, BLOCK)
    assert [kind.name for kind in expected if not world.observed.rows(kind)] == []
    await trio.sleep(3_600 + 31)
    left = {kind.name: world.observed.rows(kind) for kind in KINDS if world.observed.rows(kind)}
    assert left == {}
    assert await world.store.feed(after=0, limit=1000) == []


async def test_a_failed_execution_is_kept_for_its_own_time_and_a_re_drive_keeps_it(world: World) -> None:
    world.policy = HOURS
    world.load(FAILING)
    a = await world.start()
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.FAILED)
    await trio.sleep(7_000)
    record = await a.redrive(await world.execution(done.execution_id))
    await world.until_status(done.execution_id, S.FAILED)
    await trio.sleep(7_000)
    record = await world.execution(done.execution_id)
    assert (record.status, record.redrive_count) == (S.FAILED, 1)
    await trio.sleep(300)
    assert await world.store.get(EXECUTION.key(TENANT, done.execution_id)) is None


async def test_repeats_of_a_large_submit_leave_nothing_behind(world: World) -> None:
    world.load(FAILING)
    a = await world.start()
    large = "x" * (INLINE_CHARS + 1)
    first = await a.submit(batch(1, large), key="k")
    stored = len(world.observed.rows(CHUNK))
    for _ in range(3):
        again = await a.submit(batch(1, large), key="k")
        assert (again.execution_id, again.duplicate) == (first.execution_id, True)
    with pytest.raises(Conflict, match="another input"):
        await a.submit(batch(2, large), key="k")
    assert len(world.observed.rows(CHUNK)) == stored
    assert len(world.observed.rows(MANIFEST)) == 1


async def test_an_idle_process_reads_little_however_much_is_parked(world: World) -> None:
    world.settings = evolve(SETTINGS, sweep_interval_ms=30_000)
    steps = BEGIN + waiting(transport="interaction-api", timeout="P7D") + FINISH
    world.load(program(steps, {"begin": begin, "finish": finish}))
    a = await world.start()
    for number in range(200):
        await a.submit(batch(number))
    await trio.sleep(60)
    assert {one.status for one in world.observed.rows(EXECUTION)} == {S.WAITING_EXTERNAL}
    reads = 0
    query = a.runtime.store.query

    async def counted(*args: Any, **named: Any) -> Any:
        nonlocal reads
        page = await query(*args, **named)
        reads += len(page.records)
        return page

    a.runtime.store.query = counted  # type: ignore[method-assign]
    await trio.sleep(3600)
    # Each sweep sees one page of each index at most.
    assert reads <= 3600 / 30 * (SETTINGS.sweep_limit + 1) * 1.1


async def test_sockets_and_ingested_rows_are_not_forgotten_by_the_kinds_of_this_test() -> None:
    assert {SOCKET, INGESTED, SEARCH} <= set(KINDS)
