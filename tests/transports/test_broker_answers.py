"""Answers that come through a broker: admitted, or kept as unreadable, before they count as dealt with."""

from __future__ import annotations

import base64
import json
from typing import Any

import trio

from tests.engine.asking import LIVE
from tests.engine.expected import Expected
from tests.engine.pipelines import FINISH, PARSE, batch, finish, parse, program, waiting
from tests.engine.world import S, World
from tests.transports.broker_double import MemorySource, Taking
from tpfd.core.kinds import INTERACTION, LATE
from tpfd.core.records import InteractionStatus
from tpfd.transports.broker_answers import IN_HAND_COUNT, LONGEST_PAUSE_S
from tpfd.transports.broker_envelope import ENVELOPE_BYTES

SOURCE = "memory:answers"


async def taking(world: World, **settings: Any) -> Taking[MemorySource]:
    if not world.programs:
        world.load(LIVE)
    made = Taking(await world.start(**settings), MemorySource())
    world.nursery.start_soon(made.run)
    return made


async def out(world: World, reader: Taking[MemorySource], count: int) -> tuple[str, list[str]]:
    """An execution whose rows wait for answers: its id and theirs."""
    execution = (await reader.process.submit(batch(count))).execution_id

    async def all_out() -> bool:
        return len(world.observed.rows(INTERACTION)) == min(count, 8)

    await world.until(all_out)
    return execution, sorted(str(row.interaction_id) for row in world.observed.rows(INTERACTION))


def good(number: int) -> dict[str, object]:
    return {"number": number, "text": f"ok row-{number}"}


async def test_answers_are_admitted_and_then_dealt_with(world: World) -> None:
    reader = await taking(world)
    execution, ids = await out(world, reader, 3)
    reader.source.answer(ids[0], good(0), actor="bank", unknown={"key": 1})
    reader.source.answer(" ", good(1), correlationId=ids[1])
    reader.source.answer(ids[2], good(2))
    await world.until_status(execution, S.SUCCEEDED)
    await reader.source.until_done(3)
    assert (await world.interaction(ids[0])).actor == "bank"
    assert reader.grave.kept == []


async def test_a28_a_poisoned_message_is_kept_and_does_not_stop_the_next(world: World) -> None:
    reader = await taking(world)
    execution, ids = await out(world, reader, 2)
    nameless = json.dumps({"tenantId": "t1", "responsePayload": good(0)}).encode()
    reader.source.answer(ids[0], good(0))
    for bad in (b"\xff\xfe\x00", b"", nameless):
        reader.source.put(bad)
    reader.source.answer(ids[1], good(1))
    await world.until_status(execution, S.SUCCEEDED)
    await reader.source.until_done(5)
    assert sorted(reader.source.dealt_with) == [f"answers@{number}" for number in range(5)]
    kept = sorted(reader.grave.kept, key=lambda letter: letter.position)
    assert [base64.b64decode(letter.body_base64) for letter in kept] == [b"\xff\xfe\x00", b"", nameless]
    assert [letter.position for letter in kept] == ["answers@1", "answers@2", "answers@3"]
    assert [letter.reason for letter in kept] == ["malformed", "malformed", "envelope_invalid"]
    assert "correlationId is required" in kept[2].message
    assert {letter.transport for letter in kept} == {SOURCE}
    assert b'completion_dropped_total{reason="unreadable"} 3.0' in reader.process.runtime.metrics.exposition()
    assert reader.process.runtime.trouble == {}, "a bad message is no reason to be unready"


async def test_what_does_not_fit_its_type_is_kept_and_the_question_stays_open(world: World) -> None:
    reader = await taking(world)
    _, ids = await out(world, reader, 1)
    payloads: list[object] = [{"number": "x", "text": "ok"}, [], None]
    for payload in payloads:
        reader.source.answer(ids[0], payload)
    reader.source.put(b'{"tenantId": "t1", "interactionId": "%b"}' % ids[0].encode())
    await reader.source.until_done(4)
    assert [letter.reason for letter in reader.grave.kept].count("payload_invalid") == 3
    assert [letter.reason for letter in reader.grave.kept].count("envelope_invalid") == 1
    assert (await world.interaction(ids[0])).status.open


async def test_names_that_were_never_given_out_reach_no_store(world: World) -> None:
    reader = await taking(world)
    for tenant, name in (("t1", "../../x"), ("t 1", "a"), ("t1", "x" * 129), ("t1", "a/b"), (7, "a"), ("", "a")):
        reader.source.answer(name, good(0), tenantId=tenant)
    await reader.source.until_done(6)
    assert [letter.reason for letter in reader.grave.kept] == ["envelope_invalid"] * 6
    assert world.observed.rows(LATE) == []


async def test_a_message_over_the_limit_is_kept_in_part(world: World) -> None:
    reader = await taking(world, max_payload_bytes=200_000)
    body = b"x" * (200_000 + ENVELOPE_BYTES + 1)
    reader.source.put(body)
    await reader.source.until_done(1)
    (letter,) = reader.grave.kept
    assert (letter.reason, letter.size_bytes) == ("too_large", len(body))
    assert base64.b64decode(letter.body_base64) == b"x" * 131_072


async def test_an_answer_to_nothing_becomes_an_orphan(world: World) -> None:
    reader = await taking(world)
    reader.source.answer("01GONE.s001.000000007", good(7), actor="bank")
    await reader.source.until_done(1)
    (orphan,) = world.observed.rows(LATE)
    assert (orphan.reason, orphan.interaction_id, orphan.actor) == ("orphan", "01GONE.s001.000000007", "bank")
    assert reader.grave.kept == []


async def test_an_answer_that_cannot_be_read_under_the_contract_loaded_here_becomes_an_orphan(world: World) -> None:
    _, ids = await out(world, await taking(world, name="a"), 1)
    changed = program(PARSE + waiting("ask_again") + FINISH, {"parse": parse, "finish": finish}, publish=True)
    other = await taking(world, name="b", programs={changed.pipeline_id: changed})
    other.source.answer(ids[0], good(0), actor="bank")
    await other.source.until_done(1)
    (orphan,) = world.observed.rows(LATE)
    assert (orphan.reason, orphan.interaction_id, orphan.actor) == ("orphan", ids[0], "bank")
    assert other.grave.kept == []
    assert (await world.interaction(ids[0])).status.open


async def test_repeats_and_contradictions_are_dealt_with(world: World) -> None:
    reader = await taking(world)
    execution, ids = await out(world, reader, 2)
    reader.source.answer(ids[0], good(0))
    await reader.source.until_done(1)
    reader.source.answer(ids[0], good(0))
    reader.source.answer(ids[0], {"number": 0, "text": "no"})
    await reader.source.until_done(3)
    assert [row.reason for row in world.observed.rows(LATE)] == ["conflicting"]
    assert (await world.interaction(ids[0])).status is InteractionStatus.COMPLETED
    await reader.process.cancel(execution)
    reader.source.answer(ids[1], good(1))
    await reader.source.until_done(4)
    assert sorted(row.reason for row in world.observed.rows(LATE)) == ["conflicting", "late"]
    assert reader.grave.kept == []


async def test_while_the_store_is_away_nothing_is_dealt_with_and_little_is_received(
    world: World, expected: Expected
) -> None:
    expected.error("answer_waits", "claim_failed", "sweep_failed", "tidying_failed", "attempt_failed")
    reader = await taking(world)
    reader.process.gate.failing = "the store is away"
    for number in range(IN_HAND_COUNT + 50):
        reader.source.answer(f"01GONE.s001.{number:09d}", good(number))
    await trio.sleep(60)
    assert reader.source.dealt_with == []
    assert len(reader.source.waiting) == 50, "no more than there are places"
    assert f"admit_{SOURCE}" in reader.process.runtime.trouble
    reader.process.gate.failing = None
    await reader.source.until_done(IN_HAND_COUNT + 50, within_s=2 * LONGEST_PAUSE_S)
    assert len(world.observed.rows(LATE)) == IN_HAND_COUNT + 50
    assert f"admit_{SOURCE}" not in reader.process.runtime.trouble


async def test_what_cannot_be_kept_is_not_dealt_with(world: World, expected: Expected) -> None:
    expected.error("answer_waits")
    reader = await taking(world)
    reader.grave.failing = True
    reader.source.put(b"nonsense")
    await trio.sleep(30)
    assert reader.source.dealt_with == []
    reader.grave.failing = False
    await reader.source.until_done(1, within_s=2 * LONGEST_PAUSE_S)
    assert len(reader.grave.kept) == 1


async def test_a_source_that_fails_is_asked_again_ever_more_seldom(world: World, expected: Expected) -> None:
    expected.error(f"receive_{SOURCE}_failed")
    reader = await taking(world)
    reader.source.failing = "no broker"
    await trio.sleep(100)
    assert reader.process.runtime.trouble[f"receive_{SOURCE}"] == "no broker"
    assert len(reader.source.limits) < 60
    reader.source.failing = None
    reader.source.put(None)
    await reader.source.until_done(1, within_s=2 * LONGEST_PAUSE_S)
    assert reader.process.runtime.trouble == {}


async def test_one_that_is_cancelled_in_hand_is_not_dealt_with(world: World) -> None:
    reader = await taking(world)
    reader.grave.failing = True
    reader.source.put(b"nonsense")
    await trio.sleep(0.01)
    reader.scope.cancel("the end")
    await trio.sleep(1)
    assert not reader.source.open
    assert reader.source.dealt_with == []
