"""Sending webhooks on virtual time: every request out, with the same ids however often, and nothing lost in between."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio

from tests.engine.expected import Expected
from tests.engine.gate import Gate, When
from tests.engine.pipelines import batch
from tests.engine.world import START_EPOCH_MS, TENANT, Lost, World
from tests.transports.outside import KEY, Asked, Outside, Sending, scalar, start, stream
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import ExecutionStatus, FactType, InteractionStatus, TerminalReason
from tpfd.core.tokens import SigningKey
from tpfd.errors import Conflict, TokenRejected
from tpfd.http.service import SubmitItem
from tpfd.transports.webhook import LEASE_MARGIN_MS, MAX_CONCURRENCY, STEADY_COUNT
from tpfd.transports.webhook_replies import Never, NotNow, Reply, Taken

S = ExecutionStatus
FAILED_QUIETLY = "webhook_not_taken"


async def submitted(sending: Sending, count: int = 1) -> str:
    return (await sending.process.submit(batch(count))).execution_id


def answering(outside: Outside, *through: Sending) -> None:
    """The other side answers every request from within the request call."""

    async def say(asked: Asked) -> Reply:
        for sending in through:
            if not sending.process.gate.dead:
                await sending.process.complete(asked.interaction_id, asked.answer)
                return Taken()
        raise AssertionError("nobody is there")

    outside.say = say


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


def refusing(outside: Outside, *replies: Reply) -> None:
    """Says these in order, then takes everything."""
    left = list(replies)

    async def say(_asked: Asked) -> Reply:
        return left.pop(0) if left else Taken()

    outside.say = say


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


# ── never ──


async def test_what_can_never_be_sent_fails_its_execution_with_the_reason(world: World, expected: Expected) -> None:
    expected.error("webhook_given_up")
    world.load(scalar())
    outside = Outside()
    refusing(outside, Never("pay answered 410"))
    sending = await start(world, outside)
    execution = await submitted(sending)
    ended = await world.until_status(execution, S.FAILED, within_s=2)
    assert (ended.terminal_reason, ended.error_message) == (TerminalReason.AWAIT_FAILED, "pay answered 410")
    assert (await world.interaction(outside.ids[0])).status is InteractionStatus.FAILED
    facts = [fact for fact in await world.facts(execution) if fact.type is FactType.DISPATCH_FAILED]
    assert [fact.data["message"] for fact in facts] == ["pay answered 410"]
    await world.until(_letters(world, 1), within_s=5)
    with pytest.raises(Conflict):
        await sending.process.complete(outside.ids[0], outside.asked[0].answer)


@pytest.mark.parametrize("place", [0, 7, 39])
async def test_one_row_that_can_never_be_sent_ends_all_and_leaves_nothing_open(
    world: World, expected: Expected, place: int
) -> None:
    expected.error("webhook_given_up")
    world.load(stream())
    outside = Outside(latency_s=0.5)

    async def say(asked: Asked) -> Reply:
        bad = asked.envelope["requestPayload"]["number"] == place
        return Never("pay answered 422") if bad else Taken()

    outside.say = say
    sending = await start(world, outside)
    execution = await submitted(sending, 40)
    ended = await world.until_status(execution, S.FAILED, within_s=60)
    assert ended.terminal_reason is TerminalReason.AWAIT_FAILED
    await world.until(_nothing_open(world), within_s=60)
    asked = len(outside.asked)
    await trio.sleep(600)
    assert len(outside.asked) == asked, "an ended execution asks nothing more"
    assert not world.disk.objects


async def test_a_re_drive_asks_again_under_the_same_key(world: World, expected: Expected) -> None:
    expected.error("webhook_given_up")
    world.load(scalar())
    outside = Outside()
    refusing(outside, Never("pay answered 404"))
    sending = await start(world, outside)
    execution = await submitted(sending)
    ended = await world.until_status(execution, S.FAILED, within_s=2)
    await world.until(_nothing_open(world), within_s=60)
    answering(outside, sending)
    await sending.process.redrive(await world.execution(ended.execution_id))
    await world.until_status(execution, S.SUCCEEDED, within_s=60)
    assert len(set(outside.ids)) == 1
    assert len({one.headers["idempotency-key"] for one in outside.asked}) == 1


# ── crashes, drains, trouble ──


async def test_a_crash_between_taking_and_noting_is_healed_by_the_lease(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)

    async def die(_asked: Asked) -> Reply:
        sending.process.kill()
        return Taken()

    outside.say = die
    execution = await submitted(sending)
    await outside.until_asked(1)
    other = await start(world, outside, "b")
    answering(outside, other)
    await world.until_status(execution, S.SUCCEEDED, within_s=120)
    first, again = outside.asked
    lease_s = (30_000 + LEASE_MARGIN_MS) / 1000
    assert lease_s <= again.at_s - first.at_s < lease_s + 1, "as soon as the lease is over"
    assert first.interaction_id == again.interaction_id
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("number", range(1, 41))
async def test_a_crash_around_any_effect_loses_nothing(world: World, when: When, number: int) -> None:
    world.load(stream())
    outside = Outside(latency_s=0.01)
    gate = Gate("a")
    processes = [await start(world, outside, "a", gate=gate, concurrency=3)]

    async def answer(asked: Asked) -> None:
        """Until somebody takes it."""
        while True:
            for sending in processes:
                with contextlib.suppress(Lost):
                    await sending.process.complete(asked.interaction_id, asked.answer)
                    return
            await trio.sleep(1)

    async def say(asked: Asked) -> Reply:
        world.nursery.start_soon(answer, asked)
        return Taken()

    outside.say = say
    execution = await submitted(processes[0], 6)
    before = len(gate.effects)
    gate.crash_at = (before + number, when)
    await trio.sleep(2)
    assert gate.dead or len(gate.effects) < before + number
    processes.append(await start(world, outside, "b", concurrency=3))
    await world.until_status(execution, S.SUCCEEDED)
    assert set(outside.ids) == {f"{execution}.s001.{index:09d}" for index in range(6)}
    assert max(Counter(outside.ids).values()) <= 2
    (key,) = world.disk.objects
    assert world.disk.lines(key) == [f"{index},ok row-{index}" for index in range(6)]


async def test_a_drain_takes_nothing_more_and_finishes_what_is_on_its_way(world: World) -> None:
    world.load(stream())
    outside = Outside(latency_s=5)
    sending = await start(world, outside, concurrency=4)
    await submitted(sending, 20)
    await outside.until_asked(4)
    sending.intake.cancel("drain")
    with trio.fail_after(5.5):
        await sending.sender.idle()
    assert len(outside.asked) == 4
    sent = [record for record in world.observed.rows(INTERACTION) if record.status is InteractionStatus.DISPATCHED]
    assert len(sent) == 4


async def test_a_store_that_is_away_when_a_request_is_noted_costs_a_repeat_and_no_more(
    world: World, expected: Expected
) -> None:
    expected.error(
        "webhook_not_noted", "webhook_ask_failed", "sweep_failed", "claim_failed", "socket_renewal_failed",
        "renewal_failed", "lease_renewal_failed",
    )  # fmt: skip
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)

    async def say(_asked: Asked) -> Reply:
        sending.process.gate.failing = None if len(outside.asked) > 1 else "the disk is gone"
        return Taken()

    outside.say = say
    await submitted(sending)
    await outside.until_asked(1)
    await trio.sleep(3)
    sending.process.gate.failing = None
    await outside.until_asked(2, within_s=120)
    await trio.sleep(1)
    assert (await world.interaction(outside.ids[0])).status is InteractionStatus.DISPATCHED
    assert len(set(outside.ids)) == 1
    assert expected.logged("webhook_not_noted")
    assert "webhook_ask" not in sending.process.runtime.trouble


# ── A30: rotation ──


async def test_a30_a_token_made_with_the_old_secret_counts_while_it_is_listed(world: World) -> None:
    world.load(scalar(settings="correlation: {strategy: signedResumeToken}"))
    outside = Outside()
    new = SigningKey("k2", b"second secret of the webhooks")
    before = await start(world, outside, "before", keys=(KEY,))
    execution, other = await submitted(before), await submitted(before)
    await outside.until_asked(2)
    tokens = {one.envelope["executionId"]: (one.interaction_id, one.envelope["resumeToken"]) for one in outside.asked}
    before.process.kill()
    during = await start(world, outside, "during", keys=(new, KEY))
    interaction, token = tokens[execution]
    await during.process.complete(interaction, outside.asked[0].answer, token=token)
    await world.until_status(execution, S.SUCCEEDED, within_s=5)
    third = await submitted(during)
    await outside.until_asked(3)
    during.process.kill()
    after = await start(world, outside, "after", keys=(new,))
    interaction, token = tokens[other]
    with pytest.raises(TokenRejected):
        await after.process.complete(interaction, outside.asked[0].answer, token=token)
    assert (await world.execution(other)).status is S.WAITING_EXTERNAL
    made_later = outside.asked[2]
    assert made_later.envelope["executionId"] == third
    await after.process.complete(
        made_later.interaction_id, made_later.answer, token=made_later.envelope["resumeToken"]
    )
    await world.until_status(third, S.SUCCEEDED, within_s=5)


async def test_a_new_key_signs_from_the_next_request_on(world: World) -> None:
    world.load(scalar())
    outside = Outside()
    sending = await start(world, outside)
    await submitted(sending)
    await outside.until_asked(1)
    sending.process.sockets.envelopes.key = None
    await submitted(sending)
    await outside.until_asked(2)
    assert [one.envelope["resumeToken"] is None for one in outside.asked] == [False, True]
    assert ["x-tpf-webhook-signature" in one.headers for one in outside.asked] == [True, False]


def _letters(world: World, count: int) -> Callable[[], Awaitable[bool]]:
    async def arrived() -> bool:
        return len(world.letters.arrived) == count

    return arrived


def _nothing_open(world: World) -> Callable[[], Awaitable[bool]]:
    async def closed() -> bool:
        return not any(record.status.open for record in world.observed.rows(INTERACTION))

    return closed
