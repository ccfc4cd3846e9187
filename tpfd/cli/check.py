"""``tpfd check`` and ``tpfd types``: look at configuration and pipelines without starting anything.

`check` loads with the daemon's own code, so that what passes here starts there, as far as that can be known without
opening the store and binding the port. With ``--connect`` it also reaches out for what the configuration names.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tpfd.cli.exits import Exit
from tpfd.cli.findings import json_findings, print_findings
from tpfd.cli.output import print_json, print_table, printable, tell
from tpfd.cli.running import run_async
from tpfd.cli.serve import config_option, load, pipelines_argument, set_option
from tpfd.cli.settings import Output, Settings, pass_settings
from tpfd.config.load import DEFAULT, Loaded
from tpfd.config.render import effective
from tpfd.config.secrets import read_secrets
from tpfd.config.startup import check_startup
from tpfd.daemon.connecting import connections
from tpfd.daemon.findings import Finding
from tpfd.daemon.programs import load_programs, needs, read_pipeline
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.emit_types import types_module
from tpfd.pipeline.loader import load_pipeline
from tpfd.program import Program

CONFIG_COLUMNS = (("KEY", "key"), ("VALUE", "value"), ("FROM", "origin"), ("FRAMEWORK PROPERTY", "framework"))
PIPELINE_COLUMNS = (
    ("PIPELINE", "pipelineId"),
    ("STEP", "stepId"),
    ("KIND", "kind"),
    ("CARDINALITY", "cardinality"),
    ("INPUT", "input"),
    ("OUTPUT", "output"),
)


@click.command(short_help="Check configuration and pipelines; show the effective values.")
@pipelines_argument
@config_option
@set_option
@click.option("--all", "show_all", is_flag=True, help="Show keys that have their default value too.")
@click.option("--connect", is_flag=True, help="Try to reach the store, queues and buckets too; changes nothing.")
@pass_settings
def check(
    settings: Settings,
    *,
    pipelines: tuple[str, ...],
    own_config: Path | None,
    flags: tuple[str, ...],
    show_all: bool,
    connect: bool,
) -> int:
    """Check configuration and pipelines; show the effective values.

    Lists every problem at once as `message @ $.path` and ends with 78 if there is one. Secrets are masked. With
    --connect, ends with 1 when something cannot be worked with, and says what to do about it.

    \b
    Example:
      tpfd check --config /etc/tpfd/tpfd.yaml
      tpfd check pipeline.yaml
      tpfd check --connect --config /etc/tpfd/tpfd.yaml
      tpfd --output json check --config tpfd.yaml --set store.provider=memory
    """
    loaded = load(own_config or settings.config, flags, pipelines)
    programs, warnings = _examine(loaded)
    rows = [
        {"key": row.key, "value": row.value, "origin": row.origin, "framework": row.framework or None}
        for row in effective(loaded)
        if show_all or settings.output is Output.JSON or row.origin != DEFAULT
    ]
    steps = [step for program in programs for step in _steps(program)]
    found = _reach(loaded, programs) if connect else None
    healthy = found is None or all(finding.ok for finding in found)
    if settings.output is Output.JSON:
        answer = {
            "config": rows,
            "pipelines": [_pipeline(program) for program in programs],
            "warnings": [{"path": warning.path, "message": warning.message} for warning in warnings],
        }
        print_json(answer if found is None else {**answer, "connections": json_findings(found)})
        return Exit.OK if healthy else Exit.FAILED
    if rows:
        print_table(CONFIG_COLUMNS, rows)
        click.echo()
    print_table(PIPELINE_COLUMNS, steps)
    for program in programs:
        for key in program.pipeline.unused_keys:
            tell(f"not used: {printable(key)} of {program.pipeline_id}")
    for warning in warnings:
        tell(f"warning: {printable(str(warning))}")
    if found is not None:
        click.echo()
        print_findings(found)
    if not healthy:
        return Exit.FAILED
    tell("everything is in order" if show_all or not rows else "everything is in order; --all shows the defaults too")
    return Exit.OK


@click.command(short_help="Print a pipeline's types as a Python module.")
@click.argument("pipeline_file", metavar="PIPELINE")
@pass_settings
def types(settings: Settings, pipeline_file: str) -> int:
    """Print a pipeline's types as a Python module, to start your own from.

    PIPELINE is a pipeline.yaml, or example:NAME.

    \b
    Example:
      tpfd types pipeline.yaml > payments/types.py
    """
    if settings.output is Output.JSON:
        raise click.UsageError("types prints Python; leave out --output json")
    text, origin = read_pipeline(pipeline_file)
    click.echo(types_module(load_pipeline(text, origin, os.environ)), nl=False)
    return Exit.OK


def _examine(loaded: Loaded) -> tuple[list[Program], Sequence[Problem]]:
    """The pipelines and the warnings of a configuration.

    Raises:
        ConfigError: every problem that would end a start, of pipelines, secrets and startup rules together.
    """
    problems: list[Problem] = []
    programs: dict[str, Program] = {}
    try:
        programs = load_programs(loaded.config, os.environ)
    except ConfigError as error:
        problems += error.problems
    try:
        read_secrets(loaded.config, os.environ)
    except ConfigError as error:
        problems += error.problems
    findings = check_startup(loaded.config, needs(programs))
    problems += findings.errors
    if problems:
        raise ConfigError(problems)
    return list(programs.values()), findings.warnings


def _reach(loaded: Loaded, programs: Sequence[Program]) -> list[Finding]:
    """What answers of what the configuration names."""
    by_id = {program.pipeline_id: program for program in programs}
    return run_async(functools.partial(connections, loaded.config, by_id), waiting_for="connecting")


def _steps(program: Program) -> list[dict[str, Any]]:
    return [
        {
            "pipelineId": program.pipeline_id,
            "stepId": step.step_id,
            "kind": step.kind.value,
            "cardinality": step.cardinality.value,
            "input": step.input_type,
            "output": step.output_type,
        }
        for step in program.pipeline.steps
    ]


def _pipeline(program: Program) -> dict[str, Any]:
    return {
        "pipelineId": program.pipeline_id,
        "contractVersion": program.pipeline.contract_version,
        "steps": _steps(program),
        "unusedKeys": list(program.pipeline.unused_keys),
    }
