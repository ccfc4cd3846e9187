"""The csv-payments demo: daemon, provider, one file in, one file out, and what it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
import yaml
from attrs import frozen

from tpfd.cli.demo.children import Child, DemoFailed, child_environ, daemon, file_work, running, sqlite_or_memory
from tpfd.cli.demo.files import (
    LineCounter,
    OutputCount,
    copy_aside,
    count_output,
    count_rows,
    move_into,
    peak_rss_bytes,
    write_payments,
)
from tpfd.cli.demo.links import Link, linked
from tpfd.client import TpfdClient
from tpfd.core.records import ExecutionStatus, FactType
from tpfd.durations import format_duration
from tpfd.examples import pipeline_text

PIPELINE = "csv-payments"
STEP = "await-payment-provider"
OUTPUT_POLL_S = 0.01
STATUS_POLL_S = 0.5
PROGRESS_POLL_S = 0.25
COMMIT_WITHIN_S = 30.0


@frozen
class CsvDemo:
    """What to run.

    Attributes:
        folder: everything the demo writes is in it; it must hold no earlier run.
        source: the payments file; None makes one.
        row_count: rows of the file that is made.
        latency_ms: how long the provider thinks about each payment.
        permits_per_second: the provider's pace; 0 is without limit.
        reject_probability: share of payments that the provider does not approve.
        window: unanswered requests at a time.
        store: ``sqlite`` or ``memory``.
        transport: one of `links.TRANSPORTS`.
        endpoint: of SQS or of Kafka's brokers, where that is the transport.
    """

    folder: Path
    source: Path | None
    row_count: int
    latency_ms: int
    permits_per_second: float
    reject_probability: float
    window: int
    store: str
    transport: str
    endpoint: str = ""

    @property
    def name(self) -> str:
        """The file's name in the inbox."""
        return "payments.csv" if self.source is None else self.source.name

    @property
    def inbox(self) -> Path:
        """The folder that the daemon watches."""
        return self.folder / "csv"

    @property
    def output(self) -> Path:
        """Where the output appears."""
        return self.inbox / f"{self.name}.out"

    @property
    def provider_log(self) -> Path:
        """The provider's books."""
        return self.folder / "provider.jsonl"

    def provider_arguments(self, link: Link) -> list[str]:
        """The provider's command line."""
        options = {
            **link.provider_options,
            "--step": STEP,
            "--latency": format_duration(self.latency_ms),
            "--permits-per-second": str(self.permits_per_second),
            "--reject-probability": str(self.reject_probability),
            "--log": str(self.provider_log),
        }
        return ["provider", *(part for option in options.items() for part in option)]


@frozen
class Took:
    """When things happened, from the moment that the file was visible."""

    elapsed_s: float
    first_output_s: float
    execution_id: str
    peak_rss_bytes: int | None


async def run_csv_demo(demo: CsvDemo) -> dict[str, Any]:
    """Runs the demo.

    Returns:
        The summary, as ``--output json`` prints it.

    Raises:
        DemoFailed: a process ended, or the numbers do not add up.
        ExecutionFailed: the pipeline refused the file.
    """
    await file_work(_prepare, demo)
    aside, row_count = await file_work(_make_input, demo)
    async with linked(demo.transport, demo.folder, demo.window, demo.endpoint) as link:
        environ = {"CSV_FOLDER_PATH": str(demo.inbox), **link.environ}
        sections = {
            "store": sqlite_or_memory(demo.store, demo.folder),
            "steps": {"max-concurrency": demo.window},
            **link.sections,
        }
        if link.transport is not None:
            sections["pipelines"] = [await file_work(_write_pipeline, demo.folder, link.transport)]
        async with (
            daemon(demo.folder, PIPELINE, environ=environ, port=link.port, **sections) as (server, client),
            running(
                "tpfd provider",
                demo.provider_arguments(link),
                demo.folder / "provider.log",
                child_environ({}),
            ) as provider,
        ):
            await provider.says(link.ready)
            took = await _watched(demo, aside, row_count, client, server, provider)
    counted = await file_work(count_output, demo.output)
    summary = _summary(demo, counted, took)
    if counted.rows != row_count or counted.approved + counted.unapproved != row_count:
        raise DemoFailed(f"{row_count} rows went in, and this came out: {summary}")
    return summary


def _prepare(demo: CsvDemo) -> None:
    demo.inbox.mkdir(parents=True, exist_ok=True)
    if any(demo.inbox.iterdir()) or (demo.folder / "tpfd.db").exists():
        raise DemoFailed(f"{demo.folder} holds an earlier run; give another --dir, or none")


def _make_input(demo: CsvDemo) -> tuple[Path, int]:
    if demo.source is not None:
        aside = copy_aside(demo.source, demo.folder)
        return aside, count_rows(aside)
    aside = demo.folder / f".{demo.name}.part"
    write_payments(aside, demo.row_count)
    return aside, demo.row_count


def _write_pipeline(folder: Path, transport: Mapping[str, Any]) -> str:
    """The example's pipeline with another transport, in a file of its own; its path."""
    pipeline = yaml.safe_load(pipeline_text(PIPELINE))
    (step,) = [step for step in pipeline["steps"] if "await" in step]
    step["await"]["transport"] = dict(transport)
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False), encoding="utf-8")
    return str(path)


async def _watched(
    demo: CsvDemo, aside: Path, row_count: int, client: TpfdClient, server: Child, provider: Child
) -> Took:
    """Feeds the file and waits for the output, while both processes live and the execution does not fail."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.must_live)
        nursery.start_soon(provider.must_live)
        began_s, began_epoch_ms = await file_work(move_into, aside, demo.inbox, demo.name)
        nursery.start_soon(_must_not_fail, client)
        if sys.stderr.isatty():
            nursery.start_soon(_show_progress, demo.provider_log, row_count)
        output = trio.Path(demo.output)
        while True:
            if await output.exists():
                break
            await trio.sleep(OUTPUT_POLL_S)
        elapsed_s = time.monotonic() - began_s
        execution_id = await _succeeded(client)
        first_epoch_ms = await _first_output_epoch_ms(client, execution_id)
        peak = await file_work(peak_rss_bytes, server.process.pid)
        nursery.cancel_scope.cancel(reason="the output is there")
    return Took(elapsed_s, (first_epoch_ms - began_epoch_ms) / 1000, execution_id, peak)


async def _must_not_fail(client: TpfdClient) -> None:
    while True:
        await trio.sleep(STATUS_POLL_S)
        for view in (await client.executions(pipeline=PIPELINE)).items:
            if ExecutionStatus(view["status"]).terminal:
                await client.peek_result(view["executionId"])  # says why, when it failed


async def _succeeded(client: TpfdClient) -> str:
    """The execution's id, once its success is committed; the output appears a moment before."""
    with trio.move_on_after(COMMIT_WITHIN_S):
        while True:
            for view in (await client.executions(pipeline=PIPELINE)).items:
                if view["status"] == ExecutionStatus.SUCCEEDED:
                    return str(view["executionId"])
            await trio.sleep(OUTPUT_POLL_S)
    raise DemoFailed(f"the output is there, but no execution succeeded within {COMMIT_WITHIN_S:.0f} s")


async def _first_output_epoch_ms(client: TpfdClient, execution_id: str) -> int:
    cursor: str | None = None
    while True:
        page = await client.history(execution_id, cursor=cursor)
        for fact in page.items:
            if fact["type"] == FactType.OUTPUT_STARTED:
                return int(fact["atEpochMs"])
        cursor = page.cursor
        if cursor is None:
            raise DemoFailed(f"the history of {execution_id} does not say when its first output was written")


async def _show_progress(provider_log: Path, row_count: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counter = LineCounter(provider_log)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("payments answered", total=row_count)
        while True:
            progress.update(task, completed=await file_work(counter.update))
            await trio.sleep(PROGRESS_POLL_S)


def _summary(demo: CsvDemo, counted: OutputCount, took: Took) -> dict[str, Any]:
    return {
        "rows": counted.rows,
        "approved": counted.approved,
        "unapproved": counted.unapproved,
        "elapsedS": round(took.elapsed_s, 3),
        "rowsPerS": round(counted.rows / took.elapsed_s, 1),
        "firstOutputS": round(took.first_output_s, 3),
        "output": str(demo.output),
        "executionId": took.execution_id,
        "peakRssBytes": took.peak_rss_bytes,
        "store": demo.store,
        "transport": demo.transport,
    }


