"""The disk is full: nothing that was accepted is lost, nothing that was refused is there, and no restart is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import Daemon, configure, serving, wait_until

DISK_BYTES = 4 * 2**20
LARGE = "x" * 100_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(("umount", "--lazy", str(folder)), check=True)


def fill(disk: Path) -> Path:
    """Leaves not one byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler


async def submit(daemon: Daemon, key: str, folder: Path) -> httpx.Response:
    body = {"name": f"{key}-{LARGE}", "folder": str(folder)}
    return await daemon.client.post("/pipeline/run-async", json=body, headers={"idempotency-key": key})


async def test_a25_work_goes_on_when_there_is_space_again(tmp_path: Path, disk: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml", store={"sqlite": {"path": str(disk / "tpfd.db")}})
    async with serving(tmp_path, config) as daemon:
        accepted = [str((await submit(daemon, f"before-{n}", tmp_path)).json()["executionId"]) for n in range(3)]
        filler = fill(disk)
        refused = ""
        for number in range(100):
            answer = await submit(daemon, f"full-{number}", tmp_path)
            if answer.status_code != 202:
                refused = f"full-{number}"
                break
            accepted.append(str(answer.json()["executionId"]))
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert "full" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0

        async def not_ready() -> bool:
            health = await daemon.client.get("/q/health/ready")
            return health.status_code == 503 and "full" in health.text

        await wait_until("readiness to say why", not_ready)
        alerts = Counter(event["event"] for event in daemon.complained() if event["level"] == "error")
        assert max(alerts.values()) == 1, alerts
        filler.unlink()
        (tmp_path / "open").touch()
        for execution in accepted:
            await daemon.wait_status(execution, "SUCCEEDED")
        again = await submit(daemon, refused, tmp_path)
        assert (again.status_code, again.json()["duplicate"]) == (202, False)
        await daemon.wait_status(again.json()["executionId"], "SUCCEEDED")
        assert (await daemon.client.get("/q/health/ready")).status_code == 200
        assert await daemon.stop() == 0
