"""From the bytes of a file to CSV records, in constant memory, losing nothing silently.

The standard library's `csv` module splits fields. What it does not do stands here: it would read UTF-16 as rubbish,
take NUL for a character, and let one unclosed quote swallow the rest of the file into a field. So the lines it is fed
are decoded strictly and counted, a record may grow to `MAX_RECORD_CHARS` only, and one that spans lines is looked at
twice.

Lines end with LF or CRLF. A byte order mark is skipped. Empty lines are no records.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from typing import BinaryIO

from tpfd.examples.csv_payments.problems import BrokenFile, RowProblem

MAX_RECORD_CHARS = 10_000
CHUNK_BYTES = 64 * 1024

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONE_CR = re.compile(r"\r(?!\n)")
# The end of a row of payments in the middle of a field: …,10.00,EUR and a line break.
_ROW_END_INSIDE = re.compile(r"(?:^|,)\s*[-+]?\d[^,\r\n]*,\s*[A-Za-z]{3}\s*[\r\n]")


class CsvRecords:
    """Iterates over the records of a file.

    Attributes:
        line: physical line (from 1) at which the current record begins.
    """

    def __init__(self, file: BinaryIO, *, column_count: int, text_column: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        """
        Args:
            file: read from where it stands.
            column_count: fields of a good record.
            text_column: the only field, from 0, in which a line break makes sense.
            chunk_bytes: bytes per read.
        """
        self.line = 0
        self._file = file
        self._column_count = column_count
        self._text_column = text_column
        self._chunk_bytes = chunk_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._at_start = True
        self._open_lines: list[str] = []  # what the record being read consists of so far
        self._open_chars = 0

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the fields of each record.

        Raises:
            BrokenFile: what follows cannot be trusted: wrong encoding, NUL, an unclosed quote, an endless line.
        """
        try:
            for fields in csv.reader(self._lines(), strict=True):
                if len(self._open_lines) > 1 and self._has_swallowed(fields):
                    raise BrokenFile(_unclosed(self.line))
                self._open_lines.clear()
                self._open_chars = 0
                if fields:
                    yield fields
        except csv.Error as error:
            raise self._broken_record(str(error)) from error

    def _lines(self) -> Iterator[str]:
        number, tail = 1, ""
        while True:
            chunk = self._file.read(self._chunk_bytes)
            lines = (tail + self._decode(chunk, number)).split("\n")
            tail = lines.pop()
            for line in lines:
                yield self._opened(line + "\n", number)
                number += 1
            if not chunk:
                break
            if len(tail) > MAX_RECORD_CHARS:
                self._opened(tail, number)
        if tail:
            yield self._opened(tail, number)

    def _opened(self, line: str, number: int) -> str:
        """Adds a line to the open record, unless that grows too long."""
        if not self._open_lines:
            self.line = number
        self._open_lines.append(line)
        self._open_chars += len(line)
        if self._open_chars > MAX_RECORD_CHARS:
            raise self._broken_record(f"a record of more than {MAX_RECORD_CHARS} characters")
        return line

    def _decode(self, chunk: bytes, number: int) -> str:
        """Decodes the next chunk, which begins somewhere in physical line `number`."""
        if self._at_start:
            chunk, self._at_start = self._without_mark(chunk), False
        try:
            text = self._decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            number += error.object.count(b"\n", 0, error.start)
            byte = error.object[error.start]
            raise BrokenFile(
                RowProblem(number, "", f"byte 0x{byte:02X} is not UTF-8; save the file as UTF-8 and submit it again")
            ) from error
        if "\0" in text:
            number += text.count("\n", 0, text.index("\0"))
            raise BrokenFile(RowProblem(number, "", "has a NUL character: damaged, or UTF-16; save it as UTF-8"))
        return text

    def _without_mark(self, chunk: bytes) -> bytes:
        while 0 < len(chunk) < len(codecs.BOM_UTF8) and (more := self._file.read(1)):
            chunk += more
        if chunk.startswith(_UTF16_MARKS):
            raise BrokenFile(RowProblem(0, "", "the file is UTF-16; save it as UTF-8 and submit it again"))
        return chunk.removeprefix(codecs.BOM_UTF8)

    def _has_swallowed(self, fields: list[str]) -> bool:
        """Whether a record over several lines looks like rows that an unclosed quote ran together."""
        if len(fields) != self._column_count:
            return True
        return any(
            "\n" in field and (index != self._text_column or _ROW_END_INSIDE.search(field) is not None)
            for index, field in enumerate(fields)
        )

    def _broken_record(self, reason: str) -> BrokenFile:
        text = "".join(self._open_lines)
        quote = _bad_quote(text)
        if quote is not None:
            opened, stray = (self.line + offset for offset in quote)
            if opened != stray:
                return BrokenFile(_unclosed(opened))
            return BrokenFile(RowProblem(opened, "", 'text after a closing quote; inside quotes, write a quote twice'))
        lone = _LONE_CR.search(text)
        if lone is not None:
            number = self.line + text.count("\n", 0, lone.start())
            return BrokenFile(RowProblem(number, "", "a lone CR, an old Macintosh line end; use LF or CRLF"))
        return BrokenFile(RowProblem(self.line, "", f"not CSV: {reason}"))


def _unclosed(line: int) -> RowProblem:
    return RowProblem(line, "", "unclosed quote: a field opens here with a quote and its end is missing")


def _bad_quote(text: str) -> tuple[int, int] | None:
    """Finds the quoted field that goes wrong in a record.

    Returns:
        Lines, from 0 within the record, where it opens and where text follows its supposed end; the second is one past
        the last line if the end is missing altogether. None: all quotes pair.
    """
    line = opened = 0
    quoted, field_start, skip = False, True, False
    for index, char in enumerate(text):
        if skip:
            skip = False
        elif quoted and char == '"':
            following = text[index + 1 : index + 2]
            if following == '"':
                skip = True
            elif following in {",", "\r", "\n", ""}:
                quoted = False
            else:
                return opened, line
        elif not quoted and char == '"' and field_start:
            quoted, opened = True, line
        field_start = not quoted and char in ",\n"
        line += char == "\n"
    return (opened, line + 1) if quoted else None
