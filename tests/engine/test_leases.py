"""Leases, fences, clocks, lost workers: who may commit, who takes over, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from attrs import evolve

from tests.engine.expected import Expected
from tests.engine.observed import ObservedStore
from tests.engine.pipelines import (
    BEGIN,
    INLINE,
    PARSE,
    Line,
    Row,
    batch,
    begin,
    parse,
    program,
    service,
)
from tests.engine.world import POLICY, START_EPOCH_MS, TENANT, Process, S, SkewedClock, World
from tpfd.core.events import Complete, Event, Fail, Renew
from tpfd.core.lease import trust_ms
from tpfd.core.moves import Refused, Transition
from tpfd.core.records import ExecutionRecord, FactType, Payload, TerminalReason
from tpfd.program import Program

LEASE_S = POLICY.lease_ms / 1000
TRUST_S = trust_ms(POLICY.lease_ms) / 1000
TAKEOVER_S = (POLICY.lease_ms + POLICY.skew_ms) / 1000


def quick_line(row: Row) -> Line:
    return Line(row.number, row.text)


def slow_program(seconds: float, ran: list[str] | None = None) -> Program:
    """One step that takes a while."""

    async def slow(row: Row) -> Line:
        if ran is not None:
            ran.append(row.text)
        await trio.sleep(seconds)
        return quick_line(row)

    return program(BEGIN + service("slow", "Row", "Line"), {"begin": begin, "slow": slow})


async def claimed_by(world: World, process: Process, data: object) -> str:
    """Submits and waits until the process runs it."""
    done = await process.submit(data)

    async def runs() -> bool:
        return done.execution_id in process.running()

    await world.until(runs)
    return done.execution_id


async def test_a_lease_is_renewed_for_as_long_as_the_step_takes(world: World) -> None:
    world.load(slow_program(600))
    a, b = await world.start("a"), await world.start("b")
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (1, 0)
    assert (a.running(), b.running()) == ([], [])


async def test_a01_a_save_that_was_on_its_way_too_long_is_refused_by_the_fence(world: World) -> None:
    world.load(slow_program(1))
    a = await world.start("a")
    execution = await claimed_by(world, a, batch(1))
    # Its next calls to the store take longer than its lease lasts; the clean-up of a cancel cannot cut them short.
    a.gate.delay_s = lambda: LEASE_S
    await world.start("b")
    record = await world.until_status(execution, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (2, 1)
    await trio.sleep(200)
    writers = [write.writer for write in world.observed.writes if write.after == record]
    assert writers == ["b"]
    assert await world.execution(execution) == record
    assert a.running() == []


async def test_a01_whoever_lost_its_lease_starts_no_further_step(world: World, expected: Expected) -> None:
    started: list[tuple[str, str]] = []

    async def first(row: Row) -> Row:
        started.append(("first", trio.lowlevel.current_task().name))
        await trio.sleep(20)
        return row

    async def second(row: Row) -> Line:
        started.append(("second", ""))
        return quick_line(row)

    steps = BEGIN + service("first", "Row", "Row") + service("second", "Row", "Line")
    world.load(program(steps, {"begin": begin, "first": first, "second": second}))
    a = await world.start("a")
    execution = await claimed_by(world, a, batch(1))
    a.gate.failing = "cut off"
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    await trio.sleep(19)
    assert [name for name, _ in started] == ["first"]
    await trio.sleep(TRUST_S - 19 + 1)
    assert a.running() == [], "the trust window is over: the attempt has ended"
    assert [name for name, _ in started] == ["first", "second"], "within the trust window it went on"
    assert expected.logged("attempt_without_lease")[0]["execution_id"] == execution
    assert (await world.execution(execution)).status is S.RUNNING
    a.gate.failing = None
    await world.until_status(execution, S.SUCCEEDED)


async def test_the_trust_window_ends_an_attempt_whose_lease_cannot_be_renewed(world: World, expected: Expected) -> None:
    world.load(slow_program(100))
    a, b = await world.start("a"), world.build("b")
    execution = await claimed_by(world, a, batch(1))
    claimed_at = trio.current_time()
    a.gate.failing = "cut off"
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")

    async def ended() -> bool:
        return a.running() == []

    await world.until(ended)
    assert claimed_at + TRUST_S - 0.2 <= trio.current_time() <= claimed_at + TRUST_S + 0.2
    await world.nursery.start(b.run)
    record = await world.until_status(execution, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (2, 1)


async def test_a_lease_that_could_not_be_renewed_once_is_renewed_a_little_later(
    world: World, expected: Expected
) -> None:
    world.load(slow_program(100))
    a = await world.start("a")
    execution = await claimed_by(world, a, batch(1))
    expected.error("claim_failed", "sweep_failed", "tidying_failed", "socket_renewal_failed")
    for _ in range(5):
        a.gate.failing = "a short outage"
        await trio.sleep(LEASE_S / 3 + 5)
        a.gate.failing = None
        await trio.sleep(5)
    record = await world.until_status(execution, S.SUCCEEDED)
    assert (record.fence, record.worker_losses) == (1, 0)


async def test_a02_a_late_commit_under_an_unmoved_fence_is_accepted(world: World) -> None:
    # The table of the design accepts it: nobody else has acted, or the fence would have moved.
    world.load(slow_program(1))
    a = world.build("a")

    async def hold(record: ExecutionRecord, sent_at: float) -> None:
        await trio.sleep_forever()

    a.claims.run_attempt = hold
    events: list[Callable[[int], Event]] = [
        lambda fence: Renew(fence=fence),
        lambda fence: Complete(fence=fence, result=Payload(type_name="Line")),
        lambda fence: Fail(fence=fence, code="late", message="late", retryable=True),
    ]
    for event in events:
        done = await a.submit(batch(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.claims.run, nursery)
            await world.until_status(done.execution_id, S.RUNNING)
            nursery.cancel_scope.cancel("claimed")
        await trio.sleep(TAKEOVER_S + 10)
        committed = await a.runtime.commit(TENANT, done.execution_id, event(1))
        assert isinstance(committed.outcome, Transition)
        stale = await a.runtime.commit(TENANT, done.execution_id, event(0))
        assert isinstance(stale.outcome, Refused)


@pytest.mark.parametrize("ahead_ms", [25_000, 3_600_000, -3_600_000])
async def test_a03_a_host_whose_clock_is_wrong_cannot_steal_live_work(world: World, ahead_ms: int) -> None:
    world.store = ObservedStore(shared_by_hosts=True)
    world.policy = evolve(POLICY, lease_ms=20_000)
    ran: list[str] = []
    world.load(slow_program(300, ran))
    a = await world.start("a")
    execution = await claimed_by(world, a, batch(1))
    b = await world.start("b", clock=SkewedClock(ahead_ms))
    await trio.sleep(250)
    assert (await world.execution(execution)).fence == 1
    assert b.running() == []
    a.kill()
    renewed_at = ((await world.execution(execution)).updated_epoch_ms - START_EPOCH_MS) / 1000

    async def taken_over() -> bool:
        return execution in b.running()

    await world.until(taken_over, within_s=2 * 3600)
    record = await world.execution(execution)
    assert (record.fence, record.worker_losses) == (2, 1)
    assert trio.current_time() - renewed_at >= world.policy.lease_ms / 2000, "it saw the lease stand still first"
    await world.until_status(execution, S.SUCCEEDED)
    assert len(ran) == 2


async def test_on_a_store_of_one_host_a_takeover_waits_for_expiry_and_skew_only(world: World) -> None:
    world.load(slow_program(60))
    a, b = await world.start("a"), world.build("b")
    execution = await claimed_by(world, a, batch(1))
    claimed_at = trio.current_time()
    await world.nursery.start(b.run)
    a.kill()

    async def taken_over() -> bool:
        return execution in b.running()

    await world.until(taken_over)
    assert claimed_at + TAKEOVER_S <= trio.current_time() + 0.1 <= claimed_at + TAKEOVER_S + 1


async def test_a06_a_poisonous_execution_ends_in_the_dead_letters_and_the_healthy_ones_finish(
    world: World, expected: Expected
) -> None:
    world.policy = evolve(POLICY, max_worker_losses=2)

    async def deadly(row: Row) -> Line:
        if row.text == "poison":
            process = next(one for one in world.processes if not one.gate.dead and _runs_here(one))
            process.kill()
            await trio.sleep_forever()
        await trio.sleep(1)
        return quick_line(row)

    def _runs_here(process: Process) -> bool:
        return poison in process.running()

    world.load(program(BEGIN + service("deadly", "Row", "Line"), {"begin": begin, "deadly": deadly}))
    first = await world.start("a0", max_in_flight=4)
    poison = (await first.submit(batch(0, "poison"))).execution_id

    async def supervise() -> None:
        for number in range(1, 10):
            await world.processes[-1].ended.wait()
            await world.start(f"a{number}", max_in_flight=4)

    world.nursery.start_soon(supervise)
    healthy = [await _submitted(world, batch(number, "healthy")) for number in range(20)]
    record = await world.until_status(poison, S.DLQ)
    assert (record.terminal_reason, record.worker_losses, record.attempt) == (TerminalReason.WORKER_LOST, 3, 0)
    for execution in healthy:
        await world.until_status(execution, S.SUCCEEDED)

    async def told() -> bool:
        return bool(world.letters.arrived)

    await world.until(told)
    (letter,) = world.letters.arrived
    assert (letter.execution_id, letter.terminal_reason, letter.step_id) == (poison, "worker_lost", "begin")
    assert letter.worker is not None
    assert letter.worker.startswith("a")
    lost = [fact for fact in await world.facts(poison) if fact.type is FactType.LEASE_TAKEN_OVER]
    assert [fact.data["workerLosses"] for fact in lost] == [1, 2, 3]


async def _submitted(world: World, data: object) -> str:
    """Submits to whichever process lives."""
    while True:
        await trio.sleep(0.01)
        alive = [one for one in world.processes if not one.gate.dead]
        if alive:
            return (await alive[-1].submit(data)).execution_id


async def test_a26_recovery_depends_on_the_lease_of_the_execution_and_not_on_the_name_of_the_worker(
    world: World,
) -> None:
    world.load(slow_program(5))
    a = await world.start("pod-0")
    orphan = await claimed_by(world, a, batch(1, "orphan"))
    a.kill()
    # It comes back under the same name at once and keeps renewing other leases.
    again = await world.start("pod-0")
    other = await again.submit(batch(2, "other"))
    record = await world.until_status(orphan, S.SUCCEEDED, within_s=TAKEOVER_S + 10)
    assert (record.fence, record.worker_losses) == (2, 1)
    await world.until_status(other.execution_id, S.SUCCEEDED)


async def test_a_cancelled_execution_stops_its_attempt(world: World) -> None:
    world.load(slow_program(10_000))
    a = await world.start("a")
    execution = await claimed_by(world, a, batch(1))
    await a.cancel(execution)
    await trio.sleep(LEASE_S)
    assert a.running() == []
    assert (await world.execution(execution)).status is S.CANCELLED


async def test_claims_take_no_more_than_there_are_places(world: World) -> None:
    now = most = 0

    async def counted(row: Row) -> Line:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1
        return quick_line(row)

    world.load(program(BEGIN + service("counted", "Row", "Line"), {"begin": begin, "counted": counted}))
    a = world.build("a", max_in_flight=3)
    done = [await a.submit(batch(number)) for number in range(30)]
    await world.nursery.start(a.run)
    await world.start("b", max_in_flight=2)
    for one in done:
        record = await world.until_status(one.execution_id, S.SUCCEEDED)
        assert record.fence == 1, "each was claimed once"
    assert most == 5


async def test_nobody_touches_an_execution_of_a_pipeline_it_has_not_loaded(world: World) -> None:
    last = service("quick_line", "Row", "Line", more=INLINE)
    here = program(BEGIN + last, {"begin": begin, "quick_line": quick_line})
    there = program(PARSE + last, {"parse": parse, "quick_line": quick_line}, name="There")
    a = await world.start("a", programs={here.pipeline_id: here}, max_in_flight=2)
    b = world.build("b", programs={there.pipeline_id: there})
    foreign = [await b.submit(batch(1)) for _ in range(10)]
    own = await a.submit(batch(1))
    await world.until_status(own.execution_id, S.SUCCEEDED, within_s=10)
    await trio.sleep(100)
    for one in foreign:
        record = await world.execution(one.execution_id)
        assert (record.status, record.fence) == (S.QUEUED, 0)
    await world.nursery.start(b.run)
    for one in foreign:
        await world.until_status(one.execution_id, S.SUCCEEDED)
