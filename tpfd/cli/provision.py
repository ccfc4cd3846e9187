"""``tpfd provision``: makes the tables and queues that a configuration uses, or prints what would be needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from tpfd.cli.exits import Exit
from tpfd.cli.output import print_json, printable
from tpfd.cli.running import run_async
from tpfd.cli.serve import config_option, load, pipelines_argument, set_option
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.daemon.programs import load_programs
from tpfd.daemon.provisioning import Provisioner
from tpfd.daemon.resources import resources_of
from tpfd.daemon.templates import cloudformation, iam_policy
from tpfd.errors import ConfigError, Problem

DOCUMENTS = {"iam": iam_policy, "cloudformation": cloudformation}


@click.command(short_help="Make the tables and queues that a configuration uses.")
@pipelines_argument
@config_option
@set_option
@click.option("--print", "document", type=click.Choice(list(DOCUMENTS)), help="Print a document instead; make nothing.")
@pass_settings
def provision(
    settings: Settings,
    *,
    pipelines: tuple[str, ...],
    own_config: Path | None,
    flags: tuple[str, ...],
    document: str | None,
) -> int:
    """Make the tables and queues that a configuration uses.

    DynamoDB tables with their indexes and time-to-live, SQS queues with a redrive policy where dead-letters names a
    queue. What is there is left as it is, so it may be run again at any time. Buckets are not made. --print shows the
    IAM policy that the daemon needs, or a CloudFormation template of the same tables and queues.

    \b
    Example:
      tpfd provision --config /etc/tpfd/tpfd.yaml
      tpfd provision --config /etc/tpfd/tpfd.yaml --print iam > policy.json
    """
    loaded = load(own_config or settings.config, flags, pipelines)
    resources = resources_of(loaded.config, load_programs(loaded.config, os.environ))
    if not resources.any_of_aws:
        message = "the configuration uses nothing of AWS, so there is nothing to make; set store.provider: dynamodb, "
        raise ConfigError([Problem("$", f"{message}dispatcher.provider: sqs or the like")])
    if document is not None:
        print_json(DOCUMENTS[document](resources))
        return Exit.OK
    made: list[dict[str, Any]] = []

    def tell(kind: str, name: str, new: bool) -> None:
        made.append({"kind": kind, "name": name, "made": new})
        if settings.output is not Output.JSON:
            click.echo(f"{'made     ' if new else 'was there'}  {kind} {printable(name)}")

    run_async(lambda: Provisioner(tell).make(resources), waiting_for="making tables and queues")
    if settings.output is Output.JSON:
        print_json({"resources": made})
    return Exit.OK
