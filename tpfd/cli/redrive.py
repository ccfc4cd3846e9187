"""``tpfd redrive``: the operator's way to put failed executions back to work."""

from __future__ import annotations

import click

from tpfd.cli.exits import Exit
from tpfd.cli.options import actor_option, person
from tpfd.cli.output import print_fields, print_json, tell
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.client import TpfdClient
from tpfd.client.answers import JsonObject


@click.command(short_help="Put failed executions back to work.")
@click.argument("execution_id", required=False)
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the history.")
@click.option("--expected-version", type=click.IntRange(min=0), help="The version you looked at; asked for if absent.")
@click.option("--allow-failed", is_flag=True, help="Also an execution in FAILED (DLQ needs no flag).")
@click.option("--confirmed-stopped", is_flag=True, help="For REMOTE_OUTCOME_UNKNOWN: the old call is surely over.")
@click.option("--status", type=click.Choice(["FAILED", "DLQ"]), help="In bulk: all those in this status.")
@click.option("--pipeline", metavar="ID", help="In bulk: only those of this pipeline.")
@click.option("--error-code", metavar="CODE", help="In bulk: only those that ended with this error.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="In bulk: at most so many.")
@click.option("--dry-run", is_flag=True, help="In bulk: only show which ones it would be.")
@actor_option
@pass_settings
def redrive(
    settings: Settings,
    execution_id: str | None,
    *,
    reason: str,
    expected_version: int | None,
    allow_failed: bool,
    confirmed_stopped: bool,
    status: str | None,
    pipeline: str | None,
    error_code: str | None,
    limit: int,
    dry_run: bool,
    actor: str | None,
) -> int:
    """Put one failed execution, or all that a filter finds, back to work.

    The execution keeps its id, its finished work and its provider keys. Executions whose remote outcome is unknown
    are never re-driven in bulk: name them one by one.

    \b
    Example:
      tpfd redrive 01J… --reason 'provider is back'
      tpfd redrive --status DLQ --pipeline csv-payments --reason 'provider is back' --dry-run
    """
    if (execution_id is None) == (status is None):
        raise click.UsageError("name one execution, or give --status to re-drive in bulk")
    if execution_id is None and (confirmed_stopped or expected_version is not None):
        raise click.UsageError("--confirmed-stopped and --expected-version are for one execution, never in bulk")
    if execution_id is not None and (pipeline or error_code or dry_run):
        raise click.UsageError("--pipeline, --error-code and --dry-run filter a bulk re-drive; leave out the id")

    who = person(actor)

    async def one(client: TpfdClient) -> JsonObject:
        assert execution_id is not None
        version = expected_version
        if version is None:
            version = int((await client.status(execution_id))["version"])
        return await client.redrive(
            execution_id,
            expected_version=version,
            reason=reason,
            allow_failed=allow_failed,
            confirmed_stopped=confirmed_stopped,
            actor=who,
        )

    async def bulk(client: TpfdClient) -> JsonObject:
        assert status is not None
        return await client.redrive_bulk(
            status=status,
            pipeline=pipeline,
            error_code=error_code,
            reason=reason,
            limit=limit,
            dry_run=dry_run,
            actor=who,
        )

    answer = with_client(settings, bulk if execution_id is None else one, waiting_for="re-driving")
    if settings.output is Output.JSON:
        print_json(answer)
        return Exit.OK
    print_fields(answer)
    if dry_run:
        tell("nothing was changed; leave out --dry-run to do it")
    return Exit.OK
