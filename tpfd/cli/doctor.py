"""``tpfd doctor``: looks at a live store and says what to look at."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import click

from tpfd.cli.exits import Exit
from tpfd.cli.findings import json_findings, print_findings
from tpfd.cli.output import print_json, print_table
from tpfd.cli.running import run_async
from tpfd.cli.serve import config_option, load, pipelines_argument, set_option
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.core.records import TenantId
from tpfd.daemon.looking import Diagnosis, examine
from tpfd.daemon.programs import load_programs

COUNT_COLUMNS = (("PIPELINE", "pipelineId"), ("STATUS", "status"), ("EXECUTIONS", "count"))


@click.command(short_help="Look at a live store; say what needs an operator.")
@pipelines_argument
@config_option
@set_option
@pass_settings
def doctor(
    settings: Settings, *, pipelines: tuple[str, ...], own_config: Path | None, flags: tuple[str, ...]
) -> int:
    """Look at a live store; say what needs an operator.

    Reads the store that the configuration names, while daemons use it or when none runs: executions by status, what is
    overdue, expired leases, what waits for answers, budgets, orphans, dead letters, the store's own state, clocks. It
    reads a bounded number of rows and changes nothing. Ends with 0 when all is well, 1 when there is something to do.

    \b
    Example:
      tpfd doctor --config /etc/tpfd/tpfd.yaml
      tpfd --output json --tenant acme doctor --config /etc/tpfd/tpfd.yaml
    """
    loaded = load(own_config or settings.config, flags, pipelines)
    programs = load_programs(loaded.config, os.environ)
    tenant = TenantId(settings.tenant or loaded.config.tenancy.default_tenant)
    found = run_async(functools.partial(examine, loaded.config, programs, tenant), waiting_for="looking")
    if settings.output is Output.JSON:
        print_json({"healthy": found.healthy, "counts": _counts(found), "findings": json_findings(found.findings)})
    else:
        if found.counts:
            print_table(COUNT_COLUMNS, _counts(found, text=True))
            click.echo()
        print_findings(found.findings)
    return Exit.OK if found.healthy else Exit.FAILED


def _counts(found: Diagnosis, *, text: bool = False) -> list[dict[str, Any]]:
    """Counts as JSON objects; as text, ``1000+`` stands for more than were counted."""
    return [
        {
            "pipelineId": one.pipeline_id,
            "status": one.status.value,
            **({"count": f"{one.count}{'+' if one.more else ''}"} if text else {"count": one.count, "more": one.more}),
        }
        for one in found.counts
    ]
