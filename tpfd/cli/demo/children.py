"""The processes of a demo: a daemon, perhaps a provider, each with a log file, none of them outliving the demo."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import trio
import yaml
from attrs import frozen

from tpfd.client import TpfdClient
from tpfd.errors import TpfdError

COMMAND = (sys.executable, "-m", "tpfd.cli.main")
READY_WITHIN_S = 30.0
READY_POLL_S = 0.05
STOP_WITHIN_S = 2.0
TAIL_BYTES = 4_000


P = ParamSpec("P")
T = TypeVar("T")


class DemoFailed(TpfdError):
    """The demo did not come to its end, or its numbers do not add up."""

    code = "demo_failed"


async def file_work(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Does something with files in a thread.

    Raises:
        DemoFailed: a file or folder cannot be read or written.
    """
    try:
        return await trio.to_thread.run_sync(functools.partial(work, *args, **kwargs))
    except OSError as error:
        raise DemoFailed(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


@frozen
class Child:
    """A process of the demo.

    Attributes:
        name: what it is, for messages.
        process: the process.
        log: where its stdout and stderr go.
    """

    name: str
    process: trio.Process
    log: Path

    async def says(self, text: str) -> None:
        """Waits until the log has this text.

        Raises:
            DemoFailed: the process ended, or did not say it in time.
        """
        with trio.move_on_after(READY_WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.must_live)
                while True:
                    if text in await file_work(_tail, self.log):
                        break
                    await trio.sleep(READY_POLL_S)
                nursery.cancel_scope.cancel(reason="it was said")
            return
        raise DemoFailed(f"{self.name} did not come up within {READY_WITHIN_S:.0f} s; see {self.log}")

    async def must_live(self) -> NoReturn:
        """Fails the demo, with the end of the log, as soon as the process ends.

        Raises:
            DemoFailed: it ended.
        """
        code = await self.process.wait()
        tail = await file_work(_tail, self.log)
        raise DemoFailed(f"{self.name} ended with exit code {code}; the end of {self.log}:\n{tail}")


@asynccontextmanager
async def running(
    name: str, arguments: Sequence[str], log: Path, environ: Mapping[str, str]
) -> AsyncIterator[Child]:
    """Runs ``tpfd`` with arguments as a process of its own for as long as the block lasts.

    It gets a session of its own, so that Ctrl-C in the terminal reaches the demo alone, which then stops it in order:
    SIGTERM, again when it takes its time (which ends it at once), and SIGKILL when that did not help.
    """
    with log.open("ab") as handle:
        process = await trio.lowlevel.open_process(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        yield Child(name, process, log)
    finally:
        with trio.CancelScope(shield=True):
            await _stop(process)


async def _stop(process: trio.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        with trio.move_on_after(STOP_WITHIN_S):
            await process.wait()
            return
    await process.wait()


@asynccontextmanager
async def daemon(
    folder: Path, pipeline: str, *, environ: Mapping[str, str], port: int | None = None, **sections: Any
) -> AsyncIterator[tuple[Child, TpfdClient]]:
    """Runs a daemon with a configuration made for it, and waits until it is ready.

    Args:
        folder: gets ``tpfd.yaml`` and ``daemon.log``; the database is there too.
        pipeline: an example's name.
        environ: added to the environment; the TPFD_ variables of the caller are kept from the daemon.
        port: where it listens; None: where there is room.
        sections: further sections of the configuration.

    Yields:
        The process and a client for it.

    Raises:
        DemoFailed: it ended or was not ready in time.
    """
    port = free_ports(1)[0] if port is None else port
    config = {"pipelines": [f"example:{pipeline}"], "http": {"bind": f"127.0.0.1:{port}"}, **sections}
    file = folder / "tpfd.yaml"
    await file_work(file.write_text, yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    log = folder / "daemon.log"
    async with (
        running("tpfd serve", ["serve", "--config", str(file)], log, child_environ(environ)) as child,
        TpfdClient(f"http://127.0.0.1:{port}") as client,
    ):
        await ready(child, client)
        yield child, client


def child_environ(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what would reconfigure a daemon, and with what the demo wants."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TPFD_")}
    return {**inherited, **extra}


def sqlite_or_memory(store: str, folder: Path) -> dict[str, Any]:
    """The ``store`` section."""
    if store == "memory":
        return {"provider": "memory"}
    return {"provider": "sqlite", "sqlite": {"path": str(folder / "tpfd.db")}}


async def ready(child: Child, client: TpfdClient) -> None:
    """Waits until a daemon says that it is ready.

    Raises:
        DemoFailed: it ended or was not ready in time.
    """
    with trio.move_on_after(READY_WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.must_live)
            while True:
                if await client.ready():
                    break
                await trio.sleep(READY_POLL_S)
            nursery.cancel_scope.cancel(reason="the daemon is ready")
        return
    raise DemoFailed(f"the daemon was not ready within {READY_WITHIN_S:.0f} s; see {child.log}")


def free_ports(count: int) -> list[int]:
    """Ports of this host that nobody listens on, each another one."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace").strip()
