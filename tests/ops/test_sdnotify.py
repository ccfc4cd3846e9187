"""What the service manager is told, over a real socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio
import trio.testing

from tpfd.errors import ConfigError
from tpfd.ops.sdnotify import SEND_LIMIT_S, Notifier, watchdog, watchdog_interval_s


@contextlib.contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.setblocking(False)
        yield sock


def heard(sock: socket.socket) -> dict[str, str]:
    lines = sock.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def heard_all(sock: socket.socket) -> list[dict[str, str]]:
    messages = []
    while select.select([sock], [], [], 0)[0]:
        messages.append(heard(sock))
    return messages


def fill(path: str) -> int:
    """Send until the socket takes no more; how many it took."""
    count = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(BlockingIOError):
        sock.setblocking(False)
        while sock.sendto(b"FILL=1", path):
            count += 1
    return count


async def test_the_life_of_a_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with manager(path) as sock:
        notifier = Notifier.from_environ({"NOTIFY_SOCKET": path})
        await notifier.ready("serving 2 pipelines")
        assert heard(sock) == {"READY": "1", "STATUS": "serving 2 pipelines"}
        await notifier.reloading()
        reloading = heard(sock)
        assert reloading["RELOADING"] == "1"
        assert int(reloading["MONOTONIC_USEC"]) > 0
        await notifier.stopping("draining", 25_000)
        assert heard(sock) == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "25000000", "STATUS": "draining"}
        await notifier.alive()
        assert heard(sock) == {"WATCHDOG": "1"}
        await notifier.status("a\nREADY=0")
        assert heard(sock) == {"STATUS": "a READY=0"}


async def test_an_abstract_socket() -> None:
    name = f"tpfd-test-{os.getpid()}"
    with manager(f"\0{name}") as sock:
        await Notifier.from_environ({"NOTIFY_SOCKET": f"@{name}"}).alive()
        assert heard(sock) == {"WATCHDOG": "1"}


async def test_without_a_service_manager_nothing_is_sent() -> None:
    for environ in ({}, {"NOTIFY_SOCKET": ""}):
        notifier = Notifier.from_environ(environ)
        assert notifier.address is None
        await notifier.ready("x")


@pytest.mark.parametrize("address", ["notify", "tcp:1", "@", "/"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="NOTIFY_SOCKET"):
        Notifier.from_environ({"NOTIFY_SOCKET": address})


async def test_a_service_manager_that_is_gone_is_logged_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await Notifier(str(tmp_path / "gone")).ready("x")
    assert [record.getMessage() for record in caplog.records] == ["service_manager_not_told"]


async def test_a_full_socket_is_waited_for_without_blocking_the_loop(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with manager(path) as sock:
        filled = fill(path)
        sent = trio.Event()

        async def send() -> None:
            await Notifier(path).ready("late")
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            assert not sent.is_set()  # and this line runs, so the loop is not held up
            assert heard_all(sock) == [{"FILL": "1"}] * filled
            await sent.wait()
        assert heard(sock)["STATUS"] == "late"


async def test_a_service_manager_that_reads_nothing_is_given_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "notify")
    with manager(path) as sock:
        filled, began_s = fill(path), trio.current_time()
        await Notifier(path).stopping("draining", 1_000)
        assert trio.current_time() - began_s == SEND_LIMIT_S
        assert len(heard_all(sock)) == filled
    assert [record.getMessage() for record in caplog.records] == ["service_manager_not_told"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid() + 1)}, None),
    ],
)
def test_whether_we_are_watched(environ: Mapping[str, str], expected: float | None) -> None:
    assert watchdog_interval_s(environ) == expected


def test_a_watchdog_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="WATCHDOG_USEC"):
        watchdog_interval_s({"WATCHDOG_USEC": "soon"})


async def test_the_watchdog_is_pinged_at_less_than_half_its_interval(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = str(tmp_path / "notify")
    with manager(path) as sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watchdog, Notifier(path), 10.0)
            await trio.sleep(30)
            nursery.cancel_scope.cancel("seen enough")
        assert heard_all(sock) == [{"WATCHDOG": "1"}] * 8  # at 0, 4, ... 28 seconds
