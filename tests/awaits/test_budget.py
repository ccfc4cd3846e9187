"""The shared budget of requests that are out: never over it, whoever dies; given back whatever happens; cheap.

On virtual time, over the memory store, which remembers every write. What was out when is read from those writes, in the
order in which they were committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import pytest
import trio
from attrs import evolve

from tests.engine.expected import Expected
from tests.engine.observed import ObservedStore
from tests.engine.pipelines import (
    BEGIN,
    FINISH,
    PARSE,
    QUICK,
    Functions,
    batch,
    begin,
    finish,
    parse,
    program,
    waiting,
)
from tests.engine.world import Envelope, Process, Provider, S, World
from tpfd.core.budget import is_held
from tpfd.core.kinds import INTERACTION, INTERACTION_HELD, PERMIT, PERMIT_BY_SCOPE
from tpfd.core.records import InteractionRecord, InteractionStatus, PermitRecord
from tpfd.core.transact import Decide, Index, Page, Read
from tpfd.program import Program, StepDefaults

VIRTUAL_TIME = True

R = TypeVar("R")
T = TypeVar("T")
BUDGET = 5
TIGHT = evolve(QUICK, max_concurrency=BUDGET)
FUNCTIONS: Functions = {"parse": parse, "begin": begin, "finish": finish}


class CountedStore(ObservedStore):
    """Counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def transact(self, reads: Iterable[Read], decide: Decide[T]) -> T:
        self.calls["transact"] += 1
        return await super().transact(reads, decide)

    async def query(self, index: Index[R], partition: str, **named: Any) -> Page[R]:
        name = {PERMIT_BY_SCOPE: "slots", INTERACTION_HELD: "queue"}.get(index, "other")
        self.calls[name] += 1
        return await super().query(index, partition, **named)


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    made = World(nursery=nursery, store=CountedStore())
    yield made
    for process in made.processes:
        process.kill()
    nursery.cancel_scope.cancel("the test is over")


def calls(world: World) -> Counter[str]:
    assert isinstance(world.store, CountedStore)
    return world.store.calls


def stream(defaults: StepDefaults = TIGHT, **named: Any) -> Program:
    return program(PARSE + waiting(**named) + FINISH, FUNCTIONS, defaults=defaults)


def most_out(world: World) -> int:
    """Most requests that were out at once; a slot was never without its request, nor a request without its slot."""
    out: dict[str, InteractionRecord] = {}
    slots: dict[str, PermitRecord] = {}
    most = 0
    for _, writes in groupby(world.observed.writes, key=lambda write: write.decision):
        before = dict(out)
        for write in writes:
            if write.key.kind is INTERACTION:
                record = write.after
                if record is not None and record.status.open and record.permit_slot is not None:
                    out[write.key.record_id] = record
                else:
                    out.pop(write.key.record_id, None)
                dispatched = record is not None and record.status is InteractionStatus.DISPATCHED
                assert not dispatched or write.key.record_id in out, "a request goes out with a slot"
            elif write.key.kind is PERMIT:
                assert not write.before or not is_held(write.before, before.get(write.before.interaction_id))
                slots[write.key.record_id] = write.after
        held = [one.interaction_id for one in slots.values() if is_held(one, out.get(one.interaction_id))]
        assert sorted(out) == sorted(held)
        most = max(most, len(held))
    return most


def slots_taken(world: World) -> int:
    return len(world.observed.slots_held())


async def attach(world: World, process: Process, **named: Any) -> Provider:
    provider = Provider(process=process, **named)
    await world.nursery.start(provider.run)
    return provider


def silent(envelope: Envelope) -> None:
    return None


async def in_hand(world: World, providers: Sequence[Provider], count: int) -> None:
    async def enough() -> bool:
        return sum(one.outstanding for one in providers) >= count

    await world.until(enough, 60)
    await trio.sleep(5)


# ── never over it ──


async def test_replicas_share_one_budget_over_all_executions(world: World) -> None:
    world.load(stream())
    a, b = await world.start("a"), await world.start("b")
    providers = [await attach(world, a), await attach(world, b, latency_s=0.05)]
    executions = [(await process.submit(batch(100, name))).execution_id for process, name in ((a, "x"), (b, "y"))]
    for execution in executions:
        await world.until_status(execution, S.SUCCEEDED)
    assert most_out(world) == BUDGET, "all of it is used, and no more"
    assert slots_taken(world) == 0
    asked = providers[0].asked + providers[1].asked
    assert len(asked) == 200
    assert set(asked.values()) == {1}


async def test_scalar_awaits_wait_for_the_same_budget(world: World) -> None:
    world.load(program(BEGIN + waiting() + FINISH, FUNCTIONS, defaults=TIGHT))
    a, b = await world.start("a"), await world.start("b")
    executions = [(await (a, b)[number % 2].submit(batch(number))).execution_id for number in range(40)]
    providers = [await attach(world, a), await attach(world, b)]
    for execution in executions:
        await world.until_status(execution, S.SUCCEEDED)
    assert most_out(world) == BUDGET
    assert (slots_taken(world), sum(len(one.asked) for one in providers)) == (0, 40)


async def test_a_sequential_step_has_a_window_of_one_and_the_whole_budget(world: World) -> None:
    world.load(stream(more="parallelism: SEQUENTIAL"))
    a = await world.start("a")
    provider = await attach(world, a, latency_s=1)
    began = trio.current_time()
    executions = [(await a.submit(batch(5, f"{name}"))).execution_id for name in range(3)]
    for execution in executions:
        await world.until_status(execution, S.SUCCEEDED)
        order = [one["requestPayload"]["number"] for one in provider.envelopes if one["executionId"] == execution]
        assert order == list(range(5)), "one after the other"
    assert provider.outstanding_max == 3, "one of each execution"
    assert trio.current_time() - began < 10


@pytest.mark.parametrize("budgets", [True, False])
async def test_the_budget_can_be_switched_off(world: World, budgets: bool) -> None:
    world.load(stream(evolve(TIGHT, budgets=budgets)))
    a, b = await world.start("a"), await world.start("b")
    providers = [await attach(world, process, latency_s=1) for process in (a, b)]
    for process in (a, b):
        done = await process.submit(batch(20))
        await world.until_status(done.execution_id, S.RUNNING)
    await in_hand(world, providers, BUDGET)
    both = max(provider.outstanding_max for provider in providers)
    total = len([write for write in world.observed.writes if write.key.kind is PERMIT])
    assert (total > 0) is budgets
    assert both <= BUDGET if budgets else sum(one.outstanding_max for one in providers) == 2 * BUDGET


# ── whatever happens ──


async def test_it_survives_the_death_of_a_replica(world: World) -> None:
    """What the dead one had out keeps its slots, and nobody takes further ones, until it goes out elsewhere."""
    world.load(stream())
    a, b = await world.start("a"), await world.start("b")
    lost = await attach(world, a, answer=silent)
    execution = (await a.submit(batch(30))).execution_id
    await in_hand(world, [lost], BUDGET)
    provider = await attach(world, b)
    other = (await b.submit(batch(30, "other"))).execution_id
    await trio.sleep(3)
    a.kill()
    assert slots_taken(world) == BUDGET
    for one in (execution, other):
        await world.until_status(one, S.SUCCEEDED)
    assert most_out(world) == BUDGET
    assert slots_taken(world) == 0
    assert set(provider.asked.values()) == {1}
    assert set(lost.asked) <= set(provider.asked), "what was out went out again, under the same ids"


async def test_a_slot_stays_with_its_request_from_socket_to_socket(world: World) -> None:
    world.load(stream())
    a = await world.start("a")
    gone = await attach(world, a, answer=silent)
    execution = (await a.submit(batch(BUDGET))).execution_id
    await in_hand(world, [gone], BUDGET)
    before = {permit.interaction_id: permit for permit in world.observed.rows(PERMIT)}
    gone.scope.cancel()
    await gone.detached.wait()
    assert {record.status for record in world.observed.rows(INTERACTION)} == {InteractionStatus.WAITING}
    again = await attach(world, a, answer=silent)
    await in_hand(world, [again], BUDGET)
    assert {permit.interaction_id: permit for permit in world.observed.rows(PERMIT)} == before
    for name in list(before):
        await a.complete(name, {"number": 0, "text": "by hand"})
    await world.until_status(execution, S.SUCCEEDED)
    assert slots_taken(world) == 0


@pytest.mark.parametrize("how", ["complete", "timeout", "default", "cancel", "fail-and-clean-up"])
async def test_every_end_gives_its_slots_back(world: World, how: str) -> None:
    default = 'onTimeout: {complete-with: {number: 0, text: ""}}' if how == "default" else ""
    world.load(stream(settings=default, timeout="PT60S"))
    a = await world.start("a")
    provider = await attach(world, a, answer=silent)
    execution = (await a.submit(batch(BUDGET))).execution_id
    await in_hand(world, [provider], BUDGET)
    assert slots_taken(world) == BUDGET
    match how:
        case "complete":
            for name in list(provider.asked):
                await a.complete(name, {"number": 0, "text": "by hand"})
        case "cancel":
            await a.cancel(execution)
        case "fail-and-clean-up":
            first = min(provider.asked)
            seen = await world.interaction(first)
            await a.coordinator.admission.give_up(seen, "it can never be sent")
    ended = S.SUCCEEDED if how in ("complete", "default") else S.CANCELLED if how == "cancel" else S.FAILED
    await world.until_status(execution, ended, within_s=120)

    async def free() -> bool:
        return slots_taken(world) == 0

    await world.until(free, 120)
    assert most_out(world) == BUDGET
    # And they can be taken again.
    provider.answer = lambda envelope: {"number": 1, "text": "now"}
    following = (await a.submit(batch(2 * BUDGET))).execution_id
    await world.until_status(following, S.SUCCEEDED, within_s=120)


async def test_a_redriven_execution_takes_new_slots_and_gives_them_back(world: World) -> None:
    world.load(stream(timeout="PT60S"))
    a = await world.start("a")
    provider = await attach(world, a, answer=silent)
    execution = (await a.submit(batch(20))).execution_id
    await world.until_status(execution, S.FAILED, within_s=120)
    provider.answer = lambda envelope: {"number": 1, "text": "now"}
    provider.outstanding = 0
    await a.redrive(await world.execution(execution))
    await world.until_status(execution, S.SUCCEEDED, within_s=120)
    assert most_out(world) == BUDGET
    assert slots_taken(world) == 0


# ── cheap ──


async def test_a_slot_costs_no_store_call_of_its_own(world: World) -> None:
    """The slot is taken by the write that sends the request and given back by the one that admits the answer."""
    cost: dict[bool, Counter[str]] = {}
    roomy = evolve(QUICK, max_concurrency=50)
    for budgets in (False, True):
        step = f"ask-{budgets}"
        steps = PARSE + waiting(step) + FINISH
        world.load(program(steps, FUNCTIONS, defaults=evolve(roomy, budgets=budgets), name=f"Test-{budgets}"))
    a = await world.start("a")
    for budgets in (False, True):
        provider = await attach(world, a, step=f"ask-{budgets}")
        before = calls(world).copy()
        execution = (await a.submit(batch(200), pipeline=f"test-{budgets}".lower())).execution_id
        await world.until_status(execution, S.SUCCEEDED)
        cost[budgets] = calls(world) - before
        provider.scope.cancel()
        await provider.detached.wait()
    assert cost[True]["slots"] == 0, "nobody scans the slots while there are free ones"
    assert cost[True]["transact"] == pytest.approx(cost[False]["transact"], abs=5)


async def test_a_full_budget_waits_without_spinning(world: World) -> None:
    world.load(stream(timeout="P1D"))
    a, b = await world.start("a"), await world.start("b")
    providers = [await attach(world, process, answer=silent) for process in (a, b)]
    for process in (a, b):
        await process.submit(batch(50))
    await in_hand(world, providers, BUDGET)
    before = calls(world).copy()
    await trio.sleep(1_000)
    spent = calls(world) - before
    assert slots_taken(world) == BUDGET
    # Two sockets that look once a second, and at what they hold at each renewal; two live sessions; two leases.
    assert spent["slots"] <= 2 * 1_001
    assert spent["queue"] <= 2 * (1_001 + 101)
    assert spent["transact"] <= 4 * 150


async def test_a_full_budget_is_not_tried_again_because_others_commit(world: World) -> None:
    world.load(stream(timeout="P1D"))
    a = await world.start("a")
    provider = await attach(world, a, answer=silent)
    for name in "xy":
        await a.submit(batch(50, name))
    await in_hand(world, [provider], BUDGET)
    before = calls(world).copy()
    for _ in range(1_000):
        a.runtime.bells.ring_all()
        await trio.sleep(0.01)
    spent = calls(world) - before
    assert spent["slots"] <= 10 / 0.1 + 2, "they are read at most ten times a second"
    assert spent["transact"] < 50, "nothing is tried without a slot"
