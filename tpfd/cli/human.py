"""Commands for people who decide: what waits for an answer, and answering it."""

from __future__ import annotations

from pathlib import Path

import click

from tpfd.cli.exits import Exit
from tpfd.cli.options import actor_option, person
from tpfd.cli.output import Column, print_fields, print_json, tell
from tpfd.cli.payloads import read_payload
from tpfd.cli.running import with_client
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.cli.work import show_listing
from tpfd.client import Page, TpfdClient
from tpfd.client.answers import JsonObject

PENDING_COLUMNS: tuple[Column, ...] = (
    ("INTERACTION", "interactionId"),
    ("STEP", "stepId"),
    ("WAITING SINCE", "createdAtEpochMs"),
    ("UNTIL", "deadlineEpochMs"),
    ("ASSIGNEE", "assignee"),
    ("GROUP", "group"),
    ("REQUEST", "requestPayload"),
)


@click.command(short_help="List interactions that wait for an answer.")
@click.option("--step", metavar="STEP", help="Only those of this step.")
@click.option("--assignee", metavar="NAME", help="Only those assigned to this person.")
@click.option("--group", metavar="NAME", help="Only those assigned to this group.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@pass_settings
def pending(settings: Settings, *, step: str | None, assignee: str | None, group: str | None, limit: int) -> int:
    """List interactions that wait for an answer.

    \b
    Example:
      tpfd pending --step await-restaurant-decision
    """

    async def page(client: TpfdClient, size: int, cursor: str | None) -> Page:
        return await client.pending(step=step, assignee=assignee, group=group, limit=size, cursor=cursor)

    return show_listing(settings, page, PENDING_COLUMNS, limit)


@click.command(short_help="Answer an interaction.")
@click.argument("interaction_id", required=False)
@click.option("--correlation-id", metavar="ID", help="Name the interaction by its correlation id instead.")
@click.option("--resume-token", metavar="TOKEN", help="The resume token that came with the request.")
@click.option("--payload", "text", metavar="JSON", help="The answer; - is stdin.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="File with the answer; - is stdin.")
@actor_option
@click.option("--key", metavar="KEY", help="Idempotency key of this answer.")
@pass_settings
def complete(
    settings: Settings,
    interaction_id: str | None,
    *,
    correlation_id: str | None,
    resume_token: str | None,
    text: str | None,
    file: Path | None,
    actor: str | None,
    key: str | None,
) -> int:
    """Answer an interaction.

    The same answer again is taken as a repetition; another one is refused (64): the first stands.

    \b
    Example:
      tpfd complete 01J….3.0 --actor maria \\
        --payload '{"accepted": {"orderId": "…", "decidedAt": "2026-11-30T12:00:00Z", "note": "fine"}}'
    """
    if interaction_id is None and correlation_id is None and resume_token is None:
        raise click.UsageError("name the interaction: its id, --correlation-id or --resume-token")
    payload = read_payload(text, file, option="--payload")
    who = person(actor)

    async def work(client: TpfdClient) -> JsonObject:
        return await client.complete(
            payload,
            interaction_id=interaction_id,
            correlation_id=correlation_id,
            resume_token=resume_token,
            key=key,
            actor=who,
        )

    answer = with_client(settings, work, waiting_for="asking the daemon")
    if settings.output is Output.JSON:
        print_json(answer)
    else:
        print_fields(answer)
        if answer.get("duplicate"):
            tell("this answer was already there")
    return Exit.OK
