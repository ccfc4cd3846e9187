"""SIGKILL again and again in the middle of a payments file: nothing is lost, nothing is paid under two names."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.e2e.processes import (
    Daemon,
    configure,
    provider_arguments,
    running,
    serving,
    wait_until,
    write_payments,
)

ROW_COUNT = 600
KILL_COUNT = 3
WINDOW = 40


def answers(log: Path) -> list[dict[str, Any]]:
    """What the provider has decided so far, line by line."""
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []


async def test_a_file_comes_through_daemons_and_a_provider_that_are_killed(tmp_path: Path) -> None:
    inbox, books = tmp_path / "csv", tmp_path / "books.jsonl"
    inbox.mkdir()
    config = configure(tmp_path, "a", "example:csv-payments", steps={"max-concurrency": WINDOW})
    manners = ("--latency", "20ms", "--reject-probability", "0.1")
    address = ""

    async def answered(daemon: Daemon, share: float) -> None:
        async def look() -> bool:
            daemon.alive()
            return len(answers(books)) >= ROW_COUNT * share

        await wait_until(f"{share:.0%} of the answers", look)
        assert not (inbox / "payments.csv.out").exists()

    for kill in range(1, KILL_COUNT + 1):
        async with serving(tmp_path, config, bind=address, CSV_FOLDER_PATH=str(inbox)) as daemon:
            address = daemon.address
            if kill == 1:
                write_payments(inbox / "payments.csv", ROW_COUNT)
            async with running("provider", provider_arguments(daemon.url, books, *manners), tmp_path) as provider:
                await answered(daemon, kill / (KILL_COUNT + 2))
                if kill == 2:
                    await provider.kill()  # with requests in its hands
                await daemon.kill()
    async with serving(tmp_path, config, bind=address, CSV_FOLDER_PATH=str(inbox)) as daemon:
        (execution,) = await daemon.executions()
        async with running("provider", provider_arguments(daemon.url, books, *manners), tmp_path) as provider:
            ended = await daemon.wait_status(execution["executionId"], "SUCCEEDED")
            assert await provider.stop() == 0
        assert ended["workerLosses"] == KILL_COUNT
        assert await daemon.stop() == 0
    check_output(inbox, books)


def check_output(inbox: Path, books: Path) -> None:
    with (inbox / "payments.csv").open(newline="", encoding="utf-8") as file:
        wanted = {row["ID"]: row["Amount"] for row in csv.DictReader(file)}
    with (inbox / "payments.csv.out").open(newline="", encoding="utf-8") as file:
        got = list(csv.DictReader(file))
    assert Counter(row["csvId"] for row in got) == dict.fromkeys(wanted, 1)
    assert {row["csvId"]: row["amount"] for row in got} == wanted
    log = answers(books)
    names = {entry["csvId"]: entry["interactionId"] for entry in log}
    assert {entry["interactionId"] for entry in log} == set(names.values())
    decided = {entry["csvId"]: entry["outcome"] for entry in log}
    assert {row["csvId"]: row["status"] for row in got} == decided
    asked = Counter(entry["interactionId"] for entry in log)
    assert sum(1 for count in asked.values() if count > 1) <= WINDOW * KILL_COUNT
    assert sorted(path.name for path in inbox.iterdir()) == ["payments.csv", "payments.csv.out"]
