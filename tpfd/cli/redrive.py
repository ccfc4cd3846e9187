"""``tpfd redrive``: the operator's way to put failed executions back to work."""

from __future__ import annotations

from collections.abc import Callable

import click
from attrs import define, field

from tpfd.cli.exits import Exit
from tpfd.cli.options import actor_option, person
from tpfd.cli.output import print_fields, print_json, printable, tell
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.client import TpfdClient
from tpfd.client.answers import JsonObject
from tpfd.client.api import MAX_SLICE_COUNT


@click.command(short_help="Put failed executions back to work.")
@click.argument("execution_id", required=False)
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the history.")
@click.option("--expected-version", type=click.IntRange(min=0), help="The version you looked at; asked for if absent.")
@click.option("--allow-failed", is_flag=True, help="Also an execution in FAILED (DLQ needs no flag).")
@click.option("--confirmed-stopped", is_flag=True, help="For REMOTE_OUTCOME_UNKNOWN: the old call is surely over.")
@click.option("--status", type=click.Choice(["FAILED", "DLQ"]), help="In bulk: all those in this status.")
@click.option("--pipeline", metavar="ID", help="In bulk: only those of this pipeline.")
@click.option("--error-code", metavar="CODE", help="In bulk: only those that ended with this error.")
@click.option("--limit", type=click.IntRange(min=1), help="In bulk: at most so many; all of them if absent.")
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
    limit: int | None,
    dry_run: bool,
    actor: str | None,
) -> int:
    """Put one failed execution, or all that a filter finds, back to work.

    The execution keeps its id, its finished work and its provider keys. Executions whose remote outcome is unknown
    are never re-driven in bulk: name them one by one.

    In bulk the ids are printed as they are re-driven, one a line, and nothing else goes to stdout. There is no undo:
    what is back at work can only be cancelled, for good, and what it has asked of others meanwhile is asked.

    \b
    Example:
      tpfd redrive 01J… --reason 'provider is back'
      tpfd redrive --status DLQ --pipeline csv-payments --reason 'provider is back' --dry-run
      tpfd redrive --status DLQ --pipeline csv-payments --reason 'provider is back' --limit 10
    """
    if (execution_id is None) == (status is None):
        raise click.UsageError("name one execution, or give --status to re-drive in bulk")
    if execution_id is None and (confirmed_stopped or expected_version is not None):
        raise click.UsageError("--confirmed-stopped and --expected-version are for one execution, never in bulk")
    if execution_id is not None and (pipeline or error_code or dry_run or limit):
        raise click.UsageError("--pipeline, --error-code, --limit and --dry-run are for a bulk re-drive without an id")

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

    if execution_id is not None:
        answer = with_client(settings, one, waiting_for="re-driving")
        if settings.output is Output.JSON:
            print_json(answer)
        else:
            print_fields(answer)
        return Exit.OK

    def said(ids: list[str], done: int) -> None:
        if settings.output is not Output.JSON:
            for one_id in ids:
                click.echo(printable(one_id))
        tell(f"{done} {'would be re-driven' if dry_run else 're-driven'}")

    assert status is not None
    bulk = Bulk(status=status, pipeline=pipeline, error_code=error_code, reason=reason, dry_run=dry_run, actor=who)
    try:
        with_client(settings, lambda client: bulk.run(client, limit, said), waiting_for=None)
    finally:
        # Also when it ends half way: what was done is done.
        if settings.output is Output.JSON:
            print_json({"count": len(bulk.done), "executionIds": bulk.done, "dryRun": dry_run})
    if dry_run:
        tell("nothing was changed; leave out --dry-run to do it")
    return Exit.OK


@define(kw_only=True)
class Bulk:
    """A bulk re-drive, slice by slice.

    Attributes:
        done: ids of the executions that were re-driven, or with `dry_run` would be.
    """

    status: str
    pipeline: str | None
    error_code: str | None
    reason: str
    dry_run: bool
    actor: str
    done: list[str] = field(factory=list)

    async def run(self, client: TpfdClient, limit: int | None, said: Callable[[list[str], int], None]) -> None:
        """Runs until nothing follows or the limit is reached.

        Args:
            limit: at most so many; None: all of them.
            said: told the ids of each slice, and how many there are so far.
        """
        cursor: str | None = None
        while True:
            left = MAX_SLICE_COUNT if limit is None else min(MAX_SLICE_COUNT, limit - len(self.done))
            answer = await client.redrive_slice(
                status=self.status,
                pipeline=self.pipeline,
                error_code=self.error_code,
                reason=self.reason,
                limit=left,
                cursor=cursor,
                dry_run=self.dry_run,
                actor=self.actor,
            )
            self.done += answer["executionIds"]
            said(answer["executionIds"], len(self.done))
            cursor = answer.get("cursor")
            if cursor is None or len(self.done) == limit:
                return
