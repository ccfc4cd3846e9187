"""The table at the end of a run: how many effects each scenario has, and how often it was cut over each store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from attrs import define, field

from tests.aws.standin import StandIn

FULL = "--full"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FULL, action="store_true", help="cut every scenario at every effect over every store")


def is_full(config: pytest.Config) -> bool:
    """Whether nothing may be left out. The option is known only to a run that was told of this folder."""
    return bool(config.getoption(FULL, default=False))


@define
class Coverage:
    """Effects by scenario and name, and cuts by scenario and store.

    Attributes:
        full: nothing may be left out.
    """

    full: bool
    effects: dict[str, Counter[str]] = field(factory=dict)
    cuts: dict[str, dict[str, tuple[int, int]]] = field(factory=dict)

    def note(self, store: str, scenario: str, effects: Counter[str], cut_count: int) -> None:
        """A scenario was cut so often over a store; the first store's effects are shown."""
        self.effects.setdefault(scenario, effects)
        self.cuts.setdefault(store, {})[scenario] = (cut_count, 2 * effects.total())

    def table(self) -> Iterator[str]:
        names = sorted({name for effects in self.effects.values() for name in effects})
        heads = [*names, *(f"{store} cuts" for store in self.cuts)]
        widths = [max(len(head), 10) + 1 for head in heads]
        yield f"{'scenario':<16}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))
        for scenario, effects in self.effects.items():
            cells = [str(effects[name]) for name in names]
            cells += [_share(cuts.get(scenario)) for cuts in self.cuts.values()]
            yield f"{scenario:<16}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _share(cuts: tuple[int, int] | None) -> str:
    return "-" if cuts is None else f"{cuts[0]}/{cuts[1]}"


@pytest.fixture(autouse=True, scope="session")
def _running(aws: StandIn) -> None:
    """One of the stores needs it."""


_COVERAGE = pytest.StashKey[Coverage]()


@pytest.fixture
def coverage(request: pytest.FixtureRequest) -> Coverage:
    """Where a scenario notes what it has cut."""
    return request.config.stash.setdefault(_COVERAGE, Coverage(full=is_full(request.config)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_COVERAGE, None)
    if found is not None and found.effects:
        terminalreporter.section("crash matrix: cuts of all there are, before and after each effect")
        for line in found.table():
            terminalreporter.write_line(line)
        if not found.full:
            terminalreporter.write_line("over the store in memory all, over the others a sample; --full: all")
