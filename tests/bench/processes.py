"""The processes of a benchmark: the daemon, load clients, providers; and what the system knows about them.

All of it blocks: the driver of a benchmark only waits, so that it takes nothing from what it measures.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from attrs import define
from prometheus_client.parser import text_string_to_metric_families

REPOSITORY = Path(__file__).resolve().parents[2]
PIPELINES = Path(__file__).parent / "pipelines"
PROFILE_VARIABLE = "BENCH_PROFILE"
READY_WITHIN_S = 60.0
ENDS_WITHIN_S = 60.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchFailed(Exception):
    """The workload did not do what it should; its figures would mean nothing."""


@define(eq=False)
class Child:
    """A running process.

    Attributes:
        log: its stdout and stderr.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def rss_bytes(self) -> int:
        """Resident memory now."""
        text = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * PAGE_BYTES

    def peak_rss_bytes(self) -> int:
        """The most resident memory so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    def cpu_s(self) -> float:
        """Processor time used so far, all threads."""
        return process_cpu_s(self.process.pid)

    def children(self, word: str) -> list[int]:
        """Its child processes that have the word on their command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
                if parent == self.process.pid and word in (folder / "cmdline").read_text(encoding="utf-8").split("\0"):
                    found.append(int(folder.name))
            except OSError:  # it has just ended
                continue
        return found

    def read_bytes(self) -> int:
        """Bytes it has asked the system for so far, from files and sockets."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))

    def kill(self) -> None:
        """Ends it where it stands."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends it in good order."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BenchFailed(f"{self.log} did not end within {ENDS_WITHIN_S:.0f} s") from None
        if code not in (0, -signal.SIGKILL):
            raise BenchFailed(f"{self.log} ended with {code}: {tail(self.log)}")


@define(eq=False)
class Daemon(Child):
    """A running ``tpfd serve``.

    Attributes:
        ready_s: from its start to the first 200 of its readiness.
    """

    url: str = ""
    ready_s: float = 0.0

    def call(self, method: str, path: str, body: object = None) -> Any:
        """A JSON call; anything but 2xx fails the benchmark."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise BenchFailed(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def pages(self, path: str) -> Iterator[Any]:
        """All members of a paged listing."""
        following: str | None = path
        while following is not None:
            with urllib.request.urlopen(self.url + following, timeout=60) as response:
                yield from json.loads(response.read())
                link = response.headers.get("Link")
            following = None if link is None else link.partition(">")[0].removeprefix("<")

    def metric(self, name: str) -> float:
        """Sum of a metric's series, or of one series if its labels are given too."""
        with urllib.request.urlopen(self.url + "/q/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def series(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """The series of a metric: labels and value."""
        with urllib.request.urlopen(self.url + "/q/metrics", timeout=60) as response:
            families = text_string_to_metric_families(response.read().decode())
        for family in families:
            yield from ((dict(one.labels), one.value) for one in family.samples if one.name == name)

    def succeeded_count(self, pipeline: str) -> int:
        """Executions that this process has brought to success."""
        return int(self.metric(f'tpf_execution_transitions_total{{pipeline="{pipeline}",status="SUCCEEDED"}}'))


def process_cpu_s(pid: int) -> float:
    """Processor time a process has used so far, all threads; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_S


def tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


def write_config(folder: Path, pipeline: str, **sections: Any) -> Path:
    """A configuration for one pipeline of the benchmarks, on SQLite with every commit synced to disk.

    Args:
        folder: gets the file; the database stands beside it.
        pipeline: name of a file in ``pipelines``, without its ending.
        sections: further sections, or others instead of ours.
    """
    config = {
        "pipelines": [str(PIPELINES / f"{pipeline}.yaml")],
        "http": {"bind": "127.0.0.1:0"},
        "store": {"provider": "sqlite", "sqlite": {"path": str(folder / "tpfd.db"), "synchronous": "full"}},
        **sections,
    }
    file = folder / "tpfd.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def start(module: str, arguments: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> Child:
    """Starts ``python -m MODULE`` with its output in a file."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TPFD_")}
    with log.open("ab") as handle:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env={**inherited, "PYTHONPATH": str(REPOSITORY), **(environ or {})},
            cwd=log.parent,
        )
    return Child(process, log)


def start_daemon(config: Path, profile: Path | None = None, name: str = "daemon") -> Daemon:
    """Starts a daemon and waits until it is ready.

    Args:
        profile: where it writes its samples when it ends; None: it runs as it is.
    """
    log = config.parent / f"{name}.log"
    log.unlink(missing_ok=True)
    began_s = time.monotonic()
    if profile is None:
        child = start("tpfd.cli.main", ["serve", "--config", str(config)], log)
    else:
        environ = {PROFILE_VARIABLE: str(profile)}
        child = start("tests.bench.profiled", ["serve", "--config", str(config)], log, environ)
    # It says itself which port it got: one chosen by us could be somebody else's by then.
    while time.monotonic() - began_s < READY_WITHIN_S:
        if (address := _ready_address(log)) is not None:
            daemon = Daemon(child.process, log, f"http://{address}")
            with urllib.request.urlopen(daemon.url + "/q/health/ready", timeout=5):
                daemon.ready_s = time.monotonic() - began_s
            return daemon
        if child.process.poll() is not None:
            raise BenchFailed(f"the daemon ended with {child.process.returncode}: {tail(log)}")
        time.sleep(0.005)
    child.kill()
    raise BenchFailed(f"the daemon was not ready within {READY_WITHIN_S:.0f} s: {tail(log)}")


def _ready_address(log: Path) -> str | None:
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        if '"event":"ready"' in line and line.endswith("\n"):
            return str(json.loads(line)["address"])
    return None


@contextmanager
def serving(config: Path, profile: Path | None = None, name: str = "daemon") -> Iterator[Daemon]:
    """A daemon for as long as the block lasts; it is drained at its end."""
    daemon = start_daemon(config, profile, name)
    try:
        yield daemon
    except BaseException:
        daemon.kill()
        raise
    daemon.stop()


def load(daemon: Daemon, kind: str, *arguments: str, within_s: float = 600.0) -> Any:
    """Runs the load client as a process of its own; returns what it measured.

    Args:
        kind: see ``tests.bench.load``.
    """
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.load", kind, daemon.url, *arguments],
        capture_output=True,
        text=True,
        timeout=within_s,
        cwd=REPOSITORY,
        check=False,
    )
    if run.returncode:
        raise BenchFailed(f"the load client failed: {run.stderr[-2000:]}")
    return json.loads(run.stdout)


def wait_until(what: str, done: Any, within_s: float, every_s: float = 0.1, by: Child | None = None) -> None:
    """Asks again and again until the answer is true.

    Args:
        by: who is to bring it about; without him there is nothing to wait for.
    """
    end_s = time.monotonic() + within_s
    while not done():
        if by is not None and by.process.poll() is not None:
            raise BenchFailed(f"waited for {what}, but {by.log} ended with {by.process.returncode}: {tail(by.log)}")
        if time.monotonic() > end_s:
            raise BenchFailed(f"waited {within_s:.0f} s for {what}")
        time.sleep(every_s)
