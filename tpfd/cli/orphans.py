"""``tpfd orphans``: completions that met no interaction, and saying what they answer."""

from __future__ import annotations

import click

from tpfd.cli.exits import Exit
from tpfd.cli.options import actor_option, person
from tpfd.cli.output import Column, print_fields, print_json, tell
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.cli.work import show_listing
from tpfd.client import Page, TpfdClient

ORPHAN_COLUMNS: tuple[Column, ...] = (
    ("ORPHAN", "lateId"),
    ("AT", "createdAtEpochMs"),
    ("ACTOR", "actor"),
    ("BODY", "responsePayload"),
)


@click.group(invoke_without_command=True, short_help="List completions that met no interaction; match one.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@pass_settings
@click.pass_context
def orphans(ctx: click.Context, settings: Settings, *, limit: int) -> int:
    """List completions that met no interaction, oldest first.

    Their resume token is ours, so somebody was asked; but what they name is not there (any more). Nothing happens to
    them until an operator matches them with the interaction that they answer. Operator's token.

    \b
    Example:
      tpfd orphans
      tpfd orphans match 01J….s002.000000000~5f70bf18a0860070 01K….s002.000000000
    """
    if ctx.invoked_subcommand is not None:
        return Exit.OK

    async def page(client: TpfdClient, size: int, cursor: str | None) -> Page:
        return await client.orphans(limit=size, cursor=cursor)

    return show_listing(settings, page, ORPHAN_COLUMNS, limit)


@orphans.command(short_help="Admit an orphan as the answer to an interaction.")
@click.argument("orphan_id")
@click.argument("interaction_id")
@actor_option
@pass_settings
def match(settings: Settings, orphan_id: str, interaction_id: str, *, actor: str | None) -> int:
    """Admit an orphan as the answer to an interaction.

    It is admitted, or refused (64), as if it had come for this interaction just now. Once it is admitted it leaves
    the list and stands in the history of the execution; a refused one stays. To match the same two again is harmless.

    \b
    Example:
      tpfd orphans
      tpfd pending --step await-payment-provider
      tpfd orphans match 01J….s002.000000000~5f70bf18a0860070 01K….s002.000000000 --actor maria
    """
    who = person(actor)
    answer = with_client(
        settings,
        lambda client: client.match_orphan(orphan_id, interaction_id, actor=who),
        waiting_for="asking the daemon",
    )
    if settings.output is Output.JSON:
        print_json(answer)
    else:
        print_fields(answer)
        if answer.get("duplicate"):
            tell("this answer was already there")
    return Exit.OK
