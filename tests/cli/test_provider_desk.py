"""The desk: bounded, paced, and nothing leaves it unacknowledged. On virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.cli.provider_double import request_message
from tpfd.examples.provider.decision import Manners, Mishap, Request
from tpfd.examples.provider.desk import Desk

NOW_EPOCH_MS = 1_700_000_000_000


def request(number: int, deadline_epoch_ms: int = NOW_EPOCH_MS + 300_000) -> Request:
    return Request.from_message(request_message(number, deadlineEpochMs=deadline_epoch_ms))


async def put(desk: Desk, *numbers: int, mishap: Mishap = Mishap.NONE) -> None:
    for number in numbers:
        await desk.put(request(number), mishap, now_s=trio.current_time(), now_epoch_ms=NOW_EPOCH_MS)


def numbers(desk: Desk) -> list[str]:
    return [entry.request.record["csvId"] for entry in desk.take_due(trio.current_time(), 256)]


async def test_an_answer_is_due_after_the_latency_and_not_before(autojump_clock: MockClock) -> None:
    desk = Desk(10, Manners(latency_s=5))
    await put(desk, 1)
    began = trio.current_time()
    assert numbers(desk) == []
    assert await desk.next_due()
    assert trio.current_time() - began == pytest.approx(5)
    assert numbers(desk) == ["1"]


async def test_permits_spread_the_answers(autojump_clock: MockClock) -> None:
    desk = Desk(10, Manners(latency_s=1, permits_per_second=2))
    began = trio.current_time()
    await put(desk, 1, 2, 3)
    due_after = []
    for _ in range(3):
        assert await desk.next_due()
        assert len(numbers(desk)) == 1
        due_after.append(trio.current_time() - began)
    assert due_after == pytest.approx([1.5, 2.0, 2.5])


async def test_what_is_due_together_leaves_in_the_order_of_its_arrival_and_not_more_than_asked_for() -> None:
    desk = Desk(10, Manners())
    await put(desk, 3, 1, 2)
    assert [entry.request.record["csvId"] for entry in desk.take_due(trio.current_time(), 2)] == ["3", "1"]
    assert numbers(desk) == ["2"]


async def test_a_late_answer_is_due_a_second_after_the_deadline_and_holds_up_nobody(autojump_clock: MockClock) -> None:
    desk = Desk(10, Manners(latency_s=1))
    began = trio.current_time()
    late = request(1, NOW_EPOCH_MS + 60_000)
    await desk.put(late, Mishap.LATE, now_s=began, now_epoch_ms=NOW_EPOCH_MS)
    await put(desk, 2)
    assert await desk.next_due()
    assert numbers(desk) == ["2"]
    assert await desk.next_due()
    assert trio.current_time() - began == pytest.approx(61)


async def test_an_earlier_answer_wakes_the_one_who_waits_for_a_later(autojump_clock: MockClock) -> None:
    desk = Desk(10, Manners(latency_s=1))
    await desk.put(request(1), Mishap.LATE, now_s=trio.current_time(), now_epoch_ms=NOW_EPOCH_MS)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.next_due)
        await wait_all_tasks_blocked()
        await put(desk, 2)
    assert trio.current_time() - began == pytest.approx(1)


async def test_a_full_desk_stops_the_reader_until_an_answer_is_acknowledged() -> None:
    desk = Desk(2, Manners())
    await put(desk, 1, 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, desk, 3)
        await wait_all_tasks_blocked()
        assert len(desk) == 2
        assert numbers(desk) == ["1", "2"]  # answered, and still in hand
        await wait_all_tasks_blocked()
        assert len(desk) == 2
        desk.settle([request(1).interaction_id])
    assert numbers(desk) == ["3"]


async def test_an_answer_that_is_never_given_frees_its_place_at_once() -> None:
    desk = Desk(1, Manners())
    await put(desk, 1, mishap=Mishap.DROP)
    assert numbers(desk) == ["1"]
    assert len(desk) == 0


async def test_a_closed_desk_is_done_when_the_last_answer_is_acknowledged() -> None:
    desk = Desk(10, Manners())
    await put(desk, 1)
    desk.close()
    assert await desk.next_due()
    assert numbers(desk) == ["1"]
    done: list[bool] = []

    async def wait() -> None:
        done.append(await desk.next_due())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert done == []
        desk.settle([request(1).interaction_id])
    assert done == [False]


async def test_an_answer_put_back_comes_again_after_longer_and_longer_pauses(autojump_clock: MockClock) -> None:
    desk = Desk(10, Manners())
    await put(desk, 1)
    assert numbers(desk) == ["1"]
    pauses_s, repeats = [], []
    for _ in range(7):
        began = trio.current_time()
        desk.put_back(request(1).interaction_id, began)
        assert await desk.next_due()
        pauses_s.append(trio.current_time() - began)
        repeats += [entry.repeats for entry in desk.take_due(trio.current_time(), 1)]
    assert pauses_s == pytest.approx([1, 2, 4, 8, 16, 30, 30])
    assert repeats == [1, 2, 3, 4, 5, 6, 7]


async def test_what_nobody_knows_is_neither_settled_nor_put_back() -> None:
    desk = Desk(10, Manners())
    desk.settle(["unknown"])
    desk.put_back("unknown", 0)
    assert len(desk) == 0
