"""Sending webhooks on virtual time: every request out, with the same ids however often, and nothing lost in between."""

from __future__ import annotations

import itertools
from collections import Counter

import trio

from tests.engine.expected import Expected
from tests.engine.pipelines import batch
from tests.engine.world import START_EPOCH_MS, TENANT, World
from tests.transports.outside import Asked, Outside, answering, refusing, scalar, start, stream, submitted
from tpfd.core.records import ExecutionStatus, InteractionStatus, TerminalReason
from tpfd.http.service import SubmitItem
from tpfd.transports.webhook import MAX_CONCURRENCY, STEADY_COUNT
from tpfd.transports.webhook_replies import NotNow, Reply, Taken

S = ExecutionStatus
FAILED_QUIETLY = "webhook_not_taken"


# ── the good road ──


async def test_a_question_is_sent_once_and_waits_for_its_answer(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)
    execution = await submitted(sending)
    await outside.until_asked(1)
    await trio.sleep(120)
    (asked,) = outside.asked
    interaction = await world.interaction(asked.interaction_id)
    assert (interaction.status, interaction.send_count) == (InteractionStatus.DISPATCHED, 1)
    assert interaction.dispatch_due_epoch_ms is None
    assert asked.headers["idempotency-key"] == interaction.idempotency_key
    assert asked.envelope["executionId"] == execution
    await sending.process.complete(asked.interaction_id, asked.answer, token=asked.envelope["resumeToken"])
    await world.until_status(execution, S.SUCCEEDED, within_s=1)
    assert len(outside.asked) == 1


async def test_a_request_is_sent_at_once_and_not_only_at_the_next_look(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)
    await trio.sleep(0.3)
    began = trio.current_time()
    await submitted(sending)
    await outside.until_asked(1)
    assert outside.asked[0].at_s - began < 0.1


async def test_every_row_is_asked_once_and_all_come_out_in_order(world: World) -> None:
    world.load(stream())
    outside = Outside(latency_s=0.02)
    sending = await start(world, outside, concurrency=8)
    answering(outside, sending)
    execution = await submitted(sending, 100)
    await world.until_status(execution, S.SUCCEEDED)
    assert set(Counter(outside.ids).values()) == {1}
    assert len(outside.asked) == 100
    assert outside.most_at_once == 8, "as many at once as the step allows, and no more"
    (key,) = world.disk.objects
    assert world.disk.lines(key) == [f"{number},ok row-{number}" for number in range(100)]


async def test_two_processes_share_the_queue(world: World) -> None:
    world.load(stream())
    one, two = Outside(latency_s=1), Outside(latency_s=1)
    first, second = await start(world, one, "a", concurrency=4), await start(world, two, "b", concurrency=4)
    answering(one, first)
    answering(two, second)
    execution = await submitted(first, 60)
    await world.until_status(execution, S.SUCCEEDED)
    assert set(Counter(one.ids + two.ids).values()) == {1}
    assert len(one.ids + two.ids) == 60
    assert min(len(one.ids), len(two.ids)) >= 20, "neither leaves it all to the other"


async def test_the_trace_goes_along(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    item = SubmitItem(input=batch(1), key=None, pipeline=None)
    await sending.process.coordinator.submit(TENANT, item, trace_parent=trace)
    await outside.until_asked(1)
    assert outside.asked[0].headers["traceparent"] == trace


# ── A09: the answer is back before the request call is ──


async def test_a09_an_answer_inside_the_request_call_counts(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)
    answering(outside, sending)
    execution = await submitted(sending)
    await world.until_status(execution, S.SUCCEEDED, within_s=1)
    interaction = await world.interaction(outside.ids[0])
    assert interaction.status is InteractionStatus.COMPLETED, "noting that it was sent does not take that back"


async def test_a09_answers_before_the_execution_parks_are_kept(world: World) -> None:
    world.load(stream())
    outside = Outside()
    sending = await start(world, outside)
    parked = []

    async def say(asked: Asked) -> Reply:
        await sending.process.complete(asked.interaction_id, asked.answer)
        parked.append((await world.execution(execution)).status)
        return Taken()

    outside.say = say
    execution = await submitted(sending, 50)
    await world.until_status(execution, S.SUCCEEDED)
    assert S.RUNNING in parked, "some were answered while it was still asking"
    assert len(outside.asked) == 50


async def test_a09_an_answer_survives_a_crash_between_the_call_and_the_note(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)

    async def say(asked: Asked) -> Reply:
        await sending.process.complete(asked.interaction_id, asked.answer)
        sending.process.kill()
        return Taken()

    outside.say = say
    execution = await submitted(sending)
    await outside.until_asked(1)
    await start(world, outside, "b")
    await world.until_status(execution, S.SUCCEEDED, within_s=120)
    assert len(outside.asked) == 1, "what is answered is not asked again"


# ── not now ──


async def test_what_cannot_be_sent_now_is_sent_again_later_and_later_with_the_same_ids(
    world: World, expected: Expected
) -> None:
    expected.error(FAILED_QUIETLY)
    world.load(scalar())
    outside = Outside()
    refusing(outside, *[NotNow("pay answered 503")] * 3)
    sending = await start(world, outside)
    await submitted(sending)
    await outside.until_asked(1)
    await trio.sleep(1)
    waiting = await world.interaction(outside.ids[0])
    assert (waiting.status, waiting.error_message) == (InteractionStatus.DISPATCHING, "pay answered 503")
    await outside.until_asked(2)
    assert waiting.dispatch_due_epoch_ms is not None
    late_ms = START_EPOCH_MS + outside.asked[1].at_s * 1000 - waiting.dispatch_due_epoch_ms
    assert 0 <= late_ms < 100, "when it is due, not when somebody looks again"
    await outside.until_asked(4)
    times = [one.at_s for one in outside.asked]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    for gap, least_s in zip(gaps, (10, 20, 40), strict=True):  # the policy's delay, doubled, and at most a fifth more
        assert least_s <= gap <= least_s * 1.2 + 0.1
    assert len(set(outside.ids)) == 1
    assert len({one.headers["idempotency-key"] for one in outside.asked}) == 1
    assert len({one.headers["x-tpf-webhook-nonce"] for one in outside.asked}) == 4
    await trio.sleep(1)
    sent = await world.interaction(outside.ids[0])
    assert (sent.status, sent.error_message, sent.send_count) == (InteractionStatus.DISPATCHED, None, 4)


async def test_a07_retry_after_is_a_floor_and_the_spread_comes_on_top(world: World, expected: Expected) -> None:
    expected.error(FAILED_QUIETLY)
    world.load(stream())
    outside = Outside()
    sending = await start(world, outside, concurrency=MAX_CONCURRENCY)
    refused: set[str] = set()

    async def say(asked: Asked) -> Reply:
        if asked.interaction_id in refused:
            return Taken()
        refused.add(asked.interaction_id)
        return NotNow("pay answered 429", floor_ms=60_000)

    outside.say = say
    await submitted(sending, 100)
    await outside.until_asked(200)
    first = {one.interaction_id: one.at_s for one in outside.asked[:100]}
    gaps = [one.at_s - first[one.interaction_id] for one in outside.asked[100:]]
    assert all(60 <= gap <= 72.5 for gap in gaps)
    assert max(Counter(int(gap) for gap in gaps).values()) <= 20, "they do not come back together"


async def test_no_retry_after_reaches_beyond_the_deadline(world: World, expected: Expected) -> None:
    expected.error(FAILED_QUIETLY)
    world.load(scalar(timeout="PT1M"))
    outside = Outside()
    refusing(outside, NotNow("pay answered 503", floor_ms=86_400_000))
    sending = await start(world, outside)
    execution = await submitted(sending)
    await outside.until_asked(1)
    await trio.sleep(1)
    waiting = await world.interaction(outside.ids[0])
    assert waiting.dispatch_due_epoch_ms == waiting.deadline_epoch_ms
    ended = await world.until_status(execution, S.FAILED, within_s=62)
    assert ended.terminal_reason is TerminalReason.AWAIT_TIMEOUT
    assert len(outside.asked) == 1


async def test_the_other_side_failing_now_and_then_is_told_once_and_so_is_its_recovery(
    world: World, expected: Expected
) -> None:
    expected.error(FAILED_QUIETLY)
    world.load(stream())
    outside = Outside()
    refused: set[str] = set()

    async def every_second(asked: Asked) -> Reply:
        if asked.envelope["requestPayload"]["number"] % 2 or asked.interaction_id in refused:
            return Taken()
        refused.add(asked.interaction_id)
        return NotNow("pay answered 503")

    outside.say = every_second
    sending = await start(world, outside, concurrency=1)
    await submitted(sending, 4 * STEADY_COUNT)
    await outside.until_asked(4 * STEADY_COUNT)
    assert len(expected.logged(FAILED_QUIETLY)) == 1
    assert expected.logged("webhook_works_again") == [], "it still fails now and then"
    await outside.until_asked(6 * STEADY_COUNT)
    await trio.sleep(1)
    assert len(expected.logged(FAILED_QUIETLY)) == 1
    assert len(expected.logged("webhook_works_again")) == 1


async def test_others_are_not_held_up_by_one_that_waits(world: World, expected: Expected) -> None:
    expected.error(FAILED_QUIETLY)
    world.load(scalar())
    outside = Outside()
    refusing(outside, NotNow("pay answered 503", floor_ms=60_000))
    sending = await start(world, outside, concurrency=1)
    await submitted(sending)
    await outside.until_asked(1)
    await submitted(sending)
    await outside.until_asked(2, within_s=2)
