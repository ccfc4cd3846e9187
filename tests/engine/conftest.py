"""Every test here runs on virtual time, and an ERROR in the log that it did not announce fails it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.engine import virtual
from tests.engine.expected import Expected, expected
from tests.engine.world import World, living

__all__ = ["expected", "world"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trio(run=virtual.run))


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    """An empty world; its processes end with the test."""
    async with living(World(nursery=nursery)) as made:
        yield made
