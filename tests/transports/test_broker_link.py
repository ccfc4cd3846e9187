"""Links to a broker, on virtual time: every request out, what is confirmed stays out, and nothing lost in between."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, TypeVar

import pytest
import trio
from attrs import evolve

from tests.engine.asking import lines, whole
from tests.engine.expected import Expected
from tests.engine.observed import ObservedStore
from tests.engine.pipelines import BEGIN, FINISH, PARSE, batch, begin, finish, parse, program, waiting
from tests.engine.world import S, World
from tests.transports.broker_double import Linked, MemoryWire, link
from tpfd.core.kinds import INTERACTION, INTERACTION_HELD, SOCKET, send_partition
from tpfd.core.records import InteractionRecord, InteractionStatus, TenantId
from tpfd.core.transact import Index, Page
from tpfd.errors import Conflict
from tpfd.http.service import SubmitItem
from tpfd.program import Program
from tpfd.transports.broker import Confirmed, Outcome, Outgoing, Postponed, Unsendable
from tpfd.transports.broker_link import LET_GO_MS, LONGEST_PAUSE_S

R = TypeVar("R")
Status = InteractionStatus
LIVE = program(PARSE + waiting(transport="kafka") + FINISH, {"parse": parse, "finish": finish}, publish=True)


def scalar(timeout: str = "PT10M") -> Program:
    """One question, then its answer as the result."""
    return program(BEGIN + waiting(transport="kafka", timeout=timeout) + FINISH, {"begin": begin, "finish": finish})


def answers(request: Outgoing) -> dict[str, object]:
    """What a good provider says to a request."""
    asked = json.loads(request.body)["requestPayload"]
    return {"number": asked["number"], "text": f"ok {asked['text']}"}


async def answering(linked: Linked, latency_s: float = 0.02, *, through: Linked | None = None) -> None:
    """Answers whatever the wire carried, for ever."""
    seen = 0
    while True:
        await trio.sleep(latency_s)
        for request in linked.wire.sent[seen:]:
            seen += 1
            await (through or linked).process.complete(str(request.record.interaction_id), answers(request))


def rows(world: World) -> list[InteractionRecord]:
    return sorted(world.observed.rows(INTERACTION), key=lambda row: row.interaction_id)


async def submitted(linked: Linked, count: int = 1) -> str:
    return (await linked.process.submit(batch(count))).execution_id


# ── the good road ──


async def test_a_live_session_sends_through_the_link_and_writes_nothing_more(world: World) -> None:
    world.load(LIVE)
    linked = await link(world)
    world.nursery.start_soon(answering, linked)
    execution = await submitted(linked, 100)
    await world.until_status(execution, S.SUCCEEDED)
    assert set(Counter(linked.wire.ids).values()) == {1}
    assert len(linked.wire.sent) == 100
    assert lines(world, execution) == whole(100)
    assert {row.version for row in rows(world)} == {2}, "made as delivered, completed: two writes"
    assert linked.link.held_count == 0


async def test_the_envelope_is_the_one_of_all_transports(world: World) -> None:
    world.load(scalar())
    linked = await link(world)
    execution = await submitted(linked)
    await linked.wire.until_sent(1)
    (envelope,) = linked.wire.envelopes
    (row,) = rows(world)
    assert "type" not in envelope
    assert envelope["tenantId"] == "t1"
    assert envelope["executionId"] == execution
    assert envelope["interactionId"] == envelope["correlationId"] == row.interaction_id
    assert set(envelope["requestPayload"]) == {"number", "text"}
    assert envelope["idempotencyKey"] == row.idempotency_key


async def test_a_parked_question_is_sent_once_and_let_go(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    linked = await link(world)
    execution = await submitted(linked)
    await linked.wire.until_sent(1, within_s=1)
    (row,) = rows(world)
    assert row.delivery is not None
    await trio.sleep(LET_GO_MS / 1000 * 1.5)
    (row,) = rows(world)
    assert (row.status, row.delivery, row.send_count) == (Status.DISPATCHED, None, 1)
    assert linked.link.held_count == 0
    await trio.sleep(3_000)
    assert len(linked.wire.sent) == 1
    await linked.process.complete(str(row.interaction_id), answers(linked.wire.sent[0]))
    await world.until_status(execution, S.SUCCEEDED, within_s=1)


async def test_questions_of_all_tenants_go_out(world: World) -> None:
    world.load(scalar())
    linked = await link(world)
    for name in ("t1", "t2", "t3"):
        item = SubmitItem(input=batch(1), key=None, pipeline=None)
        await linked.process.call(linked.process.coordinator.submit, TenantId(name), item, trace_parent=None)
    await linked.wire.until_sent(3)
    assert {str(envelope["tenantId"]) for envelope in linked.wire.envelopes} == {"t1", "t2", "t3"}
    await trio.sleep(60)
    assert [row.delivery for row in rows(world)] == [None] * 3


async def test_the_budget_bounds_what_is_out_also_when_it_is_let_go(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    linked = await link(world)
    for _ in range(20):
        await submitted(linked)
    await trio.sleep(600)
    assert len(linked.wire.sent) == 8
    for request in list(linked.wire.sent):
        await linked.process.complete(str(request.record.interaction_id), answers(request))
    await trio.sleep(1)
    assert len(linked.wire.sent) == 16
    assert set(Counter(linked.wire.ids).values()) == {1}


async def test_without_a_budget_what_is_confirmed_makes_room_at_once(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    linked = await link(world, credit=2, let_go_ms=0)
    for _ in range(8):
        await submitted(linked)
    await linked.wire.until_sent(8, within_s=5)
    await trio.sleep(1)
    assert [row.delivery for row in rows(world)] == [None] * 8


async def test_a_provider_cannot_attach_to_a_step_that_asks_through_a_broker(world: World) -> None:
    world.load(LIVE)
    linked = await link(world)
    with pytest.raises(Conflict, match="asks over kafka"):
        linked.process.coordinator.attach(TenantId("t1"), pipeline=None, step_ids=["ask"], credit=10)


# ── what goes wrong ──


async def test_what_cannot_be_sent_now_is_sent_later(world: World, expected: Expected) -> None:
    expected.error("requests_not_sent")
    world.load(LIVE)
    wire = MemoryWire(failing="no broker")
    linked = await link(world, wire)
    world.nursery.start_soon(answering, linked)
    execution = await submitted(linked, 20)
    await trio.sleep(120)
    assert wire.sent == []
    assert linked.process.runtime.trouble[linked.link.name] == "no broker"
    assert wire.call_count < 60, "with growing pauses"
    wire.failing = None
    await world.until_status(execution, S.SUCCEEDED, within_s=2 * LONGEST_PAUSE_S)
    assert set(Counter(wire.ids).values()) == {1}
    assert linked.link.name not in linked.process.runtime.trouble


async def test_one_that_is_postponed_holds_up_no_other(world: World, expected: Expected) -> None:
    expected.error("requests_not_sent")
    world.load(scalar())
    left = [3]

    def say(request: Outgoing) -> Outcome:
        if request.record == linked.wire.sent[0].record and left[0]:
            left[0] -= 1
            return Postponed("this one not now")
        return Confirmed()

    linked = await link(world, MemoryWire(say=say))
    for _ in range(3):
        await submitted(linked)
    await linked.wire.until_sent(6)
    await trio.sleep(60)
    assert sorted(Counter(linked.wire.ids).values()) == [1, 1, 4]
    assert [row.delivery for row in rows(world)] == [None] * 3


async def test_one_that_can_never_be_sent_ends_its_execution(world: World, expected: Expected) -> None:
    expected.error("request_given_up")
    world.load(scalar())
    linked = await link(world, MemoryWire(say=lambda _: Unsendable("it has 9,000,000 bytes")))
    execution = await submitted(linked)
    record = await world.until_status(execution, S.FAILED, within_s=5)
    assert record.error_code == "await_failed"
    assert "9,000,000" in (record.error_message or "")
    assert len(linked.wire.sent) == 1
    assert linked.link.held_count == 0


async def test_giving_up_waits_for_the_store(world: World, expected: Expected) -> None:
    expected.error("request_given_up", "requests_not_sent", "claims_failed", "sweep_failed", "pump_failed",
                   "tidying_failed", "claim_failed", "socket_renewal_failed", "renewal_failed")  # fmt: skip
    world.load(scalar())

    def say(_: Outgoing) -> Outcome:
        linked.process.gate.failing = "the store is away"
        return Unsendable("too large")

    linked = await link(world, MemoryWire(say=say))
    execution = await submitted(linked)
    await linked.wire.until_sent(1)
    await trio.sleep(20)
    linked.wire.say = lambda _: Unsendable("too large")
    linked.process.gate.failing = None
    await world.until_status(execution, S.FAILED, within_s=2 * LONGEST_PAUSE_S)


async def test_one_that_was_called_off_is_not_sent_any_more(world: World, expected: Expected) -> None:
    expected.error("requests_not_sent")
    world.load(scalar())
    wire = MemoryWire(failing="no broker")
    linked = await link(world, wire)
    execution = await submitted(linked)
    await trio.sleep(30)
    await linked.process.cancel(execution)
    await trio.sleep(30)
    wire.failing = None
    await trio.sleep(60)
    assert wire.sent == []
    assert linked.link.held_count == 0


async def test_after_its_deadline_nothing_is_sent(world: World, expected: Expected) -> None:
    expected.error("requests_not_sent", "dead_letter")
    world.load(scalar(timeout="PT1M"))
    wire = MemoryWire(failing="no broker")
    linked = await link(world, wire)
    execution = await submitted(linked)
    await world.until_status(execution, S.FAILED, within_s=120)
    wire.failing = None
    await trio.sleep(60)
    assert wire.sent == []


# ── processes that end ──


async def test_what_a_dead_process_had_not_confirmed_is_sent_by_another(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    slow = MemoryWire(latency_s=1_000_000.0)
    first = await link(world, slow, "a")
    for _ in range(5):
        await submitted(first)
    await trio.sleep(1)
    first.process.kill()
    second = await link(world, name="b")
    await second.wire.until_sent(5, within_s=120)
    await trio.sleep(600)
    assert set(Counter(second.wire.ids).values()) == {1}


async def test_what_a_dead_process_had_let_go_is_not_sent_again(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    first = await link(world, name="a")
    for _ in range(5):
        await submitted(first)
    await first.wire.until_sent(5)
    await trio.sleep(30)
    first.process.kill()
    second = await link(world, name="b")
    await trio.sleep(600)
    assert second.wire.sent == []
    assert world.observed.rows(SOCKET)[0].socket_id.startswith("kafka-")


async def test_a_drained_link_leaves_nothing_to_its_lease(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    first = await link(world, name="a")
    for _ in range(3):
        await submitted(first)
    await first.wire.until_sent(3)
    first.wire.latency_s = 1_000_000.0
    for _ in range(3):
        await submitted(first)
    await trio.sleep(0.5)
    await first.drain()
    assert world.observed.rows(SOCKET) == []
    assert {row.delivery for row in rows(world)} == {None}
    assert Counter(row.status for row in rows(world)) == {Status.DISPATCHED: 3, Status.WAITING: 3}
    second = await link(world, name="b")
    await second.wire.until_sent(3, within_s=1)
    assert set(second.wire.ids).isdisjoint(first.wire.ids)


class Lagging(ObservedStore):
    """Its index does not show yet what was written a moment ago."""

    behind = False

    async def query(self, index: Index[R], partition: str, **named: Any) -> Page[R]:
        if self.behind and index is INTERACTION_HELD:
            return Page(())
        return await super().query(index, partition, **named)


async def test_a_link_puts_back_what_an_index_that_lags_does_not_show(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    world.store = store = Lagging()
    first = await link(world, MemoryWire(latency_s=1_000_000.0), name="a")
    for _ in range(3):
        await submitted(first)
    await trio.sleep(0.5)
    store.behind = True
    await first.drain()
    store.behind = False
    assert [row.status for row in rows(world)] == [Status.WAITING] * 3
    assert world.observed.rows(SOCKET) == []


async def test_a_live_run_goes_on_through_another_process(world: World) -> None:
    world.load(LIVE)
    first = await link(world, name="a")
    execution = await submitted(first, 40)
    await first.wire.until_sent(8)
    await first.drain()
    second = await link(world, name="b")
    world.nursery.start_soon(answering, second)
    for request in list(first.wire.sent):
        await second.process.complete(str(request.record.interaction_id), answers(request))
    await world.until_status(execution, S.SUCCEEDED)
    assert set(Counter(first.wire.ids + second.wire.ids).values()) == {1}
    assert len(first.wire.ids + second.wire.ids) == 40


async def test_one_that_was_out_already_stands_first_in_the_queue(world: World) -> None:
    """Those before it may wait for the very slot of the budget that it holds."""
    world.load(scalar(timeout="P1D"))
    linked = await link(world, credit=0)
    for _ in range(2):
        await submitted(linked)
        await trio.sleep(0.1)
    older, newer = rows(world)
    entries = [INTERACTION_HELD.entry(row) for row in (older, evolve(newer, permit_slot=3))]
    queue = send_partition("test", older.contract_version, "ask")
    assert [entry and entry.partition for entry in entries] == [queue] * 2
    assert entries[0] is not None
    assert entries[1] is not None
    assert str(entries[1].sort) < str(entries[0].sort)


async def test_two_links_share_the_queue_and_one_budget(world: World) -> None:
    world.load(scalar(timeout="P1D"))
    first, second = await link(world, name="a"), await link(world, name="b")
    for _ in range(30):
        await submitted(first)
    await trio.sleep(60)
    both = first.wire.ids + second.wire.ids
    assert len(both) == 8
    assert set(Counter(both).values()) == {1}
