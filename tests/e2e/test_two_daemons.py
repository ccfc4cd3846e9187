"""Two daemons on one SQLite file: whoever hears of something, both act on it at once.

Nothing in these tests may be found by polling: sweep and live poll are set to longer than a test may take.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.processes import (
    Daemon,
    configure,
    provider_arguments,
    running,
    serving,
    wait_for_file,
    wait_until,
    write_payments,
)
from tests.e2e.test_drain import ORDER
from tpfd import examples

UNTOLD: dict[str, Any] = {
    "sweep": {"interval": "PT1H"},
    "await": {"live-poll": "PT1H", "live-idle": "PT1H"},
    "lease": {"duration": "PT1H"},
}


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[Daemon]:
    """The daemon that takes files in."""
    (folder / "csv").mkdir()
    config = configure(folder, "a", "example:csv-payments", "example:restaurant-approval", **UNTOLD)
    async with serving(folder, config, CSV_FOLDER_PATH=str(folder / "csv")) as daemon:
        yield daemon
        await leave(daemon)


@asynccontextmanager
async def beside(folder: Path) -> AsyncIterator[Daemon]:
    """The daemon that has the same pipelines and watches no folder."""
    text = examples.pipeline_text("csv-payments")
    assert "enabled: true" in text
    unwatched = folder / "unwatched.yaml"
    unwatched.write_text(text.replace("enabled: true", "enabled: false"), "utf-8")
    config = configure(folder, "b", str(unwatched), "example:restaurant-approval", **UNTOLD)
    async with serving(folder, config, CSV_FOLDER_PATH=str(folder / "csv")) as daemon:
        yield daemon
        await leave(daemon)


async def leave(daemon: Daemon) -> None:
    assert await daemon.stop() == 0
    assert daemon.complained() == []


async def pending(daemon: Daemon, execution_id: str) -> list[dict[str, Any]]:
    answer = await daemon.client.get("/pipeline/interactions/pending", params={"limit": 100})
    return [one for one in answer.json() if one["executionId"] == execution_id]


async def running_here(daemon: Daemon) -> str:
    """Waits until the file's execution runs; its id."""

    async def look() -> str | None:
        found = await daemon.executions()
        return str(found[0]["executionId"]) if found and found[0]["status"] == "RUNNING" else None

    return await wait_until("the file's execution to run", look)


def rows_of(output: Path) -> Counter[str]:
    with output.open(newline="", encoding="utf-8") as file:
        return Counter(row["csvId"] for row in csv.DictReader(file))


async def test_a_provider_at_one_daemon_answers_for_work_that_the_other_has_leased(tmp_path: Path) -> None:
    output = tmp_path / "csv" / "payments.csv.out"
    async with watching(tmp_path) as a:
        write_payments(tmp_path / "csv" / "payments.csv", 300)
        execution = await running_here(a)
        async with beside(tmp_path) as b:
            arguments = provider_arguments(b.url, tmp_path / "asked.jsonl")
            async with running("provider", arguments, tmp_path) as provider:
                await wait_for_file(output)
                assert await provider.stop() == 0
            await b.wait_status(execution, "SUCCEEDED")
        assert rows_of(output) == {str(n): 1 for n in range(1, 301)}
        assert len((tmp_path / "asked.jsonl").read_text().splitlines()) == 300
        assert a.events("provider_attached") == []


async def test_answers_over_http_are_taken_by_either_daemon(tmp_path: Path) -> None:
    async with watching(tmp_path) as a, beside(tmp_path) as b:
        write_payments(tmp_path / "csv" / "payments.csv", 20)
        execution = await running_here(a)

        async def all_asked() -> list[dict[str, Any]] | None:
            found = await pending(b, execution)
            return found if len(found) == 20 else None

        asked = await wait_until("20 requests", all_asked)
        for daemon, interaction in zip(itertools.cycle((b, a)), asked, strict=False):
            await complete_payment(daemon, interaction)
        await b.wait_status(execution, "SUCCEEDED")
        assert rows_of(tmp_path / "csv" / "payments.csv.out").total() == 20


async def complete_payment(daemon: Daemon, interaction: dict[str, Any]) -> None:
    request = interaction["requestPayload"]
    approved = {
        "reference": request["csvId"],
        "status": "approved",
        "message": "by hand",
        "fee": "0.00",
        "conversationId": request["id"],
        "statusCode": 200,
        "paymentRecordId": request["id"],
        "paymentRecord": request,
    }
    body = {"interactionId": interaction["interactionId"], "responsePayload": {"approved": approved}}
    answer = await daemon.client.post("/pipeline/interactions/complete", json=body)
    assert answer.status_code == 200, answer.text


async def test_what_one_daemon_parked_is_answered_at_the_other(tmp_path: Path) -> None:
    async with watching(tmp_path) as a, beside(tmp_path) as b:
        for there, here in ((a, b), (b, a)):
            execution = await there.submit(ORDER, pipeline="restaurant-approval")
            await here.wait_status(execution, "WAITING_EXTERNAL")
            (interaction,) = await pending(here, execution)
            order = interaction["requestPayload"]["orderId"]
            decided = {"accepted": {"orderId": order, "decidedAt": "2026-11-30T12:00:00Z", "note": ""}}
            body = {"interactionId": interaction["interactionId"], "responsePayload": decided}
            assert (await here.client.post("/pipeline/interactions/complete", json=body)).status_code == 200
            answer = await there.client.get(f"/pipeline/executions/{execution}/result", params={"wait": "PT30S"})
            assert (answer.status_code, answer.json()["orderId"]) == (200, order)


@pytest.mark.parametrize("busy_timeout", ["PT5S"])
async def test_a24_no_caller_ever_sees_a_lock_and_each_execution_runs_once(tmp_path: Path, busy_timeout: str) -> None:
    (tmp_path / "open").touch()
    names = [f"{submitter}-{number}" for submitter in range(8) for number in range(50)]
    seen: list[str] = []

    async def submit_some(daemon: Daemon, mine: list[str]) -> None:
        seen.extend([await daemon.submit({"name": name, "folder": str(tmp_path)}, key=name) for name in mine])

    store = {"provider": "sqlite", "sqlite": {"path": str(tmp_path / "tpfd.db"), "busy-timeout": busy_timeout}}
    configs = [configure(tmp_path, name, "hold.yaml", store=store) for name in ("a", "b")]
    async with serving(tmp_path, configs[0]) as a, serving(tmp_path, configs[1]) as b:
        async with trio.open_nursery() as nursery:
            for submitter in range(8):
                nursery.start_soon(submit_some, (a, b)[submitter % 2], names[submitter * 50 : submitter * 50 + 50])
        for execution in seen:
            await a.wait_status(execution, "SUCCEEDED")
        assert Counter((tmp_path / "started").read_text().splitlines()) == dict.fromkeys(names, 1)
        for daemon in (a, b):
            assert await daemon.stop() == 0
            assert "lock" not in daemon.text()
