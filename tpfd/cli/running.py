"""Running a command's Trio code: one client, Ctrl-C ends it quietly, and a bar appears when it takes long."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import trio

from tpfd.cli.settings import Settings
from tpfd.client import TpfdClient
from tpfd.client.errors import first_of
from tpfd.errors import TpfdError

T = TypeVar("T")

QUIET_S = 1.0


def with_client(settings: Settings, work: Callable[[TpfdClient], Awaitable[T]], *, waiting_for: str | None) -> T:
    """Runs ``work`` with a client for the daemon that the options name.

    Args:
        settings: the global options.
        work: what to do.
        waiting_for: shown beside the bar when it takes longer than a second.

    Raises:
        TpfdError: what ``work`` raised.
        click.Abort: Ctrl-C; everything was cancelled first.
    """
    token = settings.bearer()

    async def call() -> T:
        async with TpfdClient(settings.url, tenant=settings.tenant, token=token) as client:
            return await work(client)

    return run_async(call, waiting_for=waiting_for)


def run_async(work: Callable[[], Awaitable[T]], *, waiting_for: str | None) -> T:
    """Runs ``work`` on Trio until it returns, fails with a `TpfdError`, or Ctrl-C, SIGTERM or SIGHUP cancels it.

    Args:
        work: what to do.
        waiting_for: shown beside the bar; None shows no bar.
    """
    return trio.run(_supervise, work, waiting_for)


async def _supervise(work: Callable[[], Awaitable[T]], waiting_for: str | None) -> T:
    failure: TpfdError | None = None
    done = False
    async with trio.open_nursery() as nursery:
        await nursery.start(_cancel_on_signal, nursery.cancel_scope)
        if waiting_for is not None and sys.stderr.isatty():
            nursery.start_soon(_bar_when_slow, waiting_for)
        try:
            result = await work()
            done = True
        except* TpfdError as group:
            failure = first_of(group)  # kept out of the nursery, which would wrap it in a group again
        nursery.cancel_scope.cancel(reason="the command is done")
    if failure is not None:
        raise failure
    if not done:
        raise click.Abort
    return result


async def _cancel_on_signal(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for received in signals:
            scope.cancel(reason=signal.Signals(received).name)
            return


async def _bar_when_slow(waiting_for: str) -> None:
    """A pulsing bar on stderr, from the second on; it goes away when the command is done."""
    await trio.sleep(QUIET_S)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(waiting_for, total=None)
        await trio.sleep_forever()
