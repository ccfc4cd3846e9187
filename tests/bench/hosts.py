"""D1, D2, C1K, C1Q: csv-payments where replicas of several hosts share a store, and over brokers.

The services are stand-ins on this machine, so what they cost is not what they cost in a cloud; what is counted is. D2
therefore compares with what the stand-in itself can do, measured in the same run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from tests.aws.standin import CLIENT_ENVIRONMENT, StandIn
from tests.aws.standin import running as standing_in
from tests.bench.csv_payments import LATENCY_S, ROWS, WINDOW, demo
from tests.bench.figures import Figure, Run, Workload, at_least, at_most
from tests.bench.processes import BenchFailed, Daemon, process_cpu_s, serving, start, tail, wait_until
from tests.kafka.broker import Broker
from tpfd.cli.demo.files import write_payments

COUNTED_ROWS = 2_000
WITHIN_S = 900.0
PROBE_ITEMS = 1_000
PROBE_PAGES = 100
PROBE_THREADS = 8
WRITES = ("put_item", "delete_item", "transact_write_items", "batch_write_item")
READS = ("get_item", "batch_get_item", "query")


@contextmanager
def _aws() -> Iterator[StandIn]:
    """A stand-in of its own, with the environment that its clients need."""
    os.environ.update(CLIENT_ENVIRONMENT)
    with standing_in() as standin:
        yield standin


def _config(folder: Path, aws: StandIn) -> Path:
    """One replica on DynamoDB, with its work announced over SQS; tables and queues are made."""
    place = {"region": aws.region, "endpoint": aws.endpoint}
    urls = {use: f"{aws.endpoint}/000000000000/bench-{use}" for use in ("work", "letters")}
    config = {
        "pipelines": ["example:csv-payments"],
        "http": {"bind": "127.0.0.1:0"},
        "store": {"provider": "dynamodb", "dynamodb": place},
        "dispatcher": {"provider": "sqs", "sqs": {**place, "queue-url": urls["work"], "wait": "1s"}},
        "dead-letters": {"provider": "sqs", "sqs": {"queue-url": urls["letters"]}},
        "steps": {"max-concurrency": WINDOW},
    }
    file = folder / "tpfd.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    provision = start("tpfd.cli.main", ["provision", "--config", str(file)], folder / "provision.log")
    if provision.process.wait(60):
        raise BenchFailed(tail(provision.log))
    return file


def _pay(folder: Path, daemon: Daemon, row_count: int) -> float:
    """Feeds a file and waits for its output; seconds."""
    arguments = ["--url", daemon.url, "--step", "await-payment-provider", "--credit", str(WINDOW)]
    arguments += ["--latency", f"{LATENCY_S * 1000:.0f}ms", "--log", str(folder / "books.jsonl")]
    provider = start("tpfd.cli.main", ["provider", *arguments], folder / "provider.log")
    try:
        wait_until("the provider", lambda: "connected" in tail(provider.log), 30)
        inbox, aside = folder / "csv", folder / "aside.csv"
        write_payments(aside, row_count)
        began_s = time.monotonic()
        aside.rename(inbox / "payments.csv")
        output = inbox / "payments.csv.out"
        wait_until("the output", output.exists, WITHIN_S, 0.05, daemon)
        took_s = time.monotonic() - began_s
        with output.open("rb") as lines:
            if (found := sum(1 for _ in lines) - 1) != row_count:
                raise BenchFailed(f"{found} rows of {row_count} came out")
        return took_s
    finally:
        provider.stop()


def _items(daemon: Daemon, operations: Sequence[str]) -> dict[str, float]:
    """Items so far, by operation and table."""
    found: dict[str, float] = {}
    for series, value in daemon.series("tpf_store_items_total"):
        if series["operation"] in operations:
            found[f"{series['operation']} {series['table']}"] = value
    return found


def _requests(daemon: Daemon) -> dict[str, float]:
    """Requests so far, by service and operation."""
    found: dict[str, float] = {}
    for series, value in daemon.series("tpf_aws_requests_total"):
        name = f"{series['service']} {series['operation']}"
        found[name] = found.get(name, 0.0) + value
    return found


def _more(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items() if value > before.get(name, 0.0)}


def _measure_counts(run: Run) -> Sequence[Figure]:
    (run.folder / "csv").mkdir()
    os.environ["CSV_FOLDER_PATH"] = str(run.folder / "csv")
    rows = run.row_count or COUNTED_ROWS
    with _aws() as aws, serving(_config(run.folder, aws), run.profile) as daemon:
        before = _items(daemon, WRITES + READS)
        _pay(run.folder, daemon, rows)
        more = _more(_items(daemon, WRITES + READS), before)
    writes = {name: count for name, count in more.items() if name.split()[0] in WRITES}
    reads = {name: count for name, count in more.items() if name.split()[0] in READS}
    return [
        Figure("record writes/row", sum(writes.values()) / rows, at_most(4)),
        Figure("record reads/row", sum(reads.values()) / rows, at_most(2)),
        *(Figure(f"{name}/row", count / rows) for name, count in sorted(more.items()) if count / rows >= 0.01),
    ]


@frozen
class _Page:
    """The mean transaction of a run: records written or checked, by table."""

    items: Mapping[str, float]

    @classmethod
    def mean(cls, written: Mapping[str, float], request_count: float) -> _Page:
        """Of the counts of `_items`."""
        of_transactions = {name.split()[1]: count for name, count in written.items() if name.startswith("transact")}
        return cls({table: count / request_count for table, count in of_transactions.items()})


def _probe(aws: StandIn, page: _Page) -> float:
    """Transactions per second of the stand-in: what a run has left in its tables is written again, in pages like its
    own, by several threads at once. It has the indexes and sizes that the run's own writes had."""
    client = aws.client("dynamodb", connections=PROBE_THREADS)
    left = {table: client.scan(TableName=table, Limit=PROBE_ITEMS)["Items"] for table in page.items}
    tables = [(table, share) for table, share in page.items.items() if len(left[table]) > share]
    pages: list[list[dict[str, Any]]] = []
    for number in range(PROBE_PAGES):
        puts = []
        for table, share in tables:
            # Pages have whole items; over all pages their number is that of the run.
            first, last = round(number * share), round((number + 1) * share)
            of_table = [left[table][place % len(left[table])] for place in range(first, last)]
            puts += [{"Put": {"TableName": table, "Item": item, **_unchanged(item)}} for item in of_table]
        pages.append(puts)

    def write(puts: list[dict[str, Any]]) -> None:
        while True:
            try:
                client.transact_write_items(TransactItems=puts)
            except client.exceptions.TransactionCanceledException as error:
                if "TransactionConflict" not in str(error):
                    raise
            else:
                return

    with ThreadPoolExecutor(PROBE_THREADS) as threads:
        began_s = time.monotonic()
        list(threads.map(write, pages))
        return len(pages) / (time.monotonic() - began_s)


def _unchanged(item: Mapping[str, Any]) -> dict[str, Any]:
    """The condition of a record's write; facts have none."""
    if "v" not in item:
        return {}
    return {"ConditionExpression": "v = :v", "ExpressionAttributeValues": {":v": item["v"]}}


def _measure_speed(run: Run) -> Sequence[Figure]:
    (run.folder / "csv").mkdir()
    os.environ["CSV_FOLDER_PATH"] = str(run.folder / "csv")
    rows = run.row_count or ROWS
    with _aws() as aws, serving(_config(run.folder, aws), run.profile) as daemon:
        before, written, cpu_s = _requests(daemon), _items(daemon, WRITES), daemon.cpu_s()
        aws_cpu_s = process_cpu_s(aws.process.pid)
        took_s = _pay(run.folder, daemon, rows)
        more, cpu_s = _more(_requests(daemon), before), daemon.cpu_s() - cpu_s
        aws_cpu_s = process_cpu_s(aws.process.pid) - aws_cpu_s
        page = _Page.mean(_more(_items(daemon, WRITES), written), more["dynamodb transact_write_items"])
        requests_s = _probe(aws, page)
    requests = sum(more.values()) / rows
    allowed = requests_s / requests
    return [
        Figure("rows/s ÷ rows/s that the stand-in allows", rows / took_s / allowed, at_least(0.8)),
        Figure("s in all", took_s, at_most(180)),
        Figure("rows/s", rows / took_s),
        Figure("rows/s that the stand-in allows", allowed),
        Figure("requests/row", requests),
        Figure("records in a transaction", sum(page.items.values())),
        Figure("stand-in's transactions/s", requests_s),
        Figure("stand-in's CPU share", aws_cpu_s / took_s),
        Figure("daemon CPU share", cpu_s / took_s),
        Figure("daemon CPU µs/row", cpu_s / rows * 1e6),
        *(Figure(f"{name}/row", count / rows) for name, count in sorted(more.items()) if count / rows >= 0.001),
    ]


def _over(run: Run, transport: str, option: str, place: str) -> Sequence[Figure]:
    summary = demo(run.folder, run.row_count or ROWS, run.profile, ["--transport", transport, option, place])
    rows = run.row_count or ROWS
    return [
        Figure("rows/s", summary["rowsPerS"]),
        Figure("peak memory of the daemon MiB", summary["peakRssBytes"] / 2**20, at_most(150)),
        Figure("daemon CPU µs/row", summary["daemonCpuS"] / rows * 1e6),
        Figure("daemon CPU share", summary["daemonCpuS"] / summary["elapsedS"]),
        Figure("first output s", summary["firstOutputS"]),
    ]


def _measure_kafka(run: Run) -> Sequence[Figure]:
    broker = Broker()
    broker.start()
    try:
        return _over(run, "kafka", "--bootstrap", broker.bootstrap)
    finally:
        broker.kill()


def _measure_sqs(run: Run) -> Sequence[Figure]:
    with _aws() as aws:
        return _over(run, "sqs", "--endpoint", aws.endpoint)


def _workload(name: str, what: str, measure: Any) -> Workload:
    return Workload(name=name, what=what, measure=measure, usual=False, most_runs=3)


WORKLOADS = (
    _workload("D1", "csv-payments on DynamoDB: items that the store reads and writes for each row", _measure_counts),
    _workload("D2", "10,000 rows on DynamoDB and SQS: as fast as the requests allow", _measure_speed),
    _workload("C1K", "C1 over Kafka", _measure_kafka),
    _workload("C1Q", "C1 over SQS", _measure_sqs),
)
