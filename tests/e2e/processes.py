"""Real processes for the tests: daemons and providers, each with a log, none of them outliving its test.

Nothing here sleeps for a fixed time: tests wait for conditions, with a limit that is only reached when the daemon is
broken.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import trio
import yaml
from attrs import define

T = TypeVar("T")

TPFD = (sys.executable, "-m", "tpfd.cli.main")
PIPELINES = Path(__file__).parent / "pipelines"
WITHIN_S = 60.0
FOREIGN = ("TPFD_", "NOTIFY_", "WATCHDOG_")
"""Variables that would reconfigure a daemon."""
LOOK_AGAIN_S = 0.02

FAST: Mapping[str, Any] = {
    "lease": {"duration": "PT2S", "skew": "100ms"},
    "sweep": {"interval": "PT1S"},
    "retry": {"delay": "200ms"},
    "drain": {"grace": "PT5S"},
}
"""Settings of a daemon whose tests do not want to wait."""


async def wait_until(what: str, look: Callable[[], Awaitable[T | bool | None]], within_s: float = WITHIN_S) -> T:
    """Looks until it sees something.

    Returns:
        The first true thing that `look` returned.
    """
    last: object = None
    with trio.move_on_after(within_s):
        while True:
            try:
                last = await look()
            except httpx.TransportError as error:
                last = error
            else:
                if last:
                    return cast("T", last)
            await trio.sleep(LOOK_AGAIN_S)
    raise AssertionError(f"waited {within_s:.0f} s for {what}; last seen: {last!r}")


async def wait_for_file(path: Path) -> None:
    async def look() -> bool:
        return path.exists()

    await wait_until(f"the file {path.name}", look)


@define
class Process:
    """A `tpfd` process.

    Attributes:
        log: where its stderr goes; stdout goes beside it.
        before: characters that earlier processes of that name have left in it.
    """

    name: str
    process: trio.Process
    log: Path
    before: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """What this process has written."""
        return self.log.read_text("utf-8", "replace")[self.before :]

    def printed(self) -> Any:
        """Its stdout, which is one JSON text."""
        return json.loads(self.log.with_suffix(".out").read_text("utf-8"))

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The structured log lines, or those with that event."""
        lines = [line for line in self.text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event.get("event") == name or not name]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        await self.process.wait()

    async def ended(self, within_s: float = WITHIN_S) -> int:
        """Waits for its end; the exit code."""
        with trio.fail_after(within_s):
            return await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()

    def complained(self) -> list[dict[str, Any]]:
        """The log lines that an operator would be called for."""
        return [event for event in self.events() if event["level"] in {"warning", "error"}]

    def alive(self) -> None:
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.text()[-3000:]}"


@asynccontextmanager
async def running(
    name: str, arguments: Sequence[str], folder: Path, *, command: Sequence[str] = TPFD, **environ: str
) -> AsyncIterator[Process]:
    """Runs `tpfd` with arguments for as long as the block lasts; what is left then is killed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    log = folder / f"{name}.log"
    before = len(log.read_text("utf-8", "replace")) if log.exists() else 0
    with log.open("ab") as handle, log.with_suffix(".out").open("wb") as printed:
        process = await trio.lowlevel.open_process(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=handle,
            cwd=folder,
            env={**inherited, **environ},
            start_new_session=True,
        )
    try:
        yield Process(name, process, log, before)
    finally:
        if process.poll() is None:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()


@define
class Daemon(Process):
    """A `tpfd serve` process that was ready once."""

    address: str
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def submit(self, body: object, *, pipeline: str = "", key: str = "") -> str:
        """Submits and returns the execution's id."""
        headers = ({"x-tpf-pipeline": pipeline} if pipeline else {}) | ({"idempotency-key": key} if key else {})
        answer = await self.client.post("/pipeline/run-async", json=body, headers=headers)
        assert answer.status_code in {200, 202}, answer.text
        return str(answer.json()["executionId"])

    async def status(self, execution_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/pipeline/executions/{execution_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def executions(self) -> list[dict[str, Any]]:
        answer = await self.client.get("/pipeline/executions")
        found: list[dict[str, Any]] = answer.json()
        return found

    async def wait_status(self, execution_id: str, *wanted: str, within_s: float = WITHIN_S) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def look() -> bool:
            nonlocal found
            self.alive()
            found = await self.status(execution_id)
            return found["status"] in wanted

        try:
            await wait_until(f"{execution_id} to be {' or '.join(wanted)}", look, within_s)
        except AssertionError as error:
            error.add_note(f"it is {found}; the log of {self.name} ends with\n{self.text()[-2000:]}")
            raise
        return found


def configure(folder: Path, name: str, *pipelines: str, **sections: Any) -> Path:
    """Writes the configuration of a daemon that keeps everything in `folder`, on a port that is free.

    Args:
        pipelines: names of files in ``tests/e2e/pipelines``, or ``example:…``.
        sections: over the usual ones, key by key.
    """
    config: dict[str, Any] = {
        "node": {"name": name},
        "pipelines": [one if ":" in one or "/" in one else str(PIPELINES / one) for one in pipelines],
        "http": {"bind": "127.0.0.1:0"},
        "store": {"provider": "sqlite", "sqlite": {"path": str(folder / "tpfd.db")}},
        **FAST,
    }
    for section, values in sections.items():
        config[section] = {**config.get(section, {}), **values}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    return file


@asynccontextmanager
async def serving(
    folder: Path,
    config: Path,
    *,
    bind: str = "",
    launcher: Sequence[str] = (),
    **environ: str,
) -> AsyncIterator[Daemon]:
    """Runs a daemon and waits until it is ready.

    Args:
        folder: where its log goes, named as the configuration.
        bind: in the place of the configured address.
        launcher: arguments of Python that start a daemon, in the place of ``-m tpfd.cli.main``.
    """
    flags = ("--set", f"http.bind={bind}") if bind else ()
    command = (sys.executable, *launcher) if launcher else TPFD
    name = config.stem
    async with running(name, ["serve", "--config", str(config), *flags], folder, command=command, **environ) as process:

        async def address() -> str | None:
            process.alive()
            return next((str(event["address"]) for event in process.events("ready")), None)

        found = await wait_until(f"{name} to be ready", address)
        async with httpx.AsyncClient(base_url=f"http://{found}", trust_env=False, timeout=30) as client:
            yield Daemon(name, process.process, process.log, process.before, found, client)


def provider_arguments(url: str, log: Path, *options: str) -> list[str]:
    """The command line of the payment provider of csv-payments."""
    return ["provider", "--url", url, "--step", "await-payment-provider", "--log", str(log), *options]


def write_payments(path: Path, row_count: int) -> None:
    """A payments file that appears whole, always the same one."""
    lines = [f"{n},Recipient {n},{n * 37 % 9000 + 1}.{n * 7 % 100:02d},EUR\n" for n in range(1, row_count + 1)]
    aside = path.with_name(f".{path.name}.part")
    aside.write_text("ID,Recipient,Amount,Currency\n" + "".join(lines), "utf-8")
    aside.rename(path)
