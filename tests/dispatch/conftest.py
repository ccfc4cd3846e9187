"""Most tests here run on virtual time; those over the real stand-in do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.dispatch.hinted import HintedWorld
from tests.engine import virtual
from tests.engine.expected import Expected, expected
from tests.engine.world import living

__all__ = ["expected", "world"]

HERE = Path(__file__).parent
REAL = {"test_real_daemons.py", "test_real_sqs.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.name not in REAL:
            item.add_marker(pytest.mark.trio(run=virtual.run))


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[HintedWorld]:
    """Processes over one store and one queue, on virtual time; they end with the test."""
    async with living(HintedWorld(nursery=nursery)) as made:
        yield made
