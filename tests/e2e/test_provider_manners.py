"""csv-payments against a provider that answers twice, too late or never, operated by the command line."""

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
from tpfd import examples

PATIENCE = "timeout: PT5M"


async def command(folder: Path, daemon: Daemon, *arguments: str) -> Any:
    """Runs a command of the operator; what it prints."""
    async with running("command", ["--url", daemon.url, "--output", "json", *arguments], folder) as process:
        code = await process.ended()
        assert code == 0, process.text()
        return process.printed()


async def the_execution(daemon: Daemon) -> str:
    async def look() -> str | None:
        found = await daemon.executions()
        return str(found[0]["executionId"]) if found else None

    return await wait_until("the file to be taken", look)


def rows_of(output: Path) -> Counter[str]:
    with output.open(newline="", encoding="utf-8") as file:
        return Counter(row["csvId"] for row in csv.DictReader(file))


async def test_answers_that_come_twice_count_once(tmp_path: Path) -> None:
    inbox = tmp_path / "csv"
    inbox.mkdir()
    config = configure(tmp_path, "a", "example:csv-payments")
    async with serving(tmp_path, config, CSV_FOLDER_PATH=str(inbox)) as daemon:
        arguments = provider_arguments(daemon.url, tmp_path / "books.jsonl", "--duplicate-probability", "1")
        async with running("provider", ["--output", "json", *arguments], tmp_path) as provider:
            write_payments(inbox / "payments.csv", 100)
            await daemon.wait_status(await the_execution(daemon), "SUCCEEDED")
            assert await provider.stop() == 0
            tally = provider.printed()
        assert (tally["asked"], tally["refused"]) == (100, 0)
        assert rows_of(inbox / "payments.csv.out") == {str(n): 1 for n in range(1, 101)}
        assert await daemon.stop() == 0
        assert daemon.complained() == []


async def test_a10_too_late_is_on_record_and_a_re_drive_asks_only_what_has_no_answer(tmp_path: Path) -> None:
    inbox, books = tmp_path / "csv", tmp_path / "books.jsonl"
    inbox.mkdir()
    text = examples.pipeline_text("csv-payments")
    assert PATIENCE in text
    (tmp_path / "impatient.yaml").write_text(text.replace(PATIENCE, "timeout: PT2S"), "utf-8")
    config = configure(tmp_path, "a", str(tmp_path / "impatient.yaml"))
    async with serving(tmp_path, config, CSV_FOLDER_PATH=str(inbox)) as daemon:
        manners = ("--late-probability", "0.5")
        async with running("provider", provider_arguments(daemon.url, books, *manners), tmp_path) as provider:
            write_payments(inbox / "payments.csv", 20)
            execution = await the_execution(daemon)
            failed = await daemon.wait_status(execution, "FAILED")
            assert failed["terminalReason"] == "await_timeout"

            async def late_on_record() -> bool:
                answer = await daemon.client.get(f"/pipeline/executions/{execution}/late")
                return answer.status_code == 200 and len(answer.json()) > 0

            await wait_until("the late answers to be on record", late_on_record)
            assert await provider.stop() == 0
        asked = [json.loads(line) for line in books.read_text().splitlines()]
        assert not (inbox / "payments.csv.out").exists()
        assert (await daemon.status(execution))["status"] == "FAILED"
        async with running("provider", provider_arguments(daemon.url, books), tmp_path) as provider:
            await command(tmp_path, daemon, "redrive", execution, "--reason", "the provider is back", "--allow-failed")
            await daemon.wait_status(execution, "SUCCEEDED")
            assert await provider.stop() == 0
        assert rows_of(inbox / "payments.csv.out") == {str(n): 1 for n in range(1, 21)}
        again = [json.loads(line) for line in books.read_text().splitlines()][len(asked) :]
        assert 0 < len(again) < 20
        assert {entry["interactionId"] for entry in again} <= {entry["interactionId"] for entry in asked}
        assert await daemon.stop() == 0
