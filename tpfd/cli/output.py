"""Writing results to stdout and trouble to stderr, for people and for programs.

With ``--output json`` stdout is JSON only. Everything else (errors, progress, hints) goes to stderr in both modes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import orjson

from tpfd.client.errors import ExecutionFailed, ServerRefused
from tpfd.errors import ProblemsError, TpfdError

Column = tuple[str, str]
"""Title of a column, and the member of the row that fills it."""

_STATUS_COLOURS = {
    "SUCCEEDED": "green",
    "FAILED": "red",
    "DLQ": "red",
    "REMOTE_OUTCOME_UNKNOWN": "red",
    "WAIT_RETRY": "yellow",
    "WAITING_EXTERNAL": "cyan",
}


def print_json(value: Any) -> None:
    """Writes one JSON document, indented."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


def print_json_line(value: Any) -> None:
    """Writes one JSON document as one line, at once."""
    click.echo(orjson.dumps(value))
    sys.stdout.flush()


def print_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows as aligned columns; never cut off when stdout is not a terminal.

    Args:
        columns: title and member; a member that ends in ``EpochMs`` is shown as a time in UTC.
        rows: JSON objects; a missing or null member is shown as "-".
    """
    lines = [[title for title, _ in columns]]
    lines += [[cell(member, row.get(member)) for _, member in columns] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    terminal = sys.stdout.isatty()
    room = shutil.get_terminal_size().columns if terminal else None
    for number, line in enumerate(lines):
        text = "  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)).rstrip()
        if room is not None and len(text) > room:
            text = text[: room - 1] + "…"
        click.echo(_coloured(text, heading=number == 0) if terminal else text)


def print_fields(fields: Mapping[str, Any], *, err: bool = False) -> None:
    """Writes one object as ``name  value`` lines, on request to stderr; members that are null are left out."""
    shown = {name: cell(name, value) for name, value in fields.items() if value is not None}
    width = max((len(name) for name in shown), default=0)
    for name, text in shown.items():
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {_coloured(text)}", err=err)


def cell(member: str, value: Any) -> str:
    """One value as one line of harmless text."""
    match value:
        case None:
            return "-"
        case int() if member.endswith("EpochMs"):
            return utc(value)
        case str():
            return printable(value)
        case _:
            return printable(orjson.dumps(value).decode())


def utc(epoch_ms: int) -> str:
    """A time as ``2026-11-30T18:28:01.250Z``."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def printable(text: str) -> str:
    """The text with control characters spelled out, so that data cannot steer the reader's terminal."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def tell(text: str) -> None:
    """Says something to the person at the terminal."""
    click.echo(text, err=True)


def tell_error(error: TpfdError) -> None:
    """Says what went wrong, where, line by line."""
    match error:
        case ProblemsError():
            for problem in error.problems:
                tell(printable(str(problem)))
        case ServerRefused():
            code = f" {error.problem.code}" if error.problem.code else ""
            what = "failed" if isinstance(error, ExecutionFailed) else f"refused ({error.status}{code})"
            said = error.problem.detail if isinstance(error, ExecutionFailed) else error.message
            if error.problem.errors:
                said = said.partition(f": {error.problem.errors[0]}")[0]  # they follow, each on a line of its own
            tell(f"{click.style(what, fg='red')}: {printable(said or error.message)}")
            for problem in error.problem.errors:
                tell(f"  {printable(str(problem))}")
            for name, value in error.problem.extra.items():
                tell(f"  {name}: {cell(name, value)}")
            if error.retry_after_s is not None:
                tell(f"  try again in {error.retry_after_s:.0f} s")
        case _:
            first, *rest = error.message.splitlines() or [error.code]
            tell(f"{click.style('error', fg='red')}: {printable(first)}")
            for line in rest:
                tell(f"  {printable(line)}")


def _coloured(text: str, *, heading: bool = False) -> str:
    if heading:
        return click.style(text, bold=True)
    for status, colour in _STATUS_COLOURS.items():
        if status in text.split():
            return text.replace(status, click.style(status, fg=colour), 1)
    return text
