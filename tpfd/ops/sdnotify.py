"""Talking to the service manager: ready, reloading, stopping, still alive.

The protocol is one datagram of ``NAME=value`` lines to the socket named by ``$NOTIFY_SOCKET``. Without that variable
nothing is sent, so the same program runs in a terminal. A full socket is waited for, never blocked on.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final, NoReturn

import attrs
import trio

from tpfd.errors import ConfigError, Problem
from tpfd.ops.logs import get_logger

US_PER_S: Final = 1_000_000
PING_SHARE: Final = 0.4
"""Share of the watchdog's interval between two pings: below a half, so that one late ping is no failure."""

SEND_LIMIT_S: Final = 5.0
"""A drain must not hang on a service manager that reads nothing."""

_log = get_logger("tpfd.ops.sdnotify")


@attrs.frozen
class Notifier:
    """Sends to one service manager, or to nobody.

    Attributes:
        address: the socket's address, an abstract one with its leading NUL; None sends nothing.
    """

    address: str | None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Notifier:
        """The one that ``$NOTIFY_SOCKET`` names.

        Raises:
            ConfigError: the variable holds something that is no socket of the file system or abstract kind.
        """
        address = environ.get("NOTIFY_SOCKET", "")
        if not address:
            return cls(None)
        if address[0] not in "/@" or len(address) < 2:
            message = f"environment NOTIFY_SOCKET: {address!r} is neither a path nor an abstract socket (@name)"
            raise ConfigError([Problem("$", message)])
        return cls("\0" + address[1:] if address[0] == "@" else address)

    async def ready(self, status: str) -> None:
        """The daemon serves (after the start or a reload)."""
        await self._send("READY=1", _status(status))

    async def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        await self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    async def stopping(self, status: str, grace_ms: int) -> None:
        """The drain begins.

        Args:
            status: one line for ``systemctl status``.
            grace_ms: how long it may take; asks the service manager not to kill before that.
        """
        await self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={grace_ms * 1_000}", _status(status))

    async def status(self, status: str) -> None:
        """One line for ``systemctl status``."""
        await self._send(_status(status))

    async def alive(self) -> None:
        """A ping for the watchdog."""
        await self._send("WATCHDOG=1")

    async def _send(self, *lines: str) -> None:
        """Send one datagram.

        A service manager that cannot be told is logged and no reason to stop working: if it matters to it, it acts.

        **Cancellation**: what was not sent is dropped.
        """
        if self.address is None:
            await trio.lowlevel.checkpoint()
            return
        with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as sock:
            try:
                with trio.fail_after(SEND_LIMIT_S):
                    await sock.connect(self.address)
                    await sock.send("\n".join(lines).encode())
            except trio.TooSlowError:
                _log.warning("service_manager_not_told", message=lines[0], reason="it reads nothing")
            except OSError as error:
                _log.warning("service_manager_not_told", message=lines[0], reason=error.strerror or str(error))


def _status(status: str) -> str:
    return "STATUS=" + " ".join(status.split())  # a line break would begin another variable


def watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    """How often the service manager wants to hear from this process.

    Returns:
        Seconds; None when it does not watch, or watches another process.

    Raises:
        ConfigError: a variable is not a number.
    """
    try:
        interval_us = int(environ.get("WATCHDOG_USEC", "0"))
        watched_pid = int(environ.get("WATCHDOG_PID", "0"))
    except ValueError as error:
        message = f"environment WATCHDOG_USEC and WATCHDOG_PID must be whole numbers: {error}"
        raise ConfigError([Problem("$", message)]) from error
    if interval_us <= 0 or watched_pid not in (0, os.getpid()):
        return None
    return interval_us / US_PER_S


async def watchdog(notifier: Notifier, interval_s: float) -> NoReturn:
    """Ping from the event loop for ever.

    A loop that hangs sends no pings, and the service manager restarts the process; that is the purpose, so this must
    not be moved to a thread.

    Args:
        notifier: where to.
        interval_s: what `watchdog_interval_s` says.
    """
    while True:
        await notifier.alive()
        await trio.sleep(interval_s * PING_SHARE)
