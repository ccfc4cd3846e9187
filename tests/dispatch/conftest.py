"""Most tests here run on virtual time; those over the real stand-in do not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from tests.dispatch.hinted import HintedWorld
from tests.engine import virtual
from tests.engine.expected import Expected

HERE = Path(__file__).parent
REAL = {"test_real_daemons.py", "test_real_sqs.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.name not in REAL:
            item.add_marker(pytest.mark.trio(run=virtual.run))


@pytest.fixture
def expected(caplog: pytest.LogCaptureFixture) -> Iterator[Expected]:
    """Which errors the log may hold."""
    caplog.set_level(logging.INFO)
    announced = Expected(caplog)
    yield announced
    assert announced.surprises() == []


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[HintedWorld]:
    """Processes over one store and one queue, on virtual time; they end with the test."""
    made = HintedWorld(nursery=nursery)
    yield made
    for process in made.processes:
        process.kill()
    nursery.cancel_scope.cancel("the test is over")
