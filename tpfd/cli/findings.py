"""Writes findings, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from tpfd.cli.output import printable
from tpfd.daemon.findings import Finding


def print_findings(findings: Iterable[Finding]) -> None:
    """One line for each, and what to do under those that are not in order."""
    lines = list(findings)
    width = max((len(printable(finding.about)) for finding in lines), default=0)
    for finding in lines:
        mark = click.style("ok ", fg="green") if finding.ok else click.style("!! ", fg="red")
        click.echo(f"{mark} {printable(finding.about).ljust(width)}  {printable(finding.said)}")
        if not finding.ok:
            where = f" @ {finding.path}" if finding.path else ""
            click.echo(f"{' ' * (width + 6)}-> {printable(finding.advice)}{where}")


def json_findings(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """JSON objects; `advice` and `path` are null where there is none."""
    return [
        {
            "about": finding.about,
            "ok": finding.ok,
            "said": finding.said,
            "advice": finding.advice or None,
            "path": finding.path or None,
        }
        for finding in findings
    ]
