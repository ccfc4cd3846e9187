"""Looks through a whole file before anything of it is paid, and reports every bad row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from tpfd.examples.csv_payments.csv_rows import BadRow, rows_of
from tpfd.examples.csv_payments.problems import BrokenFile, CsvRefused, RowProblem
from tpfd.objects.formats import CsvEncoder, Row

KEPT_COUNT = 100


@frozen
class Report:
    """What was found in a file."""

    row_count: int  # without the header
    bad_row_count: int
    problem_count: int
    problems: tuple[RowProblem, ...]  # the first `KEPT_COUNT`, in file order
    readable: bool  # False: reading ended before the end of the file, at the last problem

    def refusal(self, name: str) -> CsvRefused:
        """The error that refuses the file for these problems."""
        return CsvRefused(name, self.problems, self.problem_count)


def check(file: BinaryIO) -> Report:
    """Checks a file from where it stands to its end, in constant memory."""
    survey = _Survey()
    for _ in survey.problems_of(file):
        pass
    return survey.report()


def check_file(path: Path) -> Report:
    """Checks a file.

    Raises:
        OSError: it cannot be opened or read.
    """
    with path.open("rb") as file:
        return check(file)


def dry_run(path: Path, error_csv_path: Path) -> Report:
    """Does to a file all that a real run does before the provider is asked, and writes down every problem.

    Args:
        path: the payments file.
        error_csv_path: gets one row per problem, ``line,column,problem``, fit for a spreadsheet; only the header if
            there is none. Overwritten.

    Raises:
        OSError: a file cannot be opened, read or written.
    """
    encoder = CsvEncoder(("line", "column", "problem"), formula_safe=True)
    survey = _Survey()
    with path.open("rb") as file, error_csv_path.open("w", encoding="utf-8", newline="") as errors:
        errors.write(encoder.header())
        for problem in survey.problems_of(file):
            row: Row = {"line": problem.line, "column": problem.column, "problem": problem.message}
            errors.write(encoder.rows([row]))
    return survey.report()


class _Survey:
    """Counts while a file goes by."""

    def __init__(self) -> None:
        self._row_count = self._bad_row_count = self._problem_count = 0
        self._kept: list[RowProblem] = []
        self._readable = True

    def problems_of(self, file: BinaryIO) -> Iterator[RowProblem]:
        try:
            for row in rows_of(file):
                self._row_count += 1
                if isinstance(row, BadRow):
                    self._bad_row_count += 1
                    for problem in row.problems:
                        yield self._counted(problem)
        except BrokenFile as broken:
            self._readable = False
            yield self._counted(broken.problem)

    def _counted(self, problem: RowProblem) -> RowProblem:
        self._problem_count += 1
        if len(self._kept) < KEPT_COUNT:
            self._kept.append(problem)
        return problem

    def report(self) -> Report:
        return Report(
            row_count=self._row_count,
            bad_row_count=self._bad_row_count,
            problem_count=self._problem_count,
            problems=tuple(self._kept),
            readable=self._readable,
        )
