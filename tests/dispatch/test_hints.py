"""Work over hints: who runs what a message names, what becomes of the message, and what the sweep is left with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
from attrs import define, field

from tests.dispatch.fake_sqs import refusal
from tests.dispatch.hinted import HintedWorld
from tests.engine.expected import Expected
from tests.engine.gate import Gate, When
from tests.engine.observed import ObservedStore
from tests.engine.pipelines import BEGIN, Line, Row, batch, begin, program, service
from tests.engine.world import POLICY, TENANT, Lost, S
from tpfd.core.hinting import Hint
from tpfd.core.kinds import EXECUTION_DUE
from tpfd.core.records import ExecutionId
from tpfd.dispatch.sqs_work import decode_hint, encode_hint
from tpfd.engine import claims
from tpfd.engine.hints import HintSender
from tpfd.errors import RetryableStepError
from tpfd.program import Program

NOBODY = ExecutionId("")


def stepping(seconds: float, ran: list[str] | None = None, fail_count: int = 0) -> Program:
    """One step that takes a while, after it has failed some times."""
    left = fail_count

    async def step(row: Row) -> Line:
        nonlocal left
        if ran is not None:
            ran.append(row.text)
        await trio.sleep(seconds)
        if left:
            left -= 1
            raise RetryableStepError("not yet")
        return Line(row.number, row.text)

    return program(BEGIN + service("slow", "Row", "Line"), {"begin": begin, "slow": step})


async def test_what_one_submits_another_may_run_and_the_message_is_deleted(world: HintedWorld) -> None:
    world.load(stepping(1))
    a = await world.start("a", max_in_flight=1)
    b = await world.start("b", max_in_flight=1)
    done = [await a.submit(batch(1)) for _ in range(2)]
    await trio.sleep(0.5)
    assert (len(a.running()), len(b.running())) == (1, 1)
    for one in done:
        record = await world.until_status(one.execution_id, S.SUCCEEDED)
        assert record.fence == 1
    await trio.sleep(1)
    assert world.sqs.stored == {}


@pytest.fixture
def due_queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each look at the due index of executions."""
    queries: list[str] = []
    real = ObservedStore.query

    async def counted(self: ObservedStore, index: object, *args: object, **named: object) -> object:
        if index is EXECUTION_DUE and args[0] == "due":
            queries.append("due")
        return await real(self, index, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ObservedStore, "query", counted)
    return queries


async def test_a_claim_by_hint_asks_the_due_index_for_nothing(world: HintedWorld, due_queries: list[str]) -> None:
    world.load(stepping(0.01))
    a = await world.start("a")
    await trio.sleep(1)
    due_queries.clear()
    for _ in range(50):
        done = await a.submit(batch(1))
        await world.until_status(done.execution_id, S.SUCCEEDED)
    # Fifty submits ring the bell of work two hundred times; the sweep looks every few seconds, twice each time.
    assert len(due_queries) <= 4


async def test_while_hints_are_on_their_way_the_due_index_is_looked_at_seldom(
    world: HintedWorld, due_queries: list[str]
) -> None:
    world.load(stepping(0.01))
    world.sqs.slow_s = claims.HINT_PATIENCE_MS / 1000 - 1
    a = await world.start("a")
    for _ in range(100):
        await a.submit(batch(1))
        await trio.sleep(0.5)
    looks = 50 / (claims.HINT_PATIENCE_MS / 1000)
    assert len(due_queries) <= 2 * (looks + 2)


async def test_a05_a_step_longer_than_the_visibility_runs_once_and_its_message_is_deleted_once(
    world: HintedWorld,
) -> None:
    ran: list[str] = []
    world.visibility_s = 2
    world.load(stepping(7, ran))
    a = await world.start("a")
    await world.start("b")
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.SUCCEEDED)
    await trio.sleep(3)
    assert (len(ran), record.fence) == (1, 1)
    assert world.sqs.deleted == ["m0"]
    assert [operation for operation, _ in world.sqs.log].count("hide") >= 7


async def test_a05_the_message_of_a_killed_worker_is_back_in_time(world: HintedWorld) -> None:
    world.visibility_s = 2
    world.load(stepping(7))
    a = await world.start("a")
    done = await a.submit(batch(1))
    await trio.sleep(3.5)
    assert a.running() == [done.execution_id]
    assert world.sqs.shown() == []
    a.kill()
    await trio.sleep(2.0)
    assert [decode_hint(one.body).execution_id for one in world.sqs.shown()] == [done.execution_id]
    # Its lease is still running: the hint is taken and dropped, the sweep takes over when the lease has run out.
    await world.start("b")
    await trio.sleep(0.5)
    assert world.sqs.stored == {}
    record = await world.until_status(done.execution_id, S.SUCCEEDED, within_s=POLICY.lease_ms / 1000 * 3)
    assert (record.worker_losses, record.fence) == (1, 2)


async def test_no_more_is_received_than_there_are_free_places(world: HintedWorld) -> None:
    world.load(stepping(5))
    a = await world.start("a", max_in_flight=3)
    for _ in range(10):
        await a.submit(batch(1))
    await trio.sleep(1)
    assert len(a.running()) == 3
    assert sum(count > 0 for count in world.sqs.receive_counts()) == 3
    assert max(count for operation, count in world.sqs.log if operation == "receive") == 3


async def test_a_retry_is_hinted_for_its_time(world: HintedWorld) -> None:
    world.load(stepping(0.1, fail_count=1))
    a = await world.start("a", sweep_interval_ms=3_600_000)
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.WAIT_RETRY)
    await trio.sleep(1)
    (retry,) = world.sqs.stored.values()
    assert record.next_check_epoch_ms is not None
    due_in_s = (record.next_check_epoch_ms - a.runtime.now()) / 1000
    assert due_in_s <= retry.shown_at - trio.current_time() <= due_in_s + 1
    assert (await world.until_status(done.execution_id, S.SUCCEEDED)).attempt == 1


async def test_a_hint_that_comes_before_its_time_waits_for_it(world: HintedWorld) -> None:
    world.load(stepping(0.1, fail_count=1))
    a = await world.start("a")
    done = await a.submit(batch(1))
    record = await world.until_status(done.execution_id, S.WAIT_RETRY)
    await trio.sleep(1)
    (retry,) = world.sqs.stored.values()
    retry.shown_at = trio.current_time()
    await trio.sleep(1)
    assert record.next_check_epoch_ms is not None
    due_in_s = (record.next_check_epoch_ms - a.runtime.now()) / 1000
    assert len(retry.receipts) == 1
    assert list(world.sqs.stored.values()) == [retry]
    assert retry.shown_at - trio.current_time() >= due_in_s


async def test_hints_of_what_has_ended_runs_or_is_unknown_are_deleted(world: HintedWorld) -> None:
    world.load(stepping(3))
    a = await world.start("a")
    done = await a.submit(batch(1))
    await trio.sleep(1)
    version = (await world.execution(done.execution_id)).version
    for execution_id in (done.execution_id, done.execution_id, ExecutionId("nobody")):
        world.sqs.put(encode_hint(Hint(TENANT, execution_id)))
    await trio.sleep(1)
    assert len(world.sqs.stored) == 1
    assert (await world.execution(done.execution_id)).version == version
    await world.until_status(done.execution_id, S.SUCCEEDED)
    world.sqs.put(encode_hint(Hint(TENANT, done.execution_id)))
    await trio.sleep(1)
    assert world.sqs.stored == {}


async def test_a_message_that_is_no_hint_is_told_of_and_deleted(world: HintedWorld, expected: Expected) -> None:
    expected.error("work_message_unreadable")
    await world.start("a")
    long = encode_hint(Hint(TENANT, ExecutionId("e" * 201)))
    bodies = ("{", "[]", '{"tenantId": 1, "executionId": "x"}', '{"tenantId": "t"}', encode_hint(Hint(TENANT, NOBODY)))
    for body in (*bodies, long, "\x00" * 500):
        world.sqs.put(body)
    await trio.sleep(1)
    assert world.sqs.stored == {}
    told = expected.logged("work_message_unreadable")
    assert [one["message_id"] for one in told] == [f"m{number}" for number in range(7)]
    assert told[6]["size_chars"] == 500


async def test_what_hints_left_lying_is_swept(world: HintedWorld, expected: Expected) -> None:
    expected.error("work_hints_failed")
    world.load(stepping(0.1))
    a = await world.start("a")
    await trio.sleep(1)
    world.sqs.entry_failure = lambda operation, entry: (
        {"Code": "InvalidMessageContents", "SenderFault": True} if operation == "send" else None
    )
    done = [await a.submit(batch(1)) for _ in range(3)]
    await trio.sleep(claims.HINT_PATIENCE_MS / 1000 - 1)
    assert {(await world.execution(one.execution_id)).status for one in done} == {S.QUEUED}
    assert "work hints not sent" in a.runtime.trouble["work_hints"]
    assert len(expected.logged("work_hints_failed")) == 1
    for one in done:
        await world.until_status(one.execution_id, S.SUCCEEDED, within_s=60)


async def test_a29_an_expired_token_is_got_over(world: HintedWorld, expected: Expected) -> None:
    expected.error("work_queue_failed", "work_hints_failed")
    world.load(stepping(0.1))
    a = await world.start("a")
    clients = world.sqs.credentials_made
    for failing_s in (3, 600):
        world.sqs.failing = refusal("ExpiredToken")
        submitted = await a.submit(batch(1))
        await trio.sleep(failing_s)
        assert "credentials" in a.runtime.trouble["work_queue"]
        assert "ExpiredToken" in a.runtime.trouble["work_queue"]
        world.sqs.failing = None
        record = await world.until_status(submitted.execution_id, S.SUCCEEDED, within_s=60)
        assert record.fence == 1
        await trio.sleep(60)
        assert a.runtime.trouble == {}, "and by itself: a process that is not ready is given no work to try with"
    assert world.sqs.credentials_made > clients
    assert len(expected.logged("work_queue_failed")) < 20


async def test_while_the_store_is_away_hints_come_back(world: HintedWorld, expected: Expected) -> None:
    expected.error("claim_failed", "work_queue_failed", "sweep_failed", "tidying_failed")
    world.load(stepping(0.1))
    a = await world.start("a", max_in_flight=0)
    b = await world.start("b", sweep_interval_ms=3_600_000)
    await trio.sleep(1)
    b.gate.failing = "the store is away"
    done = [await a.submit(batch(1)) for _ in range(10)]
    await trio.sleep(60)
    assert len(world.sqs.stored) == 10
    assert min(world.sqs.receive_counts()) >= 1
    assert b.runtime.trouble["work_queue"] == "the store is away"
    b.gate.failing = None
    for one in done:
        await world.until_status(one.execution_id, S.SUCCEEDED, within_s=60)


async def test_a_drain_gives_back_what_an_open_receive_brings(world: HintedWorld) -> None:
    world.load(stepping(0.1))
    a = await world.start("a")
    await trio.sleep(1)
    a.draining.set()
    await trio.sleep(1)
    world.sqs.put(encode_hint(Hint(TENANT, ExecutionId("x"))))
    await a.ended.wait()
    assert a.hints is not None
    await a.hints.idle()
    await trio.sleep(1)
    (one,) = world.sqs.shown()
    assert len(one.receipts) == 1


async def test_a_drain_hands_running_work_on_at_once(world: HintedWorld) -> None:
    world.load(stepping(300))
    a = await world.start("a")
    done = await a.submit(batch(1))
    await trio.sleep(1)
    b = await world.start("b", sweep_interval_ms=3_600_000)
    a.grace_s = 1
    await a.drain()
    await trio.sleep(2)
    assert b.running() == [done.execution_id]
    record = await world.execution(done.execution_id)
    assert (record.worker_losses, record.attempt) == (0, 0)
    await trio.sleep(400)
    assert world.sqs.stored == {}


async def test_hints_of_pipelines_that_are_not_loaded_here_are_left_to_others(world: HintedWorld) -> None:
    a = await world.start("a", programs={})
    mine = stepping(0.1)
    b = await world.start("b", programs={mine.pipeline_id: mine}, max_in_flight=1)
    done = [await b.submit(batch(1)) for _ in range(5)]
    for one in done:
        await world.until_status(one.execution_id, S.SUCCEEDED, within_s=120)
    assert a.running() == []


async def test_more_hints_than_can_wait_are_left_to_the_sweep(
    world: HintedWorld, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected.error("work_hints_overflow")
    monkeypatch.setattr("tpfd.engine.hints.MAX_WAITING", 0)
    world.load(stepping(0.1))
    a = await world.start("a")
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=60)
    assert [operation for operation, _ in world.sqs.log if operation == "send"] == []


@define(eq=False)
class BusyQueue:
    """Takes nothing as long as it is busy, and says nothing either."""

    busy: bool = True
    taken: list[Hint] = field(factory=list)
    longest_delay_ms: int = 900_000

    async def send(self, hints: Sequence[tuple[Hint, int]]) -> Sequence[str]:
        if self.busy:
            await trio.sleep_forever()
        self.taken.extend(hint for hint, _ in hints)
        return []


async def test_what_is_being_sent_when_a_drain_ends_is_sent_with_the_last_word(world: HintedWorld) -> None:
    world.load(stepping(0.1))
    a = await world.start("a", max_in_flight=0)
    done = await a.submit(batch(1))
    queue = BusyQueue()
    sender = HintSender(runtime=a.runtime, queue=queue)  # type: ignore[arg-type]
    sender.offer(await world.execution(done.execution_id))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        await trio.sleep(1)
        queue.busy = False
        nursery.cancel_scope.cancel("the process has drained")
    assert queue.taken == [Hint(TENANT, done.execution_id)]


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("effect", range(1, 7))
async def test_wherever_a_process_dies_its_work_ends_and_the_queue_is_empty(
    world: HintedWorld, effect: int, when: When
) -> None:
    world.load(stepping(0.5, fail_count=1))
    a = await world.start("a", gate=Gate("a", crash_at=(effect, when)))
    submitted = []
    with suppress(Lost):
        submitted = [await a.submit(batch(1)) for _ in range(3)]
    await trio.sleep(20)
    await world.start("b")
    for one in submitted:
        await world.until_status(one.execution_id, S.SUCCEEDED, within_s=300)
    await trio.sleep(world.visibility_s + 5)
    assert world.sqs.stored == {}
    assert a.gate.dead
