"""What can be wrong with a payments file, and the error that says so."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from tpfd.errors import NonRetryableError

SHOWN_COUNT = 20


@frozen
class RowProblem:
    """One thing wrong in a file.

    Attributes:
        line: physical line (from 1) where the row begins; 0 for the file as a whole.
        column: name of the column; "" for the row or file as a whole.
        message: what is wrong and what would be right; quotes file content with escapes.
    """

    line: int
    column: str
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.column}{' ' if self.column else ''}{self.message}"


class CsvRefused(NonRetryableError):
    """A file, or a row of it, cannot be paid from.

    Attributes:
        problems: the first of them, in file order.
        problem_count: how many there are altogether.
    """

    code = "csv_refused"

    def __init__(self, name: str, problems: Iterable[RowProblem], problem_count: int) -> None:
        self.problems = tuple(problems)
        self.problem_count = problem_count
        shown = self.problems[:SHOWN_COUNT]
        more = f"; and {problem_count - len(shown)} more" if problem_count > len(shown) else ""
        super().__init__(f"{name} is refused, nothing of it is paid: " + "; ".join(map(str, shown)) + more)


class BrokenFile(NonRetryableError):
    """Reading cannot go on behind this problem. Callers turn it into `CsvRefused` or a line of a report."""

    code = "csv_refused"

    def __init__(self, problem: RowProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def quoted(text: str) -> str:
    """Quotes file content for a message: escaped, and no longer than a person wants to read."""
    return ascii(text if len(text) <= 40 else text[:40] + "…")
