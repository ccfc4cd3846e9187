"""The crash matrix: each scenario is cut before and after each of its effects, and must come to the same end."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.engine import virtual
from tests.engine.gate import When
from tests.faults.conftest import Coverage
from tests.faults.scenarios import SCENARIOS
from tests.faults.stage import Point, Scenario, Stage


def played(scenario: Scenario, crash_at: Point | None) -> Stage:
    """Runs a scenario and judges it."""
    stage, violations = virtual.run(partial(Stage.play, scenario, crash_at))
    where = "without a crash" if crash_at is None else f"crashed {crash_at[1]} effect {crash_at[0]}"
    assert violations == [], where
    try:
        scenario.expect(stage)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    assert isinstance(stage, Stage)
    return stage


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_wherever_a_process_dies_the_end_is_the_same(scenario: Scenario, coverage: Coverage) -> None:
    effects = played(scenario, None).effect_names
    assert effects
    for number in range(1, len(effects) + 1):
        for when in When:
            played(scenario, (number, when))
    coverage.note(scenario.name, Counter(effects))
