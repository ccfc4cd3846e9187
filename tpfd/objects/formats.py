"""Rows as text: CSV, JSON lines, a JSON array.

An encoder belongs to one object, from `header` over any number of `rows` to `footer`; what they give, joined, is the
object. Values are JSON data as the codec unstructures it: text, int, bool, None; money and dates are text already.

CSV follows RFC 4180: fields with a comma, quote, CR or LF are quoted, quotes inside are doubled, None is an empty
field. Lines end with ``\\n`` unless ``\\r\\n`` is asked for; readers accept both and tools on Linux prefer the first.

**Formula-safe mode** (``formula_safe=True``) is for people who open the file in a spreadsheet: a text that such a
program would run as a formula (it begins with ``= + - @``, their full-width forms, TAB or CR) gets a leading ``'``.
Plain numbers are left alone. It changes the text, so it is off by default: a program that reads the file back wants
the exact values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tpfd.errors import NonRetryableError

Cell = str | int | float | bool | None | Mapping[str, object] | Sequence[object]
Row = Mapping[str, Cell]

_NEEDS_QUOTES = re.compile(r'[",\r\n]')
_FORMULA = re.compile(r"[=+\-@\t\r＝＋－＠]")  # noqa: RUF001 (the full-width forms are meant)
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


class Encoder(Protocol):
    """Turns the rows of one object into its text."""

    def header(self) -> str:
        """Gives what stands before the first row."""
        ...

    def rows(self, rows: Sequence[Row]) -> str:
        """Gives some rows, in order.

        Raises:
            NonRetryableError: ``output_row_refused``, for a row that does not fit the columns or has no text form.
        """
        ...

    def footer(self) -> str:
        """Gives what stands after the last row."""
        ...


class CsvEncoder:
    """One header line, then one line per row."""

    def __init__(self, columns: Sequence[str], *, newline: str = "\n", formula_safe: bool = False) -> None:
        """
        Args:
            columns: names in output order; every row has exactly these.
            newline: ``"\\n"`` or ``"\\r\\n"``.
            formula_safe: see the module's text.
        """
        if not columns or len(set(columns)) != len(columns):
            raise ValueError(f"CSV needs distinct columns, not {list(columns)}")
        if newline not in {"\n", "\r\n"}:
            raise ValueError(f"CSV lines end with \\n or \\r\\n, not {newline!r}")
        self._columns = tuple(columns)
        self._newline = newline
        self._guard: Callable[[str], str] = _disarmed if formula_safe else _unchanged

    def header(self) -> str:
        return ",".join(map(_quoted, self._columns)) + self._newline

    def rows(self, rows: Sequence[Row]) -> str:
        return "".join(self._lines(rows))

    def footer(self) -> str:
        return ""

    def _lines(self, rows: Sequence[Row]) -> Iterable[str]:
        columns, newline, guard = self._columns, self._newline, self._guard
        for row in rows:
            if len(row) != len(columns):
                raise self._misfit(row)
            try:
                cells = [
                    guard(value) if isinstance(value := row[column], str) else _cell_text(column, value)
                    for column in columns
                ]
            except KeyError:
                raise self._misfit(row) from None
            line = ",".join(cells)
            # Nearly every line has no special character but the commas between its cells: one search settles that.
            if '"' in line or "\n" in line or "\r" in line or line.count(",") != len(columns) - 1:
                line = ",".join(map(_quoted, cells))
            elif not line:
                line = '""'  # a single empty field, which would read as no row at all
            yield line + newline

    def _misfit(self, row: Row) -> NonRetryableError:
        missing = [column for column in self._columns if column not in row]
        extra = [name for name in row if name not in self._columns]
        return NonRetryableError(
            f"output row does not fit the columns {', '.join(self._columns)}: missing {missing}, not known {extra}",
            code="output_row_refused",
        )


class JsonLinesEncoder:
    """One JSON object per line."""

    def header(self) -> str:
        return ""

    def rows(self, rows: Sequence[Row]) -> str:
        return "".join(f"{_json(row)}\n" for row in rows)

    def footer(self) -> str:
        return ""


class JsonArrayEncoder:
    """One JSON array, an element per line; ``[]`` without rows."""

    def __init__(self) -> None:
        self._between = "\n"

    def header(self) -> str:
        return "["

    def rows(self, rows: Sequence[Row]) -> str:
        if not rows:
            return ""
        text = self._between + ",\n".join(map(_json, rows))
        self._between = ",\n"
        return text

    def footer(self) -> str:
        return "]\n" if self._between == "\n" else "\n]\n"


def make_encoder(
    format_name: str, columns: Sequence[str], *, newline: str = "\n", formula_safe: bool = False
) -> Encoder:
    """Makes the encoder of a ``payload.format``.

    Args:
        format_name: ``csv``, ``jsonl`` or ``json``.
        columns: field names of the output type in declared order; used by csv only.
        newline: csv only.
        formula_safe: csv only.

    Raises:
        ValueError: another name.
    """
    if format_name == "csv":
        return CsvEncoder(columns, newline=newline, formula_safe=formula_safe)
    if format_name == "jsonl":
        return JsonLinesEncoder()
    if format_name == "json":
        return JsonArrayEncoder()
    raise ValueError(f"format {format_name!r} is not known: csv, jsonl or json")


def _quoted(text: str) -> str:
    if _NEEDS_QUOTES.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text


def _unchanged(text: str) -> str:
    return text


def _disarmed(text: str) -> str:
    if _FORMULA.match(text) and not _PLAIN_NUMBER.fullmatch(text):
        return "'" + text
    return text


def _cell_text(column: str, value: Cell) -> str:
    if value is None:
        return ""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise NonRetryableError(f"column {column}: {error}", code="output_row_refused") from error


def _json(row: Row) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise NonRetryableError(f"output row: {error}", code="output_row_refused") from error
