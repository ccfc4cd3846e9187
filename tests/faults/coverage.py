"""The table at the end of a run: how many effects each scenario has, and how often it was cut over each store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import cattrs
import pytest
from attrs import define, field

FULL = "--full"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FULL, action="store_true", help="cut every scenario at every effect over every store")


def is_full(config: pytest.Config) -> bool:
    """Whether nothing may be left out."""
    return bool(config.getoption(FULL))


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

    def add(self, other: Coverage) -> None:
        """What another process has covered, of other scenarios or over other stores."""
        for scenario, effects in other.effects.items():
            self.effects.setdefault(scenario, effects)
        for store, cuts in other.cuts.items():
            self.cuts.setdefault(store, {}).update(cuts)

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


_COVERAGE = pytest.StashKey[Coverage]()
_SENT = "crash matrix"


def coverage_of(config: pytest.Config) -> Coverage:
    """What this run has covered so far."""
    return config.stash.setdefault(_COVERAGE, Coverage(full=is_full(config)))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Where the tests run in several processes, each sends what it has covered to the one that prints."""
    sent = getattr(node, "workeroutput", {}).get(_SENT)
    if sent is not None:
        coverage_of(node.config).add(cattrs.structure(sent, Coverage))


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = session.config.stash.get(_COVERAGE, None)
    output = getattr(session.config, "workeroutput", None)
    if found is not None and output is not None:
        output[_SENT] = cattrs.unstructure(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_COVERAGE, None)
    if found is not None and found.effects:
        terminalreporter.section("crash matrix: cuts of all there are, before and after each effect")
        for line in found.table():
            terminalreporter.write_line(line)
        if not found.full:
            terminalreporter.write_line("over the store in memory all, over the others a sample; --full: all")
