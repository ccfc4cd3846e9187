from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from tpfd.blocking import Blocking, Inline, Threads

DOORS: list[Blocking] = [Threads(2), Inline()]


@pytest.mark.parametrize("door", DOORS, ids=["threads", "inline"])
async def test_a_result_and_an_error_come_back(door: Blocking) -> None:
    assert await door.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await door.run(divmod, 7, 0)


@pytest.mark.parametrize("door", DOORS, ids=["threads", "inline"])
async def test_a_call_is_a_checkpoint(door: Blocking) -> None:
    with trio.testing.assert_checkpoints():
        await door.run(divmod, 7, 2)


@pytest.mark.parametrize("door", DOORS, ids=["threads", "inline"])
async def test_a_cancel_before_the_call_stops_it(door: Blocking) -> None:
    called: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await door.run(called.append, 1)
    assert scope.cancelled_caught
    assert called == []


async def test_threads_are_not_the_event_loop_and_are_limited() -> None:
    door = Threads(2)
    running = 0
    most = 0
    lock = threading.Lock()
    entered = threading.Semaphore(0)
    go = threading.Event()

    def call() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        entered.release()
        go.wait()
        with lock:
            running -= 1
        return threading.get_ident()

    seen: set[int] = set()

    async def run() -> None:
        seen.add(await door.run(call))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(run)
        for _ in range(2):
            await trio.to_thread.run_sync(entered.acquire)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert most == 2
    assert threading.get_ident() not in seen


async def test_a_running_call_is_waited_for_on_cancel() -> None:
    started = threading.Event()
    go = threading.Event()
    results: list[bool] = []

    def call() -> bool:
        started.set()
        return go.wait()

    async def run() -> None:
        results.append(await Threads(1).run(call))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.to_thread.run_sync(started.wait)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert results == []
        go.set()
    assert results == [True]


async def test_a_running_call_can_be_left_behind() -> None:
    started = threading.Event()
    go = threading.Event()

    def call() -> None:
        started.set()
        go.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Threads(1, abandon_on_cancel=True).run, call)
        await trio.to_thread.run_sync(started.wait)
        nursery.cancel_scope.cancel()
    assert not go.is_set()
    go.set()


async def test_inline_runs_in_place() -> None:
    assert await Inline().run(threading.get_ident) == threading.get_ident()
