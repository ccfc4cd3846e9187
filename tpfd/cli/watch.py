"""``tpfd watch``: facts as they happen."""

from __future__ import annotations

import random

import click

from tpfd.cli.exits import Exit
from tpfd.cli.output import cell, print_json_line, printable, tell, utc
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.client import TpfdClient
from tpfd.client.feed import Fact, Feed
from tpfd.core.records import ExecutionStatus, FactType

ENDINGS = frozenset({FactType.RUN_SUCCEEDED, FactType.RUN_FAILED, FactType.RUN_CANCELLED})


@click.command(short_help="Follow what happens, as it happens.")
@click.argument("execution_id", required=False)
@click.option("--pipeline", metavar="ID", help="Only facts of this pipeline.")
@click.option("--after", type=click.IntRange(min=0), help="Only facts behind this sequence number; 0 replays all.")
@pass_settings
def watch(settings: Settings, execution_id: str | None, *, pipeline: str | None, after: int | None) -> int:
    """Follow what happens, as it happens; Ctrl-C ends it.

    It begins with what happens from now on; of one execution it shows the whole story, and ends when the execution
    has ended: exit code 0 when it succeeded, else 1. A lost connection is picked up where it was. With --output json
    each fact is one line of JSON.

    \b
    Example:
      tpfd watch 01J…
      tpfd --output json watch --pipeline csv-payments --after 0
    """

    async def work(client: TpfdClient) -> ExecutionStatus | None:
        ended_as: ExecutionStatus | None = None

        async def take(facts: list[Fact]) -> bool:
            nonlocal ended_as
            for fact in facts:
                _show(settings, fact)
            if execution_id is None or not any(fact["type"] in ENDINGS for fact in facts):
                return False
            # An ending in the history may have been re-driven since: where it stands now is what counts.
            status = ExecutionStatus((await client.status(execution_id))["status"])
            ended_as = status if status.terminal else None
            return status.terminal

        feed = Feed(
            url=settings.url,
            tenant=settings.tenant,
            token=settings.bearer(),
            execution_id=execution_id,
            pipeline=pipeline,
            after=0 if after is None and execution_id is not None else after,
            say=tell,
            dice=random.Random(),
        )
        if execution_id is not None:
            await client.status(execution_id)  # an unknown id is an error, not an endless silence
        await feed.follow(take)
        return ended_as

    ended_as = with_client(settings, work, waiting_for=None)
    return Exit.OK if ended_as in {None, ExecutionStatus.SUCCEEDED} else Exit.FAILED


def _show(settings: Settings, fact: Fact) -> None:
    if settings.output is Output.JSON:
        print_json_line(fact)
        return
    details = " ".join(f"{name}={cell(name, value)}" for name, value in fact.get("data", {}).items())
    click.echo(printable(f"{utc(fact['atEpochMs'])}  {fact['executionId']}  {fact['type']}  {details}".rstrip()))
