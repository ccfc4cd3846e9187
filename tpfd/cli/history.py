"""``tpfd history``: the facts of one execution, and the completions that it did not take."""

from __future__ import annotations

import functools

import click

from tpfd.cli.exits import Exit
from tpfd.cli.output import Column, print_json, print_table
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.cli.work import read_pages, tell_more
from tpfd.client import Page, TpfdClient

FACT_COLUMNS: tuple[Column, ...] = (("SEQ", "seq"), ("AT", "atEpochMs"), ("FACT", "type"), ("DATA", "data"))
LATE_COLUMNS: tuple[Column, ...] = (
    ("AT", "createdAtEpochMs"),
    ("ANSWER", "reason"),
    ("INTERACTION", "interactionId"),
    ("ACTOR", "actor"),
    ("BODY", "responsePayload"),
)


@click.command(short_help="Show what happened to an execution.")
@click.argument("execution_id")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most so many facts.")
@pass_settings
def history(settings: Settings, execution_id: str, *, limit: int) -> int:
    """Show what happened to an execution, oldest first, and the answers that changed nothing.

    Those came too late (late), contradicted the admitted answer (conflicting), or met no interaction until an operator
    said what they answer (matched). With --output json it is {"facts": […], "late": […]}.

    \b
    Example:
      tpfd history 01J…
    """

    async def work(client: TpfdClient) -> tuple[Page, Page]:
        facts = await read_pages(functools.partial(_facts, client, execution_id), limit)
        return facts, await read_pages(functools.partial(_late, client, execution_id), limit)

    facts, late = with_client(settings, work, waiting_for="reading")
    if settings.output is Output.JSON:
        print_json({"facts": facts.items, "late": late.items})
    else:
        print_table(FACT_COLUMNS, facts.items)
        if late.items:
            click.echo()
            print_table(LATE_COLUMNS, late.items)
    tell_more(facts, limit)
    tell_more(late, limit)
    return Exit.OK


async def _facts(client: TpfdClient, execution_id: str, size: int, cursor: str | None) -> Page:
    return await client.history(execution_id, limit=size, cursor=cursor)


async def _late(client: TpfdClient, execution_id: str, size: int, cursor: str | None) -> Page:
    return await client.late(execution_id, limit=size, cursor=cursor)
