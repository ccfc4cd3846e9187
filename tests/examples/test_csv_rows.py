from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from typing import BinaryIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpfd.examples.csv_payments.csv_rows import BadRow, PaymentRow, rows_of
from tpfd.examples.csv_payments.problems import BrokenFile, RowProblem

HEADER = "ID,Recipient,Amount,Currency\n"


def _rows(data: str | bytes, chunk_bytes: int = 65_536) -> list[PaymentRow | BadRow]:
    raw = data.encode() if isinstance(data, str) else data
    return list(rows_of(io.BytesIO(raw), chunk_bytes=chunk_bytes))


def _good(data: str | bytes, chunk_bytes: int = 65_536) -> list[PaymentRow]:
    rows = _rows(data, chunk_bytes)
    assert all(isinstance(row, PaymentRow) for row in rows), rows
    return [row for row in rows if isinstance(row, PaymentRow)]


def _bad(row: str) -> tuple[RowProblem, ...]:
    (bad,) = _rows(HEADER + row + "\n")
    assert isinstance(bad, BadRow), bad
    return bad.problems


def _broken(data: str | bytes, chunk_bytes: int = 65_536) -> RowProblem:
    with pytest.raises(BrokenFile) as caught:
        _rows(data, chunk_bytes)
    return caught.value.problem


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 65_536])
def test_a13_a_mark_and_crlf_change_nothing(chunk_bytes: int) -> None:
    plain = HEADER + "1,Ann,1.00,EUR\n2,Bob,2.00,EUR\n3,Zoë,3.00,EUR\n"
    marked = b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode()
    assert _good(marked, chunk_bytes) == _good(plain)
    assert [row.csv_id for row in _good(marked, chunk_bytes)] == ["1", "2", "3"]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 65_536])
def test_a14_physical_lines_in_spite_of_quoted_line_breaks(chunk_bytes: int) -> None:
    text = HEADER + '1,Ann,1.00,EUR\r\n2,"Bob ""the"" builder,\r\nShed 3",2.00,EUR\r\n3,Eve,1e3,EUR\r\n'
    first, second, third = _rows(text, chunk_bytes)
    assert isinstance(first, PaymentRow)
    assert isinstance(second, PaymentRow)
    assert second.recipient == 'Bob "the" builder,\r\nShed 3'
    assert (second.number, second.line) == (2, 3)
    assert isinstance(third, BadRow)
    assert [problem.line for problem in third.problems] == [5]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ('16,"Row 16,10.00,EUR', 17),  # runs to the limit
        ('"16,Row 16,10.00,EUR', 17),
        ('16,Row 16,"10.00,EUR', 17),
        ('16,Row 16,10.00,"EUR', 17),
        ('16,"two\nlines"",10.00,EUR', 17),
        ('16,"fine","10.00,EUR', 17),
    ],
)
@pytest.mark.parametrize("rows_behind", [10_000, 3])
def test_a15_an_unclosed_quote_is_named_and_swallows_nothing(row: str, line: int, rows_behind: int) -> None:
    before = "".join(f"{number},Row {number},10.00,EUR\n" for number in range(1, 16))
    behind = "".join(f"{number},Row {number},10.00,EUR\n" for number in range(17, 17 + rows_behind))
    read: list[PaymentRow | BadRow] = []
    with pytest.raises(BrokenFile) as caught:
        read.extend(rows_of(io.BytesIO((HEADER + before + row + "\n" + behind).encode())))
    assert caught.value.problem.line == line
    assert "unclosed quote" in caught.value.problem.message


@pytest.mark.parametrize(
    "rows",
    [
        '1,"Ann,1.00,EUR\n2,Bob",2.00,EUR\n',  # the next quote closes it, and four fields remain
        '1,"Ann,1.00,EUR\n2,"Bob",2.00,EUR\n',
        '1,"Ann,1.00,EUR\n2,"",2.00,EUR\n3,"",3.00,EUR\n4,x",4.00,EUR\n',
        '1,Ann,"1.00,EUR\n2,Bob,2.00",EUR\n',
        '"1,Ann,1.00,EUR\n2",Bob,2.00,EUR\n',
        '1,"Ann,1.00,EUR\r\n2,Bob",2.00,EUR\r\n',
    ],
)
def test_a15_rows_run_together_by_a_quote_are_not_paid(rows: str) -> None:
    problem = _broken(HEADER + rows)
    assert problem.line == 2
    assert "unclosed quote" in problem.message


class _Endless(io.RawIOBase):
    """A file that goes on for ever without a line break or a closing quote."""

    def __init__(self, start: bytes, then: bytes) -> None:
        self._rest = self._source(start, then)

    def _source(self, start: bytes, then: bytes) -> Iterator[bytes]:
        yield start
        while True:
            yield then * 1000

    def read(self, size: int = -1) -> bytes:
        return next(self._rest)


@pytest.mark.parametrize(
    ("start", "then", "words"),
    [('1,"', "x", "unclosed quote"), ('1,"', "x\n", "unclosed quote"), ("1,", "x", "more than 10000 characters")],
)
def test_a15_memory_stays_bounded(start: str, then: str, words: str) -> None:
    file: BinaryIO = _Endless((HEADER + start).encode(), then.encode())  # type: ignore[assignment]
    tracemalloc.start()
    try:
        with pytest.raises(BrokenFile) as caught:
            list(rows_of(file))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in caught.value.problem.message
    assert caught.value.problem.line == 2
    assert peak_bytes < 2_000_000


def test_rows_go_by_in_constant_memory() -> None:
    class Rows(io.RawIOBase):
        def __init__(self) -> None:
            self._sent = 0

        def read(self, size: int = -1) -> bytes:
            self._sent += 1
            if self._sent == 1:
                return HEADER.encode()
            return b"1,Ann,1.00,EUR\n" * 1000 if self._sent < 102 else b""

    file: BinaryIO = Rows()  # type: ignore[assignment]
    tracemalloc.start()
    try:
        count = sum(1 for _ in rows_of(file))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 100_000
    assert peak_bytes < 1_000_000, "the rows themselves are 1.5 MB of text"


def test_a16_equal_rows_are_two_rows() -> None:
    first, second = _good(HEADER + "1,Ann,1.00,EUR\n" * 2)
    assert (first.number, first.line) != (second.number, second.line)


AMOUNTS = ["9.70", "543.93", "1196.11", "160.20", "0.10", "0.20"]


def test_a17_amounts_stay_the_text_they_were() -> None:
    rows = _good(HEADER + "".join(f"{n},Ann,{amount},EUR\n" for n, amount in enumerate(AMOUNTS)))
    assert [str(row.amount) for row in rows] == AMOUNTS
    assert sum(row.amount for row in rows) == Decimal("1910.24")
    assert all(type(row.amount) is Decimal for row in rows)


@given(st.decimals(min_value="0.01", max_value="999999999999999.99", places=2, allow_nan=False))
def test_a17_every_amount_round_trips(amount: Decimal) -> None:
    (row,) = _good(f"{HEADER}1,Ann,{amount:f},EUR\n")
    assert str(row.amount) == f"{amount:f}"


@pytest.mark.parametrize(
    ("amount", "currency", "words"),
    [
        ("1.000", "EUR", "3 decimals, EUR has 2"),
        ("1.005", "USD", "3 decimals"),
        ("100.0", "JPY", "1 decimals, JPY has 0"),
        ("1.0000", "KWD", "4 decimals, KWD has 3"),
        ("1.355,90", "EUR", "grouping or a decimal comma"),
        ("1'355.90", "CHF", "grouping"),
        ("1 355.90", "EUR", "grouping"),
        ("12,50", "EUR", "decimal comma"),
        ("1e3", "EUR", "exponent"),
        ("1E-2", "EUR", "exponent"),
        ("NaN", "EUR", "not a number"),
        ("Infinity", "EUR", "not a number"),
        ("0x10", "EUR", "not a number"),
        ("1_000.00", "EUR", "not a number"),
        ("-5.00", "EUR", "sign"),
        ("+5.00", "EUR", "sign"),
        ("0.00", "EUR", "zero"),
        ("0", "EUR", "zero"),
        ("", "EUR", "empty"),
        (" 5.00", "EUR", "spaces around"),
        ("5.", "EUR", "not a number"),
        (".5", "EUR", "not a number"),
        ("007.00", "EUR", "leading zeros"),
        ("1" * 16, "EUR", "too many digits"),
        ("\u0661\u0662.50", "EUR", "not a number"),
        ("$5.00", "USD", "not a number"),
    ],
)
def test_strange_amounts_are_refused(amount: str, currency: str, words: str) -> None:
    (problem,) = _bad(f'1,Ann,"{amount}",{currency}')
    assert (problem.line, problem.column) == (2, "Amount")
    assert words in problem.message


@pytest.mark.parametrize(("amount", "currency"), [("100", "JPY"), ("1.000", "KWD"), ("10", "EUR"), ("10.5", "EUR")])
def test_amounts_with_no_more_decimals_than_the_currency(amount: str, currency: str) -> None:
    (row,) = _good(f"{HEADER}1,Ann,{amount},{currency}\n")
    assert str(row.amount) == amount


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        ("1,Ann,5.00,eur", "Currency", "write EUR"),
        ("1,Ann,5.00,XYZ", "Currency", "'XYZ' is not an ISO 4217 code"),
        ("1,Ann,5.00,", "Currency", "''"),
        ("1,Ann,5.00,EUR ", "Currency", "write EUR"),
        (",Ann,5.00,EUR", "ID", "is empty"),
        (" 1,Ann,5.00,EUR", "ID", "spaces around"),
        ("1\x07,Ann,5.00,EUR", "ID", "control character"),
        (f"{'1' * 101},Ann,5.00,EUR", "ID", "longer than 100"),
        ("1,,5.00,EUR", "Recipient", "is empty"),
        ("1,  ,5.00,EUR", "Recipient", "is empty"),
        ("1,A\x1bnn,5.00,EUR", "Recipient", "control character"),
        (f"1,{'A' * 1001},5.00,EUR", "Recipient", "longer than 1000"),
        ("1,Ann,5.00", "", "has 3 fields, not 4"),
        ("1,Ann, Inc,5.00,EUR", "", "has 5 fields, not 4; a comma inside"),
        ('1,  "Ann, Inc",5.00,EUR', "", "has 5 fields"),
    ],
)
def test_bad_rows_name_line_and_column(row: str, column: str, words: str) -> None:
    (problem,) = _bad(row)
    assert (problem.line, problem.column) == (2, column)
    assert words in problem.message
    assert str(problem).isprintable()


def test_all_problems_of_a_row_are_named() -> None:
    assert [problem.column for problem in _bad(",,1e3,xx")] == ["ID", "Recipient", "Amount", "Currency"]


def test_empty_lines_are_no_rows_but_count_as_lines() -> None:
    rows = _good(HEADER + "\n1,Ann,1.00,EUR\n\n\n2,Bob,1.00,EUR\n\n")
    assert [(row.number, row.line) for row in rows] == [(1, 3), (2, 6)]


def test_the_last_line_needs_no_end() -> None:
    assert len(_good(HEADER + "1,Ann,1.00,EUR")) == 1
    assert _rows(HEADER.strip()) == []


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("ID,Recipient,Amount", "Currency is missing"),
        ("ID,Recipient,Amount,Amount,Currency", "Amount stands twice"),
        ("ID,Recipient,Amount,Currency,Note", "'Note' is not known"),
        ("id,Recipient,Amount,Currency", "ID is missing, 'id' is not known"),
        ("Recipient,ID,Amount,Currency", "the order is another"),
        ("ID;Recipient;Amount;Currency", "separated by ';'"),
        ("ID\tRecipient\tAmount\tCurrency", "separated by TAB"),
        ("ID|Recipient|Amount|Currency", "separated by '|'"),
        ("1,Ann,1.00,EUR", "ID is missing"),
    ],
)
def test_wrong_headers_say_what_is_wrong(header: str, words: str) -> None:
    problem = _broken(header + "\n1,Ann,1.00,EUR\n")
    assert problem.line == 1
    assert words in problem.message


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"", 0, "the file is empty"),
        (b"\xef\xbb\xbf", 0, "the file is empty"),
        (b"\n\n", 0, "the file is empty"),
        ((HEADER + "1,Ann,1.00,EUR\n").encode("utf-16"), 0, "UTF-16"),
        ((HEADER + "1,Ann,1.00,EUR\n").encode("utf-16-be"), 1, "NUL"),
        ((HEADER + "1,Ann,1.00,EUR\n2,Zoë,1.00,EUR\n").encode("latin-1"), 3, "0xEB is not UTF-8"),
        (HEADER.encode() + b"1,Ann\xc3", 2, "is not UTF-8"),
        ((HEADER + "1,Ann,1.00,EUR\n2,B\0b,1.00,EUR\n").encode(), 3, "NUL"),
        (HEADER.replace("\n", "\r").encode() + b"1,Ann,1.00,EUR\r", 1, "lone CR"),
        ((HEADER + "1,Ann,1.00,EUR\n2,B\rob,1.00,EUR\n").encode(), 3, "lone CR"),
        ((HEADER + '1,"Ann"x,1.00,EUR\n').encode(), 2, "text after a closing quote"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 7, 65_536])
def test_unreadable_files_say_where_and_why(data: bytes, line: int, words: str, chunk_bytes: int) -> None:
    problem = _broken(data, chunk_bytes)
    assert problem.line == line
    assert words in problem.message


@given(st.binary(max_size=200), st.integers(1, 20))
def test_any_bytes_give_rows_or_a_named_problem(data: bytes, chunk_bytes: int) -> None:
    said: list[RowProblem] = []
    try:
        for row in rows_of(io.BytesIO(HEADER.encode() + data), chunk_bytes=chunk_bytes):
            said += row.problems if isinstance(row, BadRow) else ()
    except BrokenFile as broken:
        said.append(broken.problem)
    assert all(str(problem).isprintable() for problem in said)


_FIELD = st.text(st.sampled_from('ab",\n\r ='), min_size=1, max_size=6)


@example([(1, ",aaa\n", "1.00")], 1)
@given(st.lists(st.tuples(st.integers(1, 9), _FIELD, st.sampled_from(["1.00", "2.5"]))), st.integers(1, 20))
def test_what_a_csv_writer_writes_is_read_or_refused_never_changed(
    rows: list[tuple[int, str, str]], chunk_bytes: int
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([HEADER.strip().split(","), *((*row, "EUR") for row in rows)])
    read = _rows(text.getvalue(), chunk_bytes)
    assert len(read) == len(rows)
    for (csv_id, recipient, amount), got in zip(rows, read, strict=True):
        if isinstance(got, PaymentRow):
            assert (got.csv_id, got.recipient, str(got.amount)) == (str(csv_id), recipient, amount)
        else:
            assert not recipient.strip()
