"""Commands about executions: submit, run, status, result, list, cancel."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import trio

from tpfd.cli.exits import Exit, NotYet
from tpfd.cli.options import actor_option, duration, person
from tpfd.cli.output import Column, print_fields, print_json, print_table, tell
from tpfd.cli.payloads import read_payload
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.client import Finished, Page, Submission, TpfdClient
from tpfd.client.answers import JsonObject
from tpfd.durations import format_duration

EXECUTION_COLUMNS: tuple[Column, ...] = (
    ("EXECUTION", "executionId"),
    ("PIPELINE", "pipelineId"),
    ("STATUS", "status"),
    ("STEP", "stepIndex"),
    ("ATTEMPT", "attempt"),
    ("UPDATED", "updatedAtEpochMs"),
    ("ERROR", "errorCode"),
)
PAGE_COUNT = 200


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name an input, its key and its pipeline."""
    for option in (
        click.option("--pipeline", metavar="ID", help="Pipeline id; needed when the daemon runs several."),
        click.option("--key", metavar="KEY", help="Idempotency key: the same key is the same execution."),
        click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="The input's file; - is stdin."),
        click.option("--input", "text", metavar="JSON", help="The input itself; - is stdin."),
    ):
        command = option(command)
    return command


@click.command(short_help="Submit an input; prints the execution id.")
@input_options
@click.option("--wait", is_flag=True, help="Wait for the result and print it.")
@click.option("--timeout", type=duration, metavar="DURATION", help="With --wait: give up waiting after this long.")
@pass_settings
def submit(
    settings: Settings,
    *,
    text: str | None,
    file: Path | None,
    key: str | None,
    pipeline: str | None,
    wait: bool,
    timeout: int | None,
) -> int:
    """Submit an input; prints the execution id.

    It is accepted once the id is printed: from then on it survives any crash. After a lost connection, submit again
    with the same --key: it is the same execution.

    \b
    Example:
      tpfd submit --pipeline restaurant-approval --file order.json --key order-17
      echo '{"filepath": "…"}' | tpfd submit --input - --wait --timeout PT5M
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait; give both")
    payload = read_payload(text, file, option="--input")

    async def work(client: TpfdClient) -> tuple[Submission, Finished | None]:
        submission = await client.submit(payload, pipeline=pipeline, key=key)
        if not wait:
            return submission, None
        return submission, await _wait(client, submission.execution_id, timeout)

    submission, finished = with_client(settings, work, waiting_for="waiting for the result")
    if finished is not None:
        tell(f"execution {submission.execution_id}")
        print_json(finished.value)
    elif settings.output is Output.JSON:
        print_json(
            {
                "executionId": submission.execution_id,
                "duplicate": submission.duplicate,
                "statusUrl": submission.status_url,
                "submittedAtEpochMs": submission.submitted_at_epoch_ms,
            }
        )
    else:
        click.echo(submission.execution_id)
        if submission.duplicate:
            tell("already known: this key was submitted before with the same input")
    return Exit.OK


@click.command(short_help="Submit an input and wait for its result.")
@input_options
@click.option("--timeout", type=duration, metavar="DURATION", help="Give up waiting after this long (exit 75).")
@pass_settings
def run(
    settings: Settings,
    *,
    text: str | None,
    file: Path | None,
    key: str | None,
    pipeline: str | None,
    timeout: int | None,
) -> int:
    """Submit an input and wait for its result.

    The execution goes on if you stop waiting; `tpfd result ID` finds it.

    \b
    Example:
      tpfd run --pipeline restaurant-approval --file order.json --timeout PT30M
    """
    payload = read_payload(text, file, option="--input")

    async def work(client: TpfdClient) -> Finished:
        submission = await client.submit(payload, pipeline=pipeline, key=key)
        tell(f"execution {submission.execution_id}")
        return await _wait(client, submission.execution_id, timeout)

    print_json(with_client(settings, work, waiting_for="waiting for the result").value)
    return Exit.OK


@click.command(short_help="Show where an execution stands.")
@click.argument("execution_id")
@pass_settings
def status(settings: Settings, execution_id: str) -> int:
    """Show where an execution stands.

    \b
    Example:
      tpfd status 01J…
    """
    view = with_client(settings, lambda client: client.status(execution_id), waiting_for="asking the daemon")
    _show(settings, view)
    return Exit.OK


@click.command(short_help="Print the result of an execution.")
@click.argument("execution_id")
@click.option("--wait", is_flag=True, help="Wait until there is one.")
@click.option("--timeout", type=duration, metavar="DURATION", help="With --wait: give up waiting after this long.")
@pass_settings
def result(settings: Settings, execution_id: str, *, wait: bool, timeout: int | None) -> int:
    """Print the result of an execution, as JSON.

    Exit code 1 when it failed, 75 when there is no result yet.

    \b
    Example:
      tpfd result 01J… --wait --timeout PT10M
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait; give both")

    async def work(client: TpfdClient) -> Finished:
        if wait:
            return await _wait(client, execution_id, timeout)
        finished = await client.peek_result(execution_id)
        if finished is None:
            raise NotYet(f"execution {execution_id} has no result yet; --wait waits for it")
        return finished

    print_json(with_client(settings, work, waiting_for="waiting for the result").value)
    return Exit.OK


@click.command("list", short_help="List executions.")
@click.option("--status", metavar="STATUS", help="Only those in this status, such as FAILED.")
@click.option("--pipeline", metavar="ID", help="Only those of this pipeline.")
@click.option("--key", metavar="KEY", help="Only the one with this idempotency key.")
@click.option("--search", multiple=True, metavar="NAME=VALUE", help="Only those with this search value; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@pass_settings
def list_executions(
    settings: Settings,
    *,
    status: str | None,
    pipeline: str | None,
    key: str | None,
    search: tuple[str, ...],
    limit: int,
) -> int:
    """List executions.

    \b
    Example:
      tpfd list --status FAILED --pipeline csv-payments
      tpfd list --search recipient='Recipient 7'
    """
    wanted = dict(_name_and_value(entry) for entry in search)

    async def page(client: TpfdClient, size: int, cursor: str | None) -> Page:
        return await client.executions(
            status=status, pipeline=pipeline, key=key, search=wanted, limit=size, cursor=cursor
        )

    return show_listing(settings, page, EXECUTION_COLUMNS, limit)


@click.command(short_help="Cancel an execution.")
@click.argument("execution_id")
@click.option("--reason", metavar="TEXT", help="Why; kept in the history.")
@actor_option
@pass_settings
def cancel(settings: Settings, execution_id: str, *, reason: str | None, actor: str | None) -> int:
    """Cancel an execution; refused (64) when it has already ended or is being published.

    \b
    Example:
      tpfd cancel 01J… --reason 'sent twice by mistake'
    """
    who = person(actor)
    view = with_client(
        settings,
        lambda client: client.cancel(execution_id, reason=reason, actor=who),
        waiting_for="asking the daemon",
    )
    _show(settings, view)
    return Exit.OK


def show_listing(
    settings: Settings,
    page_of: Callable[[TpfdClient, int, str | None], Awaitable[Page]],
    columns: tuple[Column, ...],
    limit: int,
) -> int:
    """Reads pages up to a limit and prints them; says when there was more.

    Args:
        settings: the global options.
        page_of: ``(client, size, cursor) -> page``.
        columns: of the table.
        limit: at most so many items.
    """

    listing = with_client(
        settings, lambda client: read_pages(functools.partial(page_of, client), limit), waiting_for="reading"
    )
    if settings.output is Output.JSON:
        print_json(listing.items)
    else:
        print_table(columns, listing.items)
    tell_more(listing, limit)
    return Exit.OK


async def read_pages(page_of: Callable[[int, str | None], Awaitable[Page]], limit: int) -> Page:
    """Reads pages up to a limit; what is left has the cursor.

    Args:
        page_of: ``(size, cursor) -> page``.
        limit: at most so many items.
    """
    items: list[JsonObject] = []
    cursor: str | None = None
    while len(items) < limit:
        page = await page_of(min(PAGE_COUNT, limit - len(items)), cursor)
        items += page.items
        cursor = page.cursor
        if cursor is None:
            break
    return Page(items[:limit], cursor)


def tell_more(listing: Page, limit: int) -> None:
    """Says when a listing was cut off."""
    if listing.cursor is not None:
        tell(f"there are more than these {limit}; --limit shows more")


async def _wait(client: TpfdClient, execution_id: str, timeout_ms: int | None) -> Finished:
    with trio.move_on_after(float("inf") if timeout_ms is None else timeout_ms / 1000):
        return Finished(await client.result(execution_id))
    waited = format_duration(timeout_ms or 0)
    raise NotYet(f"execution {execution_id} has no result after {waited}; it goes on, `tpfd result {execution_id}`")


def _name_and_value(entry: str) -> tuple[str, str]:
    name, found, value = entry.partition("=")
    if not found or not name:
        raise click.UsageError(f"--search {entry!r}: write NAME=VALUE")
    return name, value


def _show(settings: Settings, view: JsonObject) -> None:
    if settings.output is Output.JSON:
        print_json(view)
    else:
        print_fields(view)
