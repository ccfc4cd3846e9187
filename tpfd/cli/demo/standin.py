"""A local stand-in for DynamoDB and SQS: `ministack`, if it is installed, with its state in a folder."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from tpfd.cli.demo.children import DemoFailed, free_ports

PACKAGE = "ministack"
REGION = "eu-west-1"
CLIENT_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""Throwaway credentials, so that nobody's own reach the stand-in."""

UP_WITHIN_S = 30.0
DOWN_WITHIN_S = 30.0
LOOK_AGAIN_S = 0.05


def installed() -> bool:
    """Whether there is a stand-in to start."""
    return importlib.util.find_spec(PACKAGE) is not None


@define(eq=False)
class StandIn:
    """The stand-in; made by `standing_in`, which starts it."""

    folder: Path
    port: int
    _process: trio.Process | None = field(default=None, init=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        """Starts it where it was before, with what it had.

        Raises:
            DemoFailed: it ended, or did not come up in time.
        """
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **CLIENT_ENVIRONMENT,
            "AWS_DEFAULT_REGION": REGION,
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self.folder / "state"),
        }
        with (self.folder / "stand-in.log").open("ab") as log:
            self._process = process = await trio.lowlevel.open_process(
                [sys.executable, "-m", PACKAGE],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        with trio.move_on_after(UP_WITHIN_S):
            while process.poll() is None:
                if await self._answers():
                    return
                await trio.sleep(LOOK_AGAIN_S)
        raise DemoFailed(f"{PACKAGE} did not come up; see {self.folder / 'stand-in.log'}")

    async def stop(self) -> None:
        """Ends it in order, so that it keeps its state; by force when it does not end."""
        if (process := self._process) is None:
            return
        self._process = None
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
            with trio.move_on_after(DOWN_WITHIN_S):
                await process.wait()
                return

    async def _answers(self) -> bool:
        """Whether it says that it is ready."""
        request = f"GET /_{PACKAGE}/ready HTTP/1.0\r\nHost: 127.0.0.1:{self.port}\r\n\r\n"
        try:
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                await stream.send_all(request.encode("ascii"))
                answer = await stream.receive_some(64)
        except (OSError, trio.BrokenResourceError):
            return False
        return answer.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200"))


@asynccontextmanager
async def standing_in(folder: Path) -> AsyncIterator[StandIn]:
    """Runs a stand-in with its state in `folder` for as long as the block lasts.

    Raises:
        DemoFailed: it did not come up.
    """
    standin = StandIn(folder, free_ports(1)[0])
    try:
        await standin.start()
        yield standin
    finally:
        with trio.CancelScope(shield=True):
            await standin.stop()
