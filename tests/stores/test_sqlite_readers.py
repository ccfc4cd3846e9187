"""The reading threads: calls that wait together, each with its own outcome, and what closing does to them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

import outcome
import pytest
import trio
import trio.testing

from tpfd.errors import StoreError
from tpfd.stores.sqlite_readers import Readers


class Gate:
    """Holds the reading thread until it is opened, so that further calls queue behind it."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._open = threading.Event()

    def hold(self, _connection: sqlite3.Connection) -> str:
        self._token.run_sync_soon(self.reached.set)
        self._open.wait()
        return "held"

    def open(self) -> None:
        self._open.set()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
async def readers(gate: Gate) -> AsyncIterator[Readers]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    readers = Readers([connection])
    yield readers
    gate.open()
    readers.close()
    await trio.to_thread.run_sync(readers.join)


def answer(connection: sqlite3.Connection, number: int) -> int:
    found: tuple[int] = connection.execute("SELECT ?", (number,)).fetchone()
    return found[0]


def fail_outside(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT * FROM no_such_table")


def fail(_connection: sqlite3.Connection) -> None:
    raise ZeroDivisionError


async def test_each_call_of_a_group_gets_its_own_outcome(readers: Readers, gate: Gate) -> None:
    outcomes: dict[str, outcome.Outcome[object]] = {}

    async def call(name: str, read: Callable[[sqlite3.Connection], object]) -> None:
        outcomes[name] = await outcome.acapture(lambda: readers.run(read))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "first", gate.hold)
        await gate.reached.wait()
        nursery.start_soon(call, "one", partial(answer, number=1))
        nursery.start_soon(call, "driver", fail_outside)
        nursery.start_soon(call, "own", fail)
        nursery.start_soon(call, "two", partial(answer, number=2))
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert [outcomes[name].unwrap() for name in ("first", "one", "two")] == ["held", 1, 2]
    with pytest.raises(StoreError, match="no_such_table"):
        outcomes["driver"].unwrap()
    with pytest.raises(ZeroDivisionError):
        outcomes["own"].unwrap()


async def test_more_calls_than_one_group_holds_are_all_answered(readers: Readers, gate: Gate) -> None:
    answers: set[int] = set()

    async def call(number: int) -> None:
        answers.add(await readers.run(answer, number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run, gate.hold)
        await gate.reached.wait()
        for number in range(100):
            nursery.start_soon(call, number)
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert answers == set(range(100))


async def test_closing_answers_what_is_queued_and_refuses_what_comes_later(readers: Readers, gate: Gate) -> None:
    answers: list[int] = []

    async def call() -> None:
        answers.append(await readers.run(answer, 7))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.run, gate.hold)
        await gate.reached.wait()
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        readers.close()
        with pytest.raises(StoreError, match="closed"):
            await readers.run(answer, 8)
        gate.open()
    assert answers == [7]


async def test_a_cancel_before_the_call_spares_it_and_one_during_it_waits_for_its_outcome(
    readers: Readers, gate: Gate
) -> None:
    seen: list[object] = []
    with trio.CancelScope() as before:
        before.cancel()
        await readers.run(seen.append)
    assert before.cancelled_caught
    with trio.CancelScope() as during:
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                seen.append(await readers.run(gate.hold))

            nursery.start_soon(call)
            await gate.reached.wait()
            during.cancel()
            gate.open()
    assert seen == ["held"]
