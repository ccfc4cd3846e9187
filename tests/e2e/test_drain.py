"""SIGTERM: what is running may finish, the rest is handed back uncharged, and nothing holds the exit up."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import Daemon, configure, serving, wait_until

ORDER = {
    "requestId": "5b1f5bb8-3d0b-4c4e-9d0c-0a1f7d0e0c11",
    "customerName": "Zoë",
    "restaurantName": "Noodle Bar",
    "items": "2x udon",
    "totalAmount": "42.50",
    "currency": "EUR",
}


def work(folder: Path, name: str = "w") -> dict[str, str]:
    return {"name": name, "folder": str(folder)}


def starts(folder: Path) -> int:
    path = folder / "started"
    return len(path.read_text().splitlines()) if path.exists() else 0


async def wait_started(folder: Path, count: int = 1) -> None:
    async def look() -> bool:
        return starts(folder) >= count

    await wait_until(f"{count} started", look)


async def test_a_drain_lets_running_work_finish(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml", drain={"grace": "PT40S"})
    async with serving(tmp_path, config) as daemon:
        execution = await daemon.submit(work(tmp_path))
        await wait_started(tmp_path)
        daemon.send(signal.SIGTERM)

        async def draining() -> bool:
            return bool(daemon.events("draining"))

        await wait_until("the drain", draining)
        (tmp_path / "open").touch()
        assert await daemon.ended() == 0
        assert not daemon.events("grace_over")
    async with serving(tmp_path, config) as daemon:
        assert (await daemon.status(execution))["status"] == "SUCCEEDED"
        assert starts(tmp_path) == 1


async def test_a21_what_does_not_finish_is_handed_back_uncharged_and_another_process_goes_on(tmp_path: Path) -> None:
    first = configure(tmp_path, "a", "hold.yaml", "example:restaurant-approval", drain={"grace": "PT1S"})
    second = configure(tmp_path, "b", "hold.yaml", "example:restaurant-approval")
    async with serving(tmp_path, first) as a:
        parked = await a.submit(ORDER, pipeline="restaurant-approval")
        await a.wait_status(parked, "WAITING_EXTERNAL")
        held = await a.submit(work(tmp_path), pipeline="hold")
        await wait_started(tmp_path)
        async with serving(tmp_path, second) as b:
            later = await b.submit(work(tmp_path, "later"), pipeline="hold")
            await wait_started(tmp_path, 2)
            a.send(signal.SIGTERM)
            assert await not_ready(a)
            assert await a.ended() == 0
            await wait_started(tmp_path, 3)
            taken = await b.wait_status(held, "RUNNING")
            assert (taken["attempt"], taken["workerLosses"]) == (0, 0)
            (tmp_path / "open").touch()
            assert (await b.wait_status(held, "SUCCEEDED"))["attempt"] == 0
            await b.wait_status(later, "SUCCEEDED")
            assert (await b.status(parked))["status"] == "WAITING_EXTERNAL"
            assert a.events("grace_over")[0]["handing_back"] >= 1
            assert await b.stop() == 0


async def not_ready(daemon: Daemon) -> bool:
    """Waits until the daemon says that it is not ready, or listens no more."""

    async def look() -> bool:
        try:
            answer = await daemon.client.get("/q/health/ready")
        except httpx.TransportError:
            return True
        return answer.status_code == 503

    return await wait_until("readiness to turn false", look)


@pytest.mark.parametrize("pipeline", ["hold-in-thread", "swallow-cancels"])
async def test_a22_a_step_that_does_not_end_holds_no_exit_up_and_commits_nothing(tmp_path: Path, pipeline: str) -> None:
    config = configure(tmp_path, "a", f"{pipeline}.yaml", drain={"grace": "500ms"})
    async with serving(tmp_path, config) as daemon:
        execution = await daemon.submit(work(tmp_path))
        await wait_started(tmp_path)
        assert await daemon.stop() == 0
        named = [event["execution_id"] for event in daemon.events("step_not_stopping")]
        assert named == ([execution] if pipeline == "swallow-cancels" else [])
    async with serving(tmp_path, config) as daemon:
        await wait_started(tmp_path, 2)
        taken = await daemon.status(execution)
        assert (taken["status"], taken["attempt"], taken["workerLosses"]) == ("RUNNING", 0, 0)
        (tmp_path / "open").touch()
        await daemon.wait_status(execution, "SUCCEEDED")
        assert await daemon.stop() == 0


async def test_a_second_signal_ends_at_once_and_the_lease_brings_the_work_back(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml", drain={"grace": "PT10M"})
    async with serving(tmp_path, config) as daemon:
        execution = await daemon.submit(work(tmp_path))
        await wait_started(tmp_path)
        daemon.send(signal.SIGTERM)
        assert await not_ready(daemon)
        daemon.send(signal.SIGTERM)
        assert await daemon.ended() == 143
    async with serving(tmp_path, config) as daemon:
        await wait_started(tmp_path, 2)
        taken = await daemon.status(execution)
        assert (taken["attempt"], taken["workerLosses"]) == (0, 1)
        (tmp_path / "open").touch()
        await daemon.wait_status(execution, "SUCCEEDED")


async def test_a06_a_step_that_kills_its_process_ends_in_the_dead_letters_and_harms_no_other(tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "kill-process.yaml", "hold.yaml", retry={"max-worker-losses": 2})
    armed, bystanders = tmp_path / "armed", []
    poison = ""
    for death in range(3):
        folder = tmp_path / f"bystander{death}"
        folder.mkdir()
        async with serving(tmp_path, config) as daemon:
            poison = poison or await daemon.submit(work(tmp_path), pipeline="kill-process")
            bystanders.append(await daemon.submit(work(folder), pipeline="hold"))
            await wait_started(folder)
            await wait_started(tmp_path, death + 1)
            armed.touch()
            assert await daemon.ended() == -signal.SIGKILL
        armed.unlink()
        (folder / "open").touch()
    async with serving(tmp_path, config) as daemon:
        ended = await daemon.wait_status(poison, "DLQ")
        assert (ended["errorCode"], starts(tmp_path)) == ("worker_lost", 3)
        for execution in bystanders:
            await daemon.wait_status(execution, "SUCCEEDED")

        async def letters() -> list[str]:
            return [letter["terminalReason"] for letter in daemon.events("dead_letter")]

        assert await wait_until("the dead letter", letters) == ["worker_lost"]
