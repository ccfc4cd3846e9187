"""The commands of ``tpfd demo``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click
from attrs import asdict

from tpfd.cli.demo.csv_payments import CsvDemo, run_csv_demo
from tpfd.cli.demo.ha import HaDemo, Passed, run_ha_demo
from tpfd.cli.demo.ha_gate import GATE
from tpfd.cli.demo.links import TRANSPORTS
from tpfd.cli.demo.restaurant import DECISIONS, run_restaurant_demo
from tpfd.cli.exits import Exit
from tpfd.cli.options import PROBABILITY, duration_or_zero
from tpfd.cli.output import print_fields, print_json, printable, tell
from tpfd.cli.running import run_async
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.examples.csv_payments.csv_check import Report, dry_run

STORES = ("sqlite", "memory")
USUAL_ROWS = 1_000

dir_option = click.option(
    "--dir", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Where to work; a new temporary folder."
)
store_option = click.option("--store", type=click.Choice(STORES), default="sqlite", show_default=True, help="Store.")


@click.group(short_help="Run a shipped example from end to end; nothing else is needed.")
def demo() -> None:
    """Run a shipped example from end to end; nothing else is needed.

    \b
    Example:
      tpfd demo csv-payments
      tpfd demo restaurant-approval
    """


@demo.command("csv-payments", short_help="Pay a CSV file through a mock payment provider.")
@click.option("--file", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Payments file.")
@click.option("--rows", type=click.IntRange(min=1), help=f"Make a file of so many rows.  [default: {USUAL_ROWS}]")
@dir_option
@click.option(
    "--latency", type=duration_or_zero, default="20ms", show_default=True, metavar="DURATION", help="Provider's delay."
)
@click.option("--permits-per-second", type=click.FloatRange(0), default=0.0, help="Provider's pace; 0: no limit.")
@click.option("--reject-probability", type=PROBABILITY, default=0.08, show_default=True, help="Share not approved.")
@click.option("--window", type=click.IntRange(1, 10_000), default=250, show_default=True, help="Unanswered requests.")
@store_option
@click.option(
    "--transport", type=click.Choice(TRANSPORTS), default="websocket", show_default=True, help="How it is asked."
)
@click.option("--endpoint", default="", metavar="URL", help="With sqs: another endpoint than the region's.")
@click.option("--bootstrap", default="", metavar="HOST:PORT", help="With kafka: the brokers; needed there.")
@click.option("--dry-run", "only_check", is_flag=True, help="Check the file with the pipeline's own code; pay nothing.")
@pass_settings
def csv_payments(
    settings: Settings,
    *,
    source: Path | None,
    rows: int | None,
    folder: Path | None,
    latency: int,
    permits_per_second: float,
    reject_probability: float,
    window: int,
    store: str,
    transport: str,
    endpoint: str,
    bootstrap: str,
    only_check: bool,
) -> int:
    """Pay a CSV file through a mock payment provider.

    Starts a daemon and the provider as processes of their own, moves the file into the daemon's inbox, waits for the
    output and says what it took. Files stay in --dir.

    \b
    Example:
      tpfd demo csv-payments --rows 10000
      tpfd --output json demo csv-payments --file payments.csv --dir /tmp/run --latency 50ms
      tpfd demo csv-payments --transport kafka --bootstrap 127.0.0.1:9092
      tpfd demo csv-payments --file payments.csv --dry-run
    """
    if source is not None and rows is not None:
        raise click.UsageError("give --file or --rows, not both")
    if source is not None and source.suffix != ".csv":
        raise click.UsageError(f"--file {source}: the pipeline takes files whose name ends in .csv")
    if only_check:
        if source is None:
            raise click.UsageError("--dry-run checks a file; name it with --file")
        return _check_only(settings, source)
    for name, option, given in (("sqs", "--endpoint", endpoint), ("kafka", "--bootstrap", bootstrap)):
        if given and transport != name:
            raise click.UsageError(f"{option} is for --transport {name}")
    if transport == "kafka" and not bootstrap:
        raise click.UsageError("--transport kafka needs --bootstrap HOST:PORT: a broker that is running already")
    work = CsvDemo(
        folder=_work_folder(folder),
        source=source,
        row_count=rows or USUAL_ROWS,
        latency_ms=latency,
        permits_per_second=permits_per_second,
        reject_probability=reject_probability,
        window=window,
        store=store,
        transport=transport,
        endpoint=endpoint or bootstrap,
    )
    summary = run_async(lambda: run_csv_demo(work), waiting_for=None)
    if settings.output is Output.JSON:
        print_json(summary)
    else:
        print_fields(summary)
    return Exit.OK


@demo.command("restaurant-approval", short_help="An order that waits for a person's decision.")
@click.option("--decision", type=click.Choice(DECISIONS), help="Decide so; asked at the terminal if absent.")
@dir_option
@store_option
@pass_settings
def restaurant_approval(settings: Settings, *, decision: str | None, folder: Path | None, store: str) -> int:
    """An order that waits for a person's decision.

    Starts a daemon, submits an order, shows what waits for the restaurant, sends the decision and prints how the order
    ended.

    \b
    Example:
      tpfd demo restaurant-approval
      tpfd --output json demo restaurant-approval --decision decline
    """
    if decision is None and not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask: give --decision accept or decline")
    where = _work_folder(folder)
    state = run_async(lambda: run_restaurant_demo(where, store=store, decision=decision), waiting_for=None)
    if settings.output is Output.JSON:
        print_json(state)
    else:
        print_fields(state)
    return Exit.OK


@demo.command("ha", short_help="Replicas on DynamoDB and SQS, killed and stopped in every way.")
@click.option("--endpoint", default="", metavar="URL", help="A service to use; starts ministack if absent.")
@click.option("--replicas", type=click.IntRange(2, 5), default=2, show_default=True, help="Daemons.")
@click.option("--check", "only", multiple=True, type=click.Choice([name for name, _ in GATE]), help="Only this check.")
@dir_option
@pass_settings
def high_availability(
    settings: Settings, *, endpoint: str, replicas: int, only: tuple[str, ...], folder: Path | None
) -> int:
    """Replicas on DynamoDB and SQS, killed and stopped in every way.

    Starts a local stand-in for the two services (pip install ministack), makes tables and queues, starts the replicas
    with the framework's high-availability baseline, and puts them through a gate of checks. Ends with 1 when one fails.

    \b
    Example:
      tpfd demo ha
      tpfd demo ha --replicas 3 --check takeover --check drain
      tpfd demo ha --endpoint http://127.0.0.1:4566
    """
    work = HaDemo(folder=_work_folder(folder), endpoint=endpoint, replica_count=replicas, only=only)
    quiet = settings.output is Output.JSON

    def tell_passed(one: Passed) -> None:
        if not quiet:
            mark = click.style("ok ", fg="green") if one.ok else click.style("!! ", fg="red")
            click.echo(f"{mark} {one.check.ljust(16)}  {one.seconds:5.1f} s  {printable(one.said)}")

    found = run_async(lambda: run_ha_demo(work, tell_passed), waiting_for=None)
    if quiet:
        print_json([asdict(one) for one in found])
    return Exit.OK if all(one.ok for one in found) else Exit.FAILED


def _work_folder(folder: Path | None) -> Path:
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="tpfd-demo-"))
        tell(f"working in {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--dir {folder}: {error.strerror}") from error
    return folder.resolve()


def _check_only(settings: Settings, source: Path) -> int:
    errors = source.with_name(f"{source.name}.errors.csv")
    try:
        report = dry_run(source, errors)
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from error
    if not report.problem_count:
        errors.unlink()
    if settings.output is Output.JSON:
        print_json(
            {
                "rows": report.row_count,
                "badRows": report.bad_row_count,
                "problems": report.problem_count,
                "errorFile": str(errors) if report.problem_count else None,
            }
        )
    else:
        _tell_report(report, errors)
    return Exit.FAILED if report.problem_count else Exit.OK


def _tell_report(report: Report, errors: Path) -> None:
    for problem in report.problems:
        click.echo(printable(str(problem)))
    if not report.problem_count:
        click.echo(f"{report.row_count} rows, all of them good; nothing was paid")
        return
    click.echo(f"{report.problem_count} problems in {report.row_count} rows; nothing was paid; all of them: {errors}")
