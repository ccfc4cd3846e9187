"""The table at the end of a run: how many effects of each scenario were cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from attrs import define, field


@define
class Coverage:
    """Effects by scenario and name."""

    rows: dict[str, Counter[str]] = field(factory=dict)

    def note(self, scenario: str, effects: Counter[str]) -> None:
        self.rows[scenario] = effects

    def table(self) -> Iterator[str]:
        names = sorted({name for effects in self.rows.values() for name in effects})
        yield f"{'scenario':<20}" + "".join(f"{name:>10}" for name in names) + f"{'runs':>8}"
        for scenario, effects in self.rows.items():
            yield f"{scenario:<20}" + "".join(f"{effects[name]:>10}" for name in names) + f"{2 * effects.total():>8}"


_COVERAGE = Coverage()


@pytest.fixture
def coverage() -> Coverage:
    """Where a scenario notes what it has cut."""
    return _COVERAGE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _COVERAGE.rows:
        terminalreporter.section("crash matrix: each effect cut before and after")
        for line in _COVERAGE.table():
            terminalreporter.write_line(line)
