"""The simulation holds over a fixed set of seeds, replays exactly, and notices each guard that is taken out."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.sim import clock
from tests.sim.cluster import Report, simulate
from tests.sim.coverage import Coverage, Fault
from tests.sim.guards import GUARDS, without

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 181)
"""What CI runs: about a minute."""
BROKER_SEEDS = range(1, 41)
"""Of these, the same runs with a broker in the place of the sockets."""
TRIES = 80
"""Seeds in which a missing guard has to show."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What replicas log while things go wrong is not the point here."""
    usual = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(usual)


def test_nothing_is_violated_and_everything_is_exercised() -> None:
    total = Coverage()
    for seed in SEEDS:
        report = simulate(seed)
        assert report.violations == (), f"python -m tests.sim --seed {seed} --trace\n" + "\n".join(report.violations)
        total.merge(report.coverage)
    assert total.holes() == []


def test_nothing_is_violated_when_providers_are_asked_through_a_broker() -> None:
    total = Coverage()
    for seed in BROKER_SEEDS:
        report = simulate(seed, through="kafka")
        where = f"python -m tests.sim --seed {seed} --through kafka --trace"
        assert report.violations == (), where + "\n" + "\n".join(report.violations)
        total.merge(report.coverage)
    met = (Fault.HOOK_REFUSED, Fault.HOOK_NEVER, Fault.HOOK_LOST, Fault.KILL, Fault.DRAIN)
    assert total.missing(met) == [], "a request is not taken, never taken, taken and not reported; a process ends"


def test_one_seed_gives_one_trace_in_one_process() -> None:
    first, second = simulate(5), simulate(5)
    assert first.line_count > 100
    assert (first.digest, first.line_count) == (second.digest, second.line_count)
    assert simulate(6).digest != first.digest


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_one_seed_gives_one_trace_in_every_process(hash_seed: str) -> None:
    code = "import logging; logging.disable(50)\nfrom tests.sim.cluster import simulate\nprint(simulate(5).digest)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == simulate(5).digest


@pytest.mark.parametrize("name", sorted(GUARDS))
def test_a_missing_guard_is_noticed_and_the_seed_replays(name: str) -> None:
    for seed in range(1, TRIES + 1):
        found = _without(name, seed)
        if found.violations:
            again = _without(name, seed)
            assert (again.digest, again.line_count) == (found.digest, found.line_count)
            assert len(again.violations) == len(found.violations)
            return
    pytest.fail(f"nobody noticed that {name} is missing")


def _without(name: str, seed: int) -> Report:
    with without(name):
        return simulate(seed, also=GUARDS[name].faults)


def test_a_run_in_which_nothing_can_happen_any_more_is_ended() -> None:
    async def main() -> None:
        await trio.sleep_forever()

    with pytest.raises(clock.Stuck, match="waits for ever"):
        clock.run(1, main)


def test_a_run_in_which_time_stands_still_is_ended() -> None:
    async def main() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(clock.Stuck, match="spins"):
        clock.run(1, main)


def test_virtual_time_costs_none() -> None:
    async def main() -> float:
        await trio.sleep(86_400)
        return trio.current_time()

    assert clock.run(1, main) == 86_400
