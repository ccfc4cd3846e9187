"""The files of the csv-payments demo: making one, putting it into the inbox, reading the output. All of it blocks."""

from __future__ import annotations

import csv
import shutil
import time
from collections import Counter
from pathlib import Path

from attrs import frozen

HEADER = "ID,Recipient,Amount,Currency\n"
CURRENCIES = ("EUR", "USD", "GBP", "CHF", "SEK")
NAMES = ("Ada Lovelace", "Blaise Pascal", "Chen Ning Yang", "Dorothy Hodgkin", "Émilie du Châtelet", "Fibonacci")
LINES_PER_WRITE = 10_000


@frozen
class OutputCount:
    """What stands in an output file."""

    rows: int
    approved: int
    unapproved: int


def write_payments(path: Path, row_count: int) -> None:
    """Writes a payments file with as many rows as asked for, always the same ones."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(HEADER)
        for start in range(1, row_count + 1, LINES_PER_WRITE):
            numbers = range(start, min(start + LINES_PER_WRITE, row_count + 1))
            file.writelines(map(_line, numbers))


def _line(number: int) -> str:
    name, currency = NAMES[number % len(NAMES)], CURRENCIES[number % len(CURRENCIES)]
    return f"{number},{name} {number},{number * 37 % 9000 + 1}.{number * 7 % 100:02d},{currency}\n"


def count_rows(path: Path) -> int:
    """Rows of a payments file, without its header; quoted line breaks do not count twice."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return max(0, sum(1 for row in csv.reader(file) if row) - 1)


def copy_aside(source: Path, folder: Path) -> Path:
    """Copies the file next to the inbox, so that it can be moved into it in one go."""
    aside = folder / f".{source.name}.part"
    shutil.copyfile(source, aside)
    return aside


def move_into(aside: Path, inbox: Path, name: str) -> tuple[float, int]:
    """Makes the file visible in the inbox, whole.

    Returns:
        The moment, in seconds of ``time.monotonic`` and as epoch milliseconds.
    """
    moment = time.monotonic(), time.time_ns() // 1_000_000
    aside.rename(inbox / name)
    return moment


def count_output(path: Path) -> OutputCount:
    """Counts the rows of an output file by what its ``status`` column says."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        status = next(reader).index("status")
        outcomes = Counter(row[status] for row in reader)
    return OutputCount(outcomes.total(), outcomes["approved"], outcomes["unapproved"])


def peak_rss_bytes(pid: int) -> int | None:
    """The most memory that the process has held so far; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


class LineCounter:
    """Counts the lines of a growing file, reading only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.count = 0

    def update(self) -> int:
        """The lines so far; 0 while there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while block := file.read(1 << 20):
                    self.count += block.count(b"\n")
                    self._offset += len(block)
        except FileNotFoundError:
            return 0
        return self.count
