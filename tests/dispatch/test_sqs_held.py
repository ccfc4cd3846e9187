"""Messages in flight: kept hidden, deleted in batches, given back at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.dispatch.fake_sqs import FakeSqs, queue_over, refusal
from tests.engine.expected import Expected
from tpfd.aws.sqs_held import LAST_WORD_S, HeldMessages


@asynccontextmanager
async def holding(service: FakeSqs, *, visibility_s: int = 30) -> AsyncIterator[HeldMessages]:
    held = HeldMessages(name="work", queue=queue_over(service), visibility_s=visibility_s, trouble={})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.run)
        yield held
        nursery.cancel_scope.cancel("the test is over")


async def test_what_is_done_together_is_deleted_together() -> None:
    service = FakeSqs()
    for number in range(25):
        service.put(str(number))
    async with holding(service) as held:
        messages = [one for _ in range(3) for one in await held.receive(10, 20)]
        for message in messages:
            held.done(message)
            held.done(message)
        assert held.held_count == 0
        await trio.sleep(1)
        assert service.stored == {}
    assert sorted(count for operation, count in service.log if operation == "delete") == [5, 10, 10]


async def test_what_is_worked_on_stays_hidden_for_as_long_as_it_takes() -> None:
    service = FakeSqs()
    for number in range(12):
        service.put(str(number))
    async with holding(service, visibility_s=2) as held:
        messages = [one for _ in range(2) for one in await held.receive(10, 20)]
        for _ in range(700):
            await trio.sleep(0.1)
            assert service.shown() == []
        held.show(messages[0])
        await trio.sleep(1)
        assert [one.message_id for one in service.shown()] == [messages[0].message_id]


async def test_a_message_is_shown_again_after_the_time_that_was_said() -> None:
    service = FakeSqs()
    service.put("a")
    async with holding(service) as held:
        (message,) = await held.receive(10, 20)
        held.show(message, 100)
        await trio.sleep(99)
        assert service.shown() == []
        await trio.sleep(2)
        assert len(service.shown()) == 1


async def test_while_the_service_is_away_nothing_is_forgotten(expected: Expected) -> None:
    expected.error("work_settle_failed", "work_extend_failed")
    service = FakeSqs()
    service.put("done")
    service.put("shown")
    async with holding(service, visibility_s=300) as held:
        first, second = await held.receive(10, 20)
        service.failing = refusal("ServiceUnavailable")
        held.done(first)
        held.show(second)
        await trio.sleep(120)
        assert "ServiceUnavailable" in held.trouble["work_settle"]
        service.failing = None
        await trio.sleep(15)
        assert [one.body for one in service.shown()] == ["shown"]
        assert len(service.stored) == 1
        await trio.sleep(120)
        assert held.trouble == {}


@pytest.mark.parametrize("away", [False, True])
async def test_at_the_end_what_is_done_is_deleted_and_the_rest_given_back(away: bool, expected: Expected) -> None:
    expected.error("work_settle_failed")
    service = FakeSqs()
    for number in range(3):
        service.put(str(number))
    async with holding(service) as held:
        messages = await held.receive(10, 20)
        held.done(messages[0])
        if away:
            service.failing = refusal("ServiceUnavailable")
        began = trio.current_time()
    assert trio.current_time() - began <= LAST_WORD_S
    assert [one.body for one in service.shown()] == ([] if away else ["1", "2"])
    assert len(service.stored) == (3 if away else 2)


async def test_what_an_open_receive_brings_after_a_cancel_is_shown_again(nursery: trio.Nursery) -> None:
    service = FakeSqs()
    queue = queue_over(service, waited_out=True)
    held = HeldMessages(name="work", queue=queue, visibility_s=300, trouble={})
    reading = trio.CancelScope()

    async def read() -> None:
        with reading:
            async with held.kept():
                while True:
                    await held.receive(10, 20)

    nursery.start_soon(read)
    await trio.sleep(1)
    reading.cancel("drain")
    await trio.sleep(1)
    service.put("late")
    await trio.sleep(5)
    (one,) = service.shown()
    assert len(one.receipts) == 1


async def test_extending_that_fails_is_told_seldom_while_deleting_works(expected: Expected) -> None:
    expected.error("work_extend_failed")
    service = FakeSqs()
    service.entry_failure = lambda operation, _: (
        {"Code": "InternalError", "SenderFault": False} if operation == "hide" else None
    )
    async with holding(service, visibility_s=3) as held:
        held.queue.within_s = 0.1
        for number in range(60):
            service.put(str(number))
            (message, *_) = await held.receive(10, 20)
            await trio.sleep(1)
            held.done(message)
        assert held.trouble["work_extend"] == "1 messages could not be kept hidden for now"
    assert 1 <= len(expected.logged("work_extend_failed")) <= 4
