"""The high-availability gate, and what only a test can do: kill a replica at one instruction."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.aws.standin import StandIn
from tests.e2e.processes import TPFD, Daemon, configure, running, serving, wait_until
from tests.e2e.test_demo import children
from tpfd.cli.demo.ha_cluster import MAX_RETRIES
from tpfd.cli.demo.ha_gate import GATE

LAUNCHER = Path(__file__).with_name("ha_launcher.py")
ORDER = {"orderNumber": "A-1", "customer": "Ada", "address": "12 St James's Square", "courier": "swift", "packingMs": 0}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `tpfd demo ha` says of each check: one run, as a person would see it."""
    folder = tmp_path_factory.mktemp("ha")
    ended = subprocess.run(
        [*TPFD, "--output", "json", "demo", "ha", "--dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode in {0, 1}, ended.stderr
    return {one["check"]: one for one in json.loads(ended.stdout)}


@pytest.mark.parametrize("check", [name for name, _ in GATE])
def test_the_gate(check: str, gate: dict[str, dict[str, Any]]) -> None:
    assert gate[check]["ok"], gate[check]["said"]


def profile(aws: StandIn, folder: Path, name: str, shared: dict[str, Any]) -> Path:
    """The configuration of one replica; `shared` names what all use."""
    place = {"region": aws.region, "endpoint": aws.endpoint}
    return configure(
        folder,
        name,
        "example:deliver-order",
        store={"provider": "dynamodb", "dynamodb": {**place, "table-prefix": shared["prefix"]}},
        dispatcher={
            "provider": "sqs",
            "sqs": {**place, "queue-url": shared["work"], "wait": "1s", "visibility": "5s"},
        },
    )


@pytest.fixture
async def shared(aws: StandIn, tmp_path: Path) -> dict[str, Any]:
    """Tables and a queue of this test's own."""
    names = {"prefix": f"{aws.name('ha')}_", "work": f"{aws.endpoint}/000000000000/{aws.name('work')}"}
    config = profile(aws, tmp_path, "provision", names)
    async with running("made", ["provision", "--config", str(config)], tmp_path) as process:
        assert await process.ended() == 0, process.text()
    return names


async def by_key(daemon: Daemon, key: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        answer = await daemon.client.get("/pipeline/executions", params={"key": key})
        found = answer.json()
        return dict(found[0]) if found else None

    return await wait_until(f"an execution under {key}", look)


async def test_a_replica_killed_between_commit_and_announcement_loses_nothing(
    aws: StandIn, shared: dict[str, Any], tmp_path: Path
) -> None:
    first, second = (profile(aws, tmp_path, name, shared) for name in ("a", "b"))
    launcher = (str(LAUNCHER), str(tmp_path / "killed"))
    async with serving(tmp_path, second) as b, serving(tmp_path, first, launcher=launcher) as a:
        with suppress(httpx.TransportError):  # it may die before it can answer, which is as good
            await a.submit(ORDER, key="A-1")
        assert await a.ended() == -9
        assert (tmp_path / "killed").exists()
        execution = await by_key(b, "A-1")
        ended = await b.wait_status(execution["executionId"], "SUCCEEDED")
        assert ended["workerLosses"] == 0
        again = await b.client.post("/pipeline/run-async", json=ORDER, headers={"idempotency-key": "A-1"})
        assert (again.status_code, again.json()["executionId"]) == (200, execution["executionId"])


async def test_a_courier_who_never_comes_is_asked_so_often_and_not_more(
    aws: StandIn, shared: dict[str, Any], tmp_path: Path
) -> None:
    config = profile(aws, tmp_path, "a", shared)
    config.write_text(config.read_text().replace("delay: 200ms", f"delay: 200ms\n  max-retries: {MAX_RETRIES}"))
    text = f"{config.read_text()}steps: {{retry-limit: 0}}\n"
    config.write_text(text)
    async with serving(tmp_path, config) as daemon:
        execution = await daemon.submit({**ORDER, "courier": "gone"})
        await daemon.wait_status(execution, "DLQ")

        async def tries() -> list[Any]:
            facts = (await daemon.client.get(f"/pipeline/executions/{execution}/history")).json()
            return [fact for fact in facts if fact["type"] == "SegmentAttemptStarted"]

        assert len(await wait_until("its history", tries)) == MAX_RETRIES + 1
        assert await daemon.stop() == 0


async def test_ctrl_c_ends_replicas_and_stand_in(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    async with running("demo", ["demo", "ha", "--check", "takeover", "--dir", str(folder)], tmp_path) as demo:

        async def one_took_it() -> bool:
            logs = [folder / f"{name}.log" for name in ("a", "b")]
            return all(log.exists() and '"event":"ready"' in log.read_text("utf-8") for log in logs)

        await wait_until("both replicas to be ready", one_took_it)
        started = children(demo)
        assert len(started) == 3
        demo.send(signal.SIGINT)
        assert await demo.ended() == 130
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
        assert "Traceback" not in demo.text()


def test_the_demo_runs_on_a_service_that_is_named(aws: StandIn, tmp_path: Path) -> None:
    checks = ("--check", "duplicates", "--check", "outage")
    command = [*TPFD, "--output", "json", "demo", "ha", "--endpoint", aws.endpoint, "--dir", str(tmp_path), *checks]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    (passed,) = json.loads(ended.stdout)  # what is not ours is not stopped
    assert (passed["check"], passed["ok"]) == ("duplicates", True)


def test_the_demo_says_what_it_needs(tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, sys\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'ministack' else find(name, *a)\n"
        f"from tpfd.cli.main import run\nsys.exit(run(['demo', 'ha', '--dir', {str(tmp_path)!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "pip install ministack" in ended.stderr
