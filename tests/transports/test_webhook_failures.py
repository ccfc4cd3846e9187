"""Webhooks that can never be sent, processes that die in between, secrets that change."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
import trio

from tests.engine.expected import Expected
from tests.engine.gate import Gate, When
from tests.engine.world import Lost, World
from tests.transports.outside import (
    KEY,
    Asked,
    Outside,
    answering,
    letters,
    nothing_open,
    refusing,
    scalar,
    start,
    stream,
    submitted,
)
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import ExecutionStatus, FactType, InteractionStatus, TerminalReason
from tpfd.core.tokens import SigningKey
from tpfd.errors import Conflict, TokenRejected
from tpfd.transports.webhook import LEASE_MARGIN_MS
from tpfd.transports.webhook_replies import Never, Reply, Taken

S = ExecutionStatus


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
    await world.until(letters(world, 1), within_s=5)
    with pytest.raises(Conflict):
        await sending.process.complete(outside.ids[0], outside.asked[0].answer)


@pytest.mark.parametrize("place", [0, 7, 39])
async def test_one_row_that_can_never_be_sent_ends_all_and_leavesnothing_open(
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
    await world.until(nothing_open(world), within_s=60)
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
    await world.until(nothing_open(world), within_s=60)
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
        "tidying_failed", "renewal_failed", "lease_renewal_failed",
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
