"""From CSV records to payments: the header, and every rule a row must keep.

A row is either a `PaymentRow` or a `BadRow` with everything that is wrong with it. Nothing is repaired: money that is
written strangely is refused, with the line to look at.

Amounts are plain digits with at most one point, as ``1355.90``: no sign, no grouping, no exponent, no more decimals
than the currency has. They become `Decimal` at once and are the same text again when written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import BinaryIO

from attrs import frozen

from tpfd.codec.currencies import MINOR_UNITS
from tpfd.examples.csv_payments.csv_text import CHUNK_BYTES, CsvRecords
from tpfd.examples.csv_payments.problems import BrokenFile, RowProblem, quoted

COLUMNS = ("ID", "Recipient", "Amount", "Currency")
MAX_ID_CHARS = 100
MAX_RECIPIENT_CHARS = 1_000

_HEADER = ",".join(COLUMNS)
_AMOUNT = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.([0-9]{1,9}))?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@frozen
class PaymentRow:
    """A row that can be paid."""

    number: int  # rows counted from 1, without the header
    line: int  # physical line, from 1, where it begins
    csv_id: str
    recipient: str
    amount: Decimal
    currency: str


@frozen
class BadRow:
    """A row that cannot be paid."""

    number: int
    line: int
    fields: tuple[str, ...]
    problems: tuple[RowProblem, ...]  # at least one


def rows_of(file: BinaryIO, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[PaymentRow | BadRow]:
    """Reads the rows of a file in order, in constant memory.

    Args:
        file: a binary file, read from where it stands.
        chunk_bytes: bytes per read.

    Raises:
        BrokenFile: the header is wrong, or what follows cannot be read.
    """
    records = CsvRecords(file, column_count=len(COLUMNS), text_column=1, chunk_bytes=chunk_bytes)
    number = 0
    for fields in records:
        if number == 0:
            _check_header(fields, records.line)
        else:
            yield _row(number, records.line, fields)
        number += 1
    if number == 0:
        raise BrokenFile(RowProblem(0, "", f"the file is empty; its first line must be {_HEADER}"))


def _check_header(names: list[str], line: int) -> None:
    if tuple(names) == COLUMNS:
        return
    if len(names) == 1:
        for delimiter, shown in ((";", "';'"), ("\t", "TAB"), ("|", "'|'")):
            if delimiter in names[0]:
                raise BrokenFile(RowProblem(line, "", f"fields are separated by {shown}; separate them by commas"))
    complaints = [f"{name} is missing" for name in COLUMNS if name not in names]
    complaints += [f"{name} stands twice" for name in COLUMNS if names.count(name) > 1]
    complaints += [f"{quoted(name)} is not known" for name in names if name not in COLUMNS]
    raise BrokenFile(
        RowProblem(line, "", f"the header must be {_HEADER}: {', '.join(complaints) or 'the order is another'}")
    )


def _row(number: int, line: int, fields: list[str]) -> PaymentRow | BadRow:
    if len(fields) == len(COLUMNS):
        csv_id, recipient, amount, currency = fields
        match = _AMOUNT.fullmatch(amount)
        if (
            match is not None
            and len(match[1] or "") <= MINOR_UNITS.get(currency, -1)
            and _id_problem(csv_id) is None
            and _recipient_problem(recipient) is None
            and (value := Decimal(amount))
        ):
            return PaymentRow(number, line, csv_id, recipient, value, currency)
    return BadRow(number, line, tuple(fields), tuple(_problems(line, fields)))


def _problems(line: int, fields: list[str]) -> Iterator[RowProblem]:
    """Names everything that is wrong with a row; the slow way, for the few that need it."""
    if len(fields) != len(COLUMNS):
        hint = "; a comma inside a field needs quotes around it" if len(fields) > len(COLUMNS) else ""
        yield RowProblem(line, "", f"has {len(fields)} fields, not {len(COLUMNS)}{hint}")
        return
    csv_id, recipient, amount, currency = fields
    checks = (_id_problem(csv_id), _recipient_problem(recipient), _amount_problem(amount, currency))
    for column, problem in zip(COLUMNS, (*checks, _currency_problem(currency)), strict=True):
        if problem is not None:
            yield RowProblem(line, column, problem)


def _id_problem(csv_id: str) -> str | None:
    if not csv_id:
        return "is empty"
    if len(csv_id) > MAX_ID_CHARS:
        return f"is longer than {MAX_ID_CHARS} characters"
    if not csv_id.isprintable():
        return f"{quoted(csv_id)} has a control character"
    return f"{quoted(csv_id)} has spaces around it" if csv_id != csv_id.strip() else None


def _recipient_problem(recipient: str) -> str | None:
    if not recipient.strip():
        return "is empty"
    if len(recipient) > MAX_RECIPIENT_CHARS:
        return f"is longer than {MAX_RECIPIENT_CHARS} characters"
    return "has a control character" if _CONTROL.search(recipient) else None


def _currency_problem(currency: str) -> str | None:
    if currency in MINOR_UNITS:
        return None
    plain = currency.strip().upper()
    return f"{quoted(currency)} is not an ISO 4217 code" + (f"; write {plain}" if plain in MINOR_UNITS else "")


def _amount_problem(amount: str, currency: str) -> str | None:
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        return f"{quoted(amount)} {_strangeness(amount)}"
    decimals, allowed = len(match[1] or ""), MINOR_UNITS.get(currency)
    if allowed is not None and decimals > allowed:
        return f"{quoted(amount)} has {decimals} decimals, {currency} has {allowed}; a point is no thousands separator"
    return None if Decimal(amount) else f"{quoted(amount)} is zero; a payment needs an amount"


def _strangeness(amount: str) -> str:
    plain = "write plain digits with a point, as 1355.90"
    if not amount:
        return f"is empty; {plain}"
    if amount != amount.strip():
        return "has spaces around it"
    if amount[0] in "+-":
        return "has a sign; amounts are positive and have none"
    if "," in amount or "'" in amount or " " in amount:
        return f"has grouping or a decimal comma; {plain}"
    if re.fullmatch(r"[0-9.]+[eE][+-]?[0-9]+", amount):
        return f"has an exponent; {plain}"
    if re.fullmatch(r"0[0-9]+(\.[0-9]+)?", amount):
        return "has leading zeros"
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", amount):
        return "has too many digits"
    return f"is not a number; {plain}"
