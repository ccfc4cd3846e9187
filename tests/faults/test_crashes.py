"""The crash matrix: each scenario is cut before and after each of its effects, and must come to the same end.

Over the store in memory it has no blank. Over the others it is a sample, drawn evenly, because their decisions are the
same functions; ``pytest tests/faults --full`` cuts everywhere, which takes the better part of an hour over DynamoDB.

There each process has a store of its own, and every decision is judged by what it was made over. So a rule of their
caches that is broken shows, where it misleads somebody:

* SQLite keeps rows although ``data_version`` has moved: the scenarios with a process beside, the only ones in which a
  process meets what was written since it last looked.
* DynamoDB's beliefs go without the condition that proves them: the same; the demoted stream never ends.
* A decision that writes nothing goes unproven there: wherever a socket is looked for.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.engine import virtual
from tests.engine.gate import When
from tests.faults.coverage import Coverage, is_full
from tests.faults.scenarios import SCENARIOS
from tests.faults.stage import Point, Scenario, Stage
from tests.faults.stores import STORES, MatrixStore


def played(scenario: Scenario, crash_at: Point | None, store: MatrixStore, folder: Path) -> Stage:
    """Runs a scenario and judges it."""
    stage, violations = virtual.run(partial(Stage.play, scenario, crash_at, store.open(folder)))
    where = "without a crash" if crash_at is None else f"crashed {crash_at[1]} effect {crash_at[0]}"
    assert violations == [], where
    try:
        scenario.expect(stage)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    assert isinstance(stage, Stage)
    return stage


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = is_full(metafunc.config)
    pairs = [(store, scenario) for scenario in SCENARIOS for store in STORES if full or store.takes(scenario.name)]
    metafunc.parametrize(("store", "scenario"), pairs, ids=lambda one: one.name)


def test_wherever_a_process_dies_the_end_is_the_same(
    scenario: Scenario, store: MatrixStore, coverage: Coverage, tmp_path: Path
) -> None:
    effects = played(scenario, None, store, tmp_path).effect_names
    assert effects
    points = [(effect, when) for effect in range(1, len(effects) + 1) for when in When]
    stride = 1 if coverage.full else store.stride
    # Scenarios begin at different places, so that together they are cut at all kinds of places.
    cut = points[SCENARIOS.index(scenario) % stride :: stride]
    for point in cut:
        played(scenario, point, store, tmp_path)
    coverage.note(store.name, scenario.name, Counter(effects), len(cut))
