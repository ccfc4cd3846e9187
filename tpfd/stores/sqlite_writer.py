"""The one thread that writes: many decisions, one transaction, one wake-up.

Callers queue and park. The thread takes all that is queued, up to the group's limit, and runs it as one transaction::

    BEGIN IMMEDIATE -> every decide, in order -> write -> COMMIT -> wake all callers at once

The write lock is taken first. A transaction that reads first and asks for the lock later can fail at once with
"database is locked", whatever the busy timeout, because its snapshot is already old.

Everyone resumes after the COMMIT, also who was refused: it may have seen what a neighbour was about to write. The
queue is in order and a group takes up to `group_commit_max`, so what arrives behind n others (a lease renewal, say)
is committed within n / group_commit_max + 2 commits; with the default limits never more than 6.

Several processes may write to one file. SQLite's lock is not fair, so a writer that has met another lately sleeps
after each commit for longer than a waiting one does between two tries.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import outcome
import trio
from attrs import define, field, frozen

from tpfd.core.records import Fact
from tpfd.errors import InternalError, StoreError
from tpfd.stores.parking import Finished, Inbox, Parked, park, wake
from tpfd.stores.sqlite_errors import ROW_ERRORS, is_locked, member_error, spares_neighbours
from tpfd.stores.sqlite_file import SCHEMA_VERSION, schema_version
from tpfd.stores.sqlite_overlay import Overlay
from tpfd.stores.sqlite_recent import Recent

T = TypeVar("T")

_LOCK_RETRY_S = 0.0002
_TURN_S = 0.001  # longer than a waiting process takes from one try to the next
_CONTENDED_S = 1.0  # how long another writer is remembered
_POLL_ACTIVE_S = 0.025
_POLL_QUIET_S = 0.1
_ACTIVE_S = 1.0  # how long after the last commit, ours or another's, the short poll is kept


@frozen(kw_only=True)
class WriterStatistics:
    """What the writer has done since it was opened.

    Attributes:
        member_count: decisions run, those that were refused or raised too.
        group_count: transactions, with or without anything to write.
        commit_count: transactions that wrote something; each costs one sync of the disk.
        largest_group_count: most decisions in one transaction.
        rerun_count: transactions that failed by one row and were run again member by member.
        failed_count: transactions that failed as a whole.
        waiting_count: decisions queued now.
    """

    member_count: int
    group_count: int
    commit_count: int
    largest_group_count: int
    rerun_count: int
    failed_count: int
    waiting_count: int


_Member = Parked[Overlay]
"""A parked caller of `Writer.run`."""


@define(eq=False)
class _Counts:
    members: int = 0
    groups: int = 0
    commits: int = 0
    largest_group: int = 0
    reruns: int = 0
    failures: int = 0


@define(eq=False)
class Writer:
    """Owns the writing connection. Made and closed on the event loop; everything in between is the thread's.

    Args:
        connection: in autocommit mode, without a busy timeout; the thread closes it.
        keep_fact: says which facts the journal keeps.
        group_commit_max: decisions per transaction.
        busy_timeout_ms: how long to wait for another process's transaction.
        on_others: called on the event loop after another process committed.
    """

    _connection: sqlite3.Connection
    _keep_fact: Callable[[Fact], bool]
    _group_commit_max: int
    _busy_timeout_ms: int
    _on_others: Callable[[], None]
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token, init=False)
    _inbox: Inbox[Overlay] = field(factory=queue.SimpleQueue, init=False)
    _counts: _Counts = field(factory=_Counts, init=False)
    _recent: Recent = field(factory=Recent, init=False)
    _closed: bool = field(default=False, init=False)
    _failed: trio.Event = field(factory=trio.Event, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _in_hand: list[_Member] = field(factory=list, init=False)
    _others_version: int = field(default=0, init=False)
    _contended_until_s: float = field(default=0.0, init=False)
    _active_until_s: float = field(default=0.0, init=False)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._main, name="tpfd-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, act: Callable[[Overlay], T]) -> T:
        """Queues `act` for the next transaction and waits for its commit.

        Args:
            act: called in the writer's thread, perhaps again after another member's row failed.

        Raises:
            StoreError: the store failed or is closed; nothing was written.
            InternalError: a record is broken, or the writer is.
            Exception: whatever `act` raised.

        **Cancellation**: not looked for; the caller does that before.
        """
        if self._failure is not None:
            raise self._broken()
        if self._closed:
            raise StoreError("the store is closed", retryable=False, code="store_closed")
        return await park(self._inbox, act)

    def close(self) -> None:
        """Takes no more decisions. What is queued is still committed; then the thread ends."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)

    def join(self) -> None:
        """Blocks until the thread has ended. Call it in another thread, after `close`."""
        self._thread.join()

    async def wait_failed(self) -> None:
        """Returns when the thread has died of a bug. Then no transaction can be made any more."""
        await self._failed.wait()

    def raise_if_failed(self) -> None:
        """Raises InternalError if the thread has died of a bug."""
        if self._failure is not None:
            raise self._broken()

    def statistics(self) -> WriterStatistics:
        counts = self._counts
        return WriterStatistics(
            member_count=counts.members,
            group_count=counts.groups,
            commit_count=counts.commits,
            largest_group_count=counts.largest_group,
            rerun_count=counts.reruns,
            failed_count=counts.failures,
            waiting_count=self._inbox.qsize(),
        )

    # Below: the thread.

    def _main(self) -> None:
        ended = outcome.capture(self._work)
        self._connection.close()
        if isinstance(ended, outcome.Error):
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._fail, ended.error)

    def _work(self) -> None:
        self._others_version = self._read_others_version()
        closing = False
        while not closing:
            closing = self._take()
            if self._in_hand:
                finished = self._commit(self._in_hand)
                self._in_hand = []
                self._token.run_sync_soon(wake, finished)
                now_s = time.monotonic()
                self._active_until_s = now_s + _ACTIVE_S
                if now_s < self._contended_until_s:
                    time.sleep(_TURN_S)
            elif not closing:
                # A failure here would meet the next transaction too, and is reported there.
                with suppress(sqlite3.OperationalError):
                    self._notice_others()

    def _take(self) -> bool:
        """Waits for a decision or the next poll, then takes what is queued. Returns whether the queue was closed."""
        poll_s = _POLL_ACTIVE_S if time.monotonic() < self._active_until_s else _POLL_QUIET_S
        try:
            member = self._inbox.get(timeout=poll_s)
            while member is not None:
                self._in_hand.append(member)
                if len(self._in_hand) >= self._group_commit_max:
                    return False
                member = self._inbox.get_nowait()
        except queue.Empty:
            return False
        return True

    def _commit(self, members: list[_Member]) -> Finished[Overlay]:
        try:
            return self._transaction(members)
        except (sqlite3.Error, *ROW_ERRORS) as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if len(members) > 1 and spares_neighbours(error):
                self._counts.reruns += 1
                return [alone for member in members for alone in self._commit([member])]
            self._counts.failures += 1
            return [(member, outcome.Error(member_error(error))) for member in members]

    def _transaction(self, members: list[_Member]) -> Finished[Overlay]:
        self._begin()
        self._notice_others()
        overlay = Overlay(self._connection, self._keep_fact, self._recent)
        finished: Finished[Overlay] = []
        for member in members:
            result = outcome.capture(member.act, overlay)
            if isinstance(result, outcome.Error) and isinstance(result.error, sqlite3.Error):
                raise result.error
            finished.append((member, result))
        overlay.write()
        # If the sync of a COMMIT fails, the transaction is undone here. Should the process die before the next one
        # overwrites it in the WAL, it may be there after all: to the callers, who saw an error, both are allowed.
        self._connection.execute("COMMIT")
        overlay.committed()
        self._counts.members += len(members)
        self._counts.groups += 1
        self._counts.commits += overlay.writes
        self._counts.largest_group = max(self._counts.largest_group, len(members))
        return finished

    def _begin(self) -> None:
        give_up_s = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() >= give_up_s:
                    raise
            else:
                return
            self._contended_until_s = time.monotonic() + _CONTENDED_S
            time.sleep(_LOCK_RETRY_S)

    def _notice_others(self) -> None:
        version = self._read_others_version()
        if version != self._others_version:
            self._others_version = version
            self._recent.clear()
            self._active_until_s = self._contended_until_s = time.monotonic() + _CONTENDED_S
            self._token.run_sync_soon(self._on_others, idempotent=True)
            found = schema_version(self._connection)
            if found != SCHEMA_VERSION:
                raise InternalError(f"a newer tpfd has brought the file to version {found} under us: restart this one")

    def _read_others_version(self) -> int:
        """A number that changes with the commits of other connections only."""
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    # Below: the event loop again.

    def _fail(self, error: BaseException) -> None:
        """The thread has died: nobody may wait for it."""
        self._failure = error
        self._closed = True
        self._failed.set()
        stranded = self._in_hand
        while not self._inbox.empty():
            member = self._inbox.get()
            if member is not None:
                stranded.append(member)
        wake([(member, outcome.Error(self._broken())) for member in stranded])

    def _broken(self) -> InternalError:
        broken = InternalError(f"the store's writer has died: {self._failure!r}")
        broken.__cause__ = self._failure
        return broken
