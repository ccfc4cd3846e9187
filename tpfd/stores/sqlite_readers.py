"""The threads that read: what waits together is read in one go, and all who waited are woken at once."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

import outcome
import trio

from tpfd.errors import StoreError
from tpfd.stores.parking import Finished, Inbox, Parked, park, wake
from tpfd.stores.sqlite_errors import outside_error

T = TypeVar("T")
P = ParamSpec("P")

_GROUP_MAX = 32
"""Calls that one thread takes along, so that a long page keeps few waiting that came with it."""


class Readers:
    """A thread for each read-only connection; all take their work from one queue.

    Made and closed on the event loop.

    Args:
        connections: none is used elsewhere; the threads close them.
    """

    def __init__(self, connections: Sequence[sqlite3.Connection]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._inbox: Inbox[sqlite3.Connection] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._main, args=(connection,), name="tpfd-sqlite-reader", daemon=True)
            for connection in connections
        ]
        for thread in self._threads:
            thread.start()

    async def run(
        self, read: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls `read(connection, ...)` in a thread.

        Raises:
            StoreError: SQLite failed, a row is damaged, or the store is closed.

        **Cancellation**: before the call is queued it does not happen; then its outcome is waited for.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise StoreError("the store is closed", retryable=False, code="store_closed")
        return await park(self._inbox, lambda connection: _outside(read, connection, *args, **kwargs))

    def close(self) -> None:
        """Takes no more calls. What is queued is still read; then the threads end."""
        self._closed = True
        for _ in self._threads:
            self._inbox.put(None)

    def join(self) -> None:
        """Blocks until the threads have ended. Call it in another thread, after `close`."""
        for thread in self._threads:
            thread.join()

    def _main(self, connection: sqlite3.Connection) -> None:
        more = True
        while more:
            group, more = self._take()
            finished: Finished[sqlite3.Connection] = [
                (parked, outcome.capture(parked.act, connection)) for parked in group
            ]
            if finished:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(wake, finished)
        connection.close()

    def _take(self) -> tuple[list[Parked[sqlite3.Connection]], bool]:
        """Waits for a call, then takes what is queued; and whether more may come."""
        group: list[Parked[sqlite3.Connection]] = []
        parked = self._inbox.get()
        while parked is not None:
            group.append(parked)
            if len(group) >= _GROUP_MAX:
                return group, True
            try:
                parked = self._inbox.get_nowait()
            except queue.Empty:
                return group, True
        return group, False


def _outside(
    read: Callable[Concatenate[sqlite3.Connection, P], T],
    connection: sqlite3.Connection,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    try:
        return read(connection, *args, **kwargs)
    except sqlite3.Error as error:
        raise outside_error(error) from error
