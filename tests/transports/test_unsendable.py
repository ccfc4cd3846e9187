"""What can never be sent, over every transport that sends: the item is rejected where the step recovers."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from attrs import define, field

from tests.engine.asking import attach, lines, whole
from tests.engine.expected import Expected
from tests.engine.gate import When
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    PARSE,
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
from tests.engine.world import Lost, Process, S, World
from tests.transports import outside
from tests.transports.broker_double import MemoryWire, link
from tpfd.core.awaits import was_rejected
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import FactType, TerminalReason
from tpfd.dispatch.protocol import ItemReject
from tpfd.engine.rejecting import Rejecting
from tpfd.errors import Conflict, DispatchError
from tpfd.transports.broker import Confirmed, Outcome, Outgoing, Unsendable
from tpfd.transports.webhook_replies import Never, Reply, Taken

RECOVER = "recoverOnFailure: true"
WHY = "it is too large"
FUNCTIONS: Functions = {"parse": parse, "finish": finish, "begin": begin}
ROWS = 6
BAD = 2
"""The row that no transport takes."""


@pytest.fixture(params=["kafka", "webhook"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _given_up(expected: Expected) -> None:
    expected.error("request_given_up", "webhook_given_up")


@define(eq=False)
class Provider:
    """Takes every row but one, over either transport, and answers those that it is to answer.

    Attributes:
        away: nothing is taken for now.
        sent: how often each row came.
    """

    world: World
    answers: Callable[[int], bool] = lambda number: True
    away: bool = False
    sent: Counter[int] = field(factory=Counter)

    async def start(self, transport: str, name: str = "a", **settings: Any) -> Process:
        """A process that sends the requests of the step `ask`."""
        if transport == "webhook":
            sending = await outside.start(self.world, outside.Outside(say=self._reply), name, **settings)
            return sending.process
        linked = await link(self.world, MemoryWire(say=self._outcome), name, **settings)
        return linked.process

    async def _reply(self, asked: outside.Asked) -> Reply:
        return Taken() if self._take(asked.envelope) else Never(WHY)

    def _outcome(self, request: Outgoing) -> Outcome:
        return Confirmed() if self._take(json.loads(request.body)) else Unsendable(WHY)

    def _take(self, envelope: dict[str, Any]) -> bool:
        number = envelope["requestPayload"]["number"]
        self.sent[number] += 1
        if number == BAD:
            return False
        if self.answers(number):
            self.world.nursery.start_soon(self.answer, envelope["interactionId"], number)
        return True

    async def answer(self, interaction_id: str, number: int) -> None:
        """Answers a request through a process that lives."""
        await trio.sleep(0.5)
        process = next(one for one in self.world.processes if not one.gate.dead)
        with contextlib.suppress(Lost):
            await process.complete(interaction_id, {"number": number, "text": f"ok row-{number}"})


def rejects(world: World) -> list[ItemReject]:
    """What the sinks of all processes were given."""
    return [reject for process in world.processes for reject in process.rejects.rejects]


def rest() -> list[str]:
    """The output without the bad row."""
    return [line for line in whole(ROWS) if not line.startswith(f"{BAD},")]


async def told(world: World, execution: str) -> list[tuple[object, object]]:
    """What the history says of requests that were given up: why, and whether only the item was."""
    facts = [fact for fact in await world.facts(execution) if fact.type is FactType.DISPATCH_FAILED]
    return [(fact.data["message"], fact.data.get("rejected")) for fact in facts]


async def submitted(process: Process) -> str:
    return (await process.submit(batch(ROWS))).execution_id


# ── one of many ──


async def test_an_item_that_can_never_be_sent_is_rejected_and_the_rest_goes_on(world: World, transport: str) -> None:
    steps = PARSE + waiting(transport=transport, more=RECOVER) + FINISH
    world.load(program(steps, FUNCTIONS, publish=True))
    provider = Provider(world)
    process = await provider.start(transport)
    execution = await submitted(process)
    await world.until_status(execution, S.SUCCEEDED, within_s=60)
    assert lines(world, execution) == rest()
    assert provider.sent == Counter(range(ROWS))
    (reject,) = rejects(world)
    assert reject == ItemReject(
        tenant_id="t1",
        execution_id=execution,
        correlation_id=execution,
        idempotency_key=f"t1:{execution}:ask:{BAD}",
        step_class="ask",
        step_name="ask",
        reject_scope="ITEM",
        retries_observed=0,
        retry_limit=0,
        final_attempt=True,
        error_class="TransportError",
        error_message=WHY,
        rejected_at_epoch_ms=reject.rejected_at_epoch_ms,
        item_fingerprint=reject.item_fingerprint,
        item_count=1,
        payload=f'{{"number":{BAD},"text":"row-{BAD}"}}',
    )
    assert await told(world, execution) == [(WHY, True)]
    assert world.observed.slots_held() == []
    name = f"{execution}.s001.{BAD:09d}"
    assert was_rejected(await world.interaction(name))
    with pytest.raises(Conflict, match="its item was rejected"):
        await process.complete(name, {"number": BAD, "text": "late"})


async def test_the_item_is_absent_from_the_list_of_an_aggregate(world: World, transport: str) -> None:
    async def total(found: AsyncIterator[Line]) -> Total:
        numbers = [line.number async for line in found]
        return Total(len(numbers), str(sorted(numbers)))

    steps = PARSE + waiting(transport=transport, more=RECOVER) + FINISH
    world.load(program(steps + service("total", "Line", "Total", "MANY_TO_ONE"), {**FUNCTIONS, "total": total}))
    process = await Provider(world).start(transport)
    execution = await submitted(process)
    await world.until_status(execution, S.SUCCEEDED, within_s=60)
    assert await process.result(execution) == {"count": ROWS - 1, "text": "[0, 1, 3, 4, 5]"}
    assert len(rejects(world)) == 1


@pytest.mark.parametrize("late", [False, True], ids=["before it was parked", "after it was parked"])
async def test_a_parked_unit_does_not_wait_for_it(world: World, expected: Expected, late: bool) -> None:
    expected.error("requests_not_sent")
    steps = PARSE + waiting(transport="kafka", more=RECOVER) + FINISH
    world.load(program(steps, FUNCTIONS, publish=True))
    provider = Provider(world, answers=lambda number: number in (0, 1))
    wire = MemoryWire(say=provider._outcome, failing="no broker" if late else None)
    process = (await link(world, wire, live_idle_ms=10_000)).process
    execution = await submitted(process)
    await world.until_status(execution, S.WAITING_EXTERNAL)
    wire.failing = None
    await trio.sleep(30)
    children = [one for one in world.observed.rows(EXECUTION) if one.parent_execution_id is not None]
    assert {one.item_index: one.status for one in children} == dict.fromkeys((0, 1, BAD), S.SUCCEEDED)
    for number in (3, 4, 5):
        await provider.answer(f"{execution}.s001.{number:09d}", number)
    await world.until_status(execution, S.SUCCEEDED, within_s=30)
    assert world.disk.lines(f"{execution}.csv") == rest()
    assert len(rejects(world)) == 1


async def test_a_re_drive_asks_it_no_more(world: World) -> None:
    steps = PARSE + waiting(transport="kafka", more=RECOVER, timeout="PT1M") + FINISH
    world.load(program(steps, FUNCTIONS, publish=True))
    provider = Provider(world, answers=lambda number: number != 4)
    process = await provider.start("kafka", live_idle_ms=600_000)
    execution = await submitted(process)
    failed = await world.until_status(execution, S.FAILED, within_s=120)
    assert failed.terminal_reason is TerminalReason.AWAIT_TIMEOUT
    provider.answers = lambda number: True
    await process.redrive(failed)
    await world.until_status(execution, S.SUCCEEDED, within_s=60)
    assert lines(world, execution) == rest()
    assert (provider.sent[BAD], len(rejects(world))) == (1, 1)


async def test_without_recovery_it_fails_the_execution_and_nothing_is_rejected(world: World, transport: str) -> None:
    world.load(program(PARSE + waiting(transport=transport) + FINISH, FUNCTIONS, publish=True))
    execution = await submitted(await Provider(world).start(transport))
    ended = await world.until_status(execution, S.FAILED, within_s=60)
    assert ended.terminal_reason is TerminalReason.AWAIT_FAILED
    assert await told(world, execution) == [(WHY, None)]
    assert rejects(world) == []


# ── one alone ──


async def test_the_one_question_of_an_execution_fails_it_as_the_one_item_of_a_step_does(
    world: World, transport: str
) -> None:
    world.load(program(BEGIN + waiting(transport=transport, more=RECOVER) + FINISH, FUNCTIONS))
    process = await Provider(world).start(transport)
    done = await process.submit(batch(BAD))
    ended = await world.until_status(done.execution_id, S.FAILED, within_s=60)
    assert (ended.terminal_reason, ended.error_message) == (TerminalReason.AWAIT_FAILED, WHY)
    assert rejects(world) == []


async def test_the_one_question_of_a_child_ends_that_item_alone(world: World, transport: str) -> None:
    first = waiting("first", "Row", "Row", transport="websocket")
    world.load(program(PARSE + first + waiting(transport=transport, more=RECOVER) + FINISH, FUNCTIONS, publish=True))
    process = await Provider(world).start(transport)
    await attach(world, process, step="first")
    execution = await submitted(process)
    await world.until_status(execution, S.SUCCEEDED, within_s=120)
    assert [line.partition(",")[0] for line in world.disk.lines(f"{execution}.csv")] == ["0", "1", "3", "4", "5"]
    (reject,) = rejects(world)
    assert reject.idempotency_key == f"t1:{execution}:ask:{BAD}"
    children = [one for one in world.observed.rows(EXECUTION) if one.parent_execution_id is not None]
    assert [one.status for one in children] == [S.SUCCEEDED] * ROWS
    assert [one.item_index for one in children if one.result is None] == [BAD]


# ── the sink ──


@define(eq=False)
class Sink:
    """A sink at which its process dies, or that fails."""

    process: Process
    dies: When | None = None

    async def publish(self, rejected: tuple[ItemReject, ...]) -> None:
        if self.dies is None:
            await trio.lowlevel.checkpoint()
            raise DispatchError("the disk is full")
        if self.dies is When.BEFORE:
            await self.process.gate.die()
        await self.process.rejects.publish(rejected)
        await self.process.gate.die()


def put_sink(process: Process, dies: When | None = None) -> None:
    rejecting = process.coordinator.admission.rejects
    assert isinstance(rejecting, Rejecting)
    rejecting.sink = Sink(process, dies)


@pytest.mark.parametrize("fails", [True, False], ids=["FAIL_PIPELINE", "CONTINUE"])
async def test_a_sink_that_fails_does_what_its_policy_says(
    world: World, expected: Expected, transport: str, fails: bool
) -> None:
    steps = PARSE + waiting(transport=transport, more=RECOVER) + FINISH
    world.load(program(steps, FUNCTIONS, publish=True))
    process = await Provider(world).start(transport, fail_pipeline=fails)
    put_sink(process)
    execution = await submitted(process)
    if not fails:
        expected.error("reject_sink_failed")
        await world.until_status(execution, S.SUCCEEDED, within_s=60)
        assert lines(world, execution) == rest()
        return
    ended = await world.until_status(execution, S.FAILED, within_s=60)
    assert ended.terminal_reason is TerminalReason.AWAIT_FAILED
    assert await told(world, execution) == [(f"{WHY}; and its item could not be rejected: the disk is full", None)]


@pytest.mark.parametrize("parked", [False, True], ids=["live", "parked"])
@pytest.mark.parametrize("dies", When)
async def test_a_process_that_dies_around_the_sink_loses_no_reject(
    world: World, transport: str, dies: When, parked: bool
) -> None:
    steps = PARSE + waiting(transport=transport, more=RECOVER) + FINISH
    world.load(program(steps, FUNCTIONS, publish=True))
    provider = Provider(world, answers=lambda number: not parked)
    first = await provider.start(transport, live_idle_ms=600_000)
    put_sink(first, dies)
    execution = await submitted(first)
    await world.until(lambda: _is(first.gate.dead), within_s=60)
    assert len(rejects(world)) == (dies is When.AFTER)
    assert not any(was_rejected(row) for row in world.observed.rows(INTERACTION)), "nothing says that it is done yet"
    await provider.start(transport, "b", live_idle_ms=2_000)
    if parked:
        await world.until_status(execution, S.WAITING_EXTERNAL)
        await trio.sleep(120)
        for number in (0, 1, 3, 4, 5):
            await provider.answer(f"{execution}.s001.{number:09d}", number)
    await world.until_status(execution, S.SUCCEEDED, within_s=300)
    assert lines(world, execution) == rest()
    again = [reject.idempotency_key for reject in rejects(world)]
    assert again == [f"t1:{execution}:ask:{BAD}"] * (2 if dies is When.AFTER else 1)


async def _is(value: bool) -> bool:
    return value
