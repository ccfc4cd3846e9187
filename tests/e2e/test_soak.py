"""A soak: one of two daemons on one file is killed or frozen every second or so, under pipelines of all kinds.

What it proves when it passes: a submit that was answered with success ended with the right result, once; an answer that
was admitted is the one on record, and of two that contradict each other exactly one was taken, whoever was asked and
whoever died or came back late; output files are whole and what was committed; nothing hangs below what has ended; the
journal tells, for every execution, one life under rising fences. What other tests cut exactly, this one cuts anywhere.

When and whom it hits comes from `SEED`; what the blow meets depends on the machine.
"""

from __future__ import annotations

import csv
import gc
import json
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.e2e.books import Books, read_books
from tests.e2e.invariants import output_violations, violations
from tests.e2e.processes import configure, provider_arguments, running, wait_until
from tests.e2e.soaking import ASKED, Crowd, Front, Seat, batch_of, disturb, spoken
from tpfd.core import ids
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import (
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    InteractionId,
    InteractionRecord,
    TenantId,
)

SEED = 20261130
KILL_COUNT = 10
FREEZE_COUNT = 2
ROW_COUNT = 80
ENDS_WITHIN_S = 90.0
"""After the last kill; a few seconds are usual."""
HANGS_S = 240.0
PIPELINES = ("ask-live.yaml", "ask-twice.yaml", "ask-lists.yaml", "example:csv-payments", "example:restaurant-approval")
SETTINGS: dict[str, Any] = {
    "lease": {"duration": "PT2S", "skew": "200ms"},
    "await": {"live-idle": "400ms", "live-poll": "200ms"},
    "retry": {"max-worker-losses": 1000},
    "steps": {"max-concurrency": 20},
}
MANNERS = (
    *("--pipeline", "csv-payments"),
    *("--latency", "20ms"),
    *("--permits-per-second", "100"),
    *("--reject-probability", "0.1"),
    *("--duplicate-probability", "0.1"),
)
DEFAULT = TenantId("default")
SUCCEEDED = ExecutionStatus.SUCCEEDED

broken_requests = pytest.mark.filterwarnings(
    # https://github.com/encode/httpx/issues/3686: what is left of a request when its connection breaks
    "ignore:Async generator 'httpx._content.ByteStream.__aiter__':ResourceWarning"
)


@broken_requests
async def test_whoever_dies_whatever_was_promised_holds(tmp_path: Path) -> None:
    inbox, outbox = tmp_path / "csv", tmp_path / "out"
    inbox.mkdir()
    outbox.mkdir()
    environ = {"CSV_FOLDER_PATH": str(inbox), "OUTPUT_FOLDER": str(outbox)}
    seats = [Seat(configure(tmp_path, name, *PIPELINES, **SETTINGS)) for name in ("a", "b")]
    with trio.fail_after(HANGS_S):
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for seat in seats:
                await nursery.start(seat.keep_running, tmp_path, environ)
            urls = [f"http://{seat.address}" for seat in seats]
            providers = [
                await stack.enter_async_context(
                    running(f"provider{number}", provider_arguments(url, tmp_path / "paid.jsonl", *MANNERS), tmp_path)
                )
                for number, url in enumerate(urls)
            ]
            clients = [
                await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False, timeout=20))
                for url in urls
            ]
            dice = random.Random()  # what the crowd does depends on what it is answered: no seed could repeat it
            crowd = Crowd(Front(clients, dice), dice)
            await soak(crowd, seats, inbox)
            for provider in providers:
                assert await provider.stop() == 0
            for seat in seats:
                await seat.leave()
    for seat in seats:
        assert seat.daemon is not None
        assert [line for line in seat.daemon.log.read_text().splitlines() if is_alarm(line)] == []
    gc.collect()  # what httpx has left behind must not be found in the next test
    books = await read_books(tmp_path / "tpfd.db")
    check_that_it_was_a_soak(books, crowd, seats)
    assert violations(books) == []
    strangers = {inbox / name for name in crowd.written}
    assert output_violations(books, {"csv-payments": inbox, "ask-live": outbox}, strangers) == []
    check_promises(books, crowd)
    check_results(books, inbox, outbox)


def is_alarm(line: str) -> bool:
    """A line of a log that only a bug can write here."""
    return '"level":"error"' in line or "Traceback" in line


async def soak(crowd: Crowd, seats: list[Seat], inbox: Path) -> None:
    """Works and disturbs; then only works, until everything has ended."""
    async with trio.open_nursery() as workers:
        for step in ASKED:
            workers.start_soon(crowd.answer, step)
        async with trio.open_nursery() as submitters:
            submitters.start_soon(crowd.submit_now_and_then)
            submitters.start_soon(crowd.write_files, inbox, ROW_COUNT)
            await disturb(seats, random.Random(SEED), KILL_COUNT, FREEZE_COUNT)
            crowd.closed = True
        try:
            await wait_until("everything to end", lambda: all_ended(crowd), ENDS_WITHIN_S)
        except AssertionError as error:
            error.add_note("\n".join(f"under way: {one}" for one in await under_way(crowd)))
            raise
        workers.cancel_scope.cancel("everything has ended")


async def under_way(crowd: Crowd) -> list[dict[str, Any]]:
    """Executions that have not ended."""
    found = []
    for status in ExecutionStatus:
        if not status.terminal:
            page = await crowd.front.call("GET", "/pipeline/executions", params={"status": status, "limit": 1000})
            found += page.json()
    return found


async def all_ended(crowd: Crowd) -> bool:
    """No execution is under way, and no file has still to be taken in."""
    if await under_way(crowd):
        return False
    files = await crowd.front.call("GET", "/pipeline/executions", params={"pipeline": "csv-payments", "limit": 1000})
    return len(files.json()) == len(crowd.written)


# ── what it came to ──


def check_that_it_was_a_soak(books: Books, crowd: Crowd, seats: list[Seat]) -> None:
    """It did what it is for: else it would prove nothing."""
    assert sum(seat.kill_count for seat in seats) == KILL_COUNT
    assert min(seat.kill_count for seat in seats) > 0
    assert len(crowd.accepted) > 20
    assert len(crowd.written) > 3
    assert books.count(FactType.LEASE_TAKEN_OVER) > 0, "nobody died with work in hand"
    assert books.count(FactType.DISPATCH_COMPLETED, "ask-live") > 0, "no live session was parked"
    published = {record.execution_id for record in books.roots("csv-payments")}
    parked = {record.parent_execution_id for record in books.all_of(EXECUTION)}
    assert published - parked, "no stream was answered live to its end"


def check_promises(books: Books, crowd: Crowd) -> None:
    """What was answered with success is so."""
    assert [f"{one.execution_id} {one.status}" for one in books.roots() if one.status is not SUCCEEDED] == []
    assert books.count(FactType.SEGMENT_ATTEMPT_FAILED) == 0, "a blow was charged to an execution"
    found = {record.execution_key: record.execution_id for record in books.roots() if record.execution_key is not None}
    assert found == crowd.accepted
    assert sorted(record.source_key or "" for record in books.roots("csv-payments")) == sorted(crowd.written)
    for interaction_id, payload in crowd.admitted.items():
        interaction = books.get(INTERACTION.key(DEFAULT, InteractionId(interaction_id)))
        assert interaction is not None
        assert answer(books, interaction) == payload, f"{interaction_id} has another answer than the one that was taken"


# ── results ──


def check_results(books: Books, inbox: Path, outbox: Path) -> None:
    """Every result is made of the answers on record, in the order of the source."""
    interactions, children = books.interactions(), books.children()

    def at(execution: ExecutionRecord, step_index: int) -> list[InteractionRecord]:
        return interactions[ids.unit_id(execution.execution_id, step_index)]

    for record in books.roots("ask-live"):
        asked = at(record, 1)
        assert [question(books, one) for one in asked] == rows_of_batch(record)
        with (outbox / f"{record.execution_id}.csv").open(newline="", encoding="utf-8") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: int(row["number"]))
        assert rows == [{key: as_csv(value) for key, value in answer(books, one).items()} for one in asked]
    for record in books.roots("ask-twice"):
        asked = at(record, 1)
        assert [question(books, one) for one in asked] == rows_of_batch(record)
        again = [one for child in children[ids.unit_id(record.execution_id, 1)] for one in at(child, 3)]
        assert [question(books, one) for one in again] == [answer(books, one) for one in asked]
        lines = [answer(books, one) for one in again]
        assert result(books, record) == {"count": len(lines), "text": spoken(lines)}
    for record in books.roots("ask-lists"):
        (rows_asked,), (lines_asked,) = at(record, 1), at(record, 3)
        assert question(books, rows_asked) == rows_of_batch(record)
        lines = question(books, lines_asked)
        assert lines == answer(books, rows_asked)
        ruling = answer(books, lines_asked)
        assert ruling["text"] == spoken(lines)
        said = f"{'yes' if ruling['yes'] else 'no'} to {spoken(lines)}"
        assert result(books, record) == {"count": len(lines), "text": said}
    for record in books.roots("restaurant-approval"):
        (asked_once,) = at(record, 2)
        outcome = "APPROVED" if "accepted" in answer(books, asked_once) else "DECLINED"
        assert result(books, record)["outcome"] == outcome
    for record in books.roots("csv-payments"):
        with (inbox / f"{record.source_key}.out").open(newline="", encoding="utf-8") as file:
            paid = Counter(row["csvId"] for row in csv.DictReader(file))
        assert paid == {str(number): 1 for number in range(1, ROW_COUNT + 1)}


def rows_of_batch(record: ExecutionRecord) -> list[dict[str, object]]:
    """The rows that a submit asked for, which its idempotency key tells."""
    assert record.execution_key is not None
    name, _, number = record.execution_key.rpartition("-")
    batch = batch_of(record.execution_key, int(number))
    assert name == record.pipeline_id
    return [
        {"number": row, "text": f"{batch['name']}-{row}{batch['padding']}"} for row in range(int(str(batch["count"])))
    ]


def as_csv(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def question(books: Books, interaction: InteractionRecord) -> Any:
    return parsed(books, interaction.request, interaction.request_stored_id)


def answer(books: Books, interaction: InteractionRecord) -> Any:
    return parsed(books, interaction.response, interaction.response_stored_id)


def result(books: Books, record: ExecutionRecord) -> Any:
    assert record.result is not None
    return parsed(books, record.result.json, record.result.stored_id)


def parsed(books: Books, text: str | None, stored_id: str | None) -> Any:
    found = text if stored_id is None else books.stored_text(DEFAULT, stored_id)
    assert found is not None
    return json.loads(found)
