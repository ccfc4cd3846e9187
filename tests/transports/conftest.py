"""An empty world for the tests of senders."""

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
VIRTUAL = {
    "test_broker_answers.py", "test_broker_link.py", "test_dispatched_count.py", "test_sqs_await.py",
    "test_unsendable.py", "test_webhook_failures.py", "test_webhook_sender.py",
}  # fmt: skip
"""Modules whose tests run on virtual time; the others have real sockets."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.name in VIRTUAL:
            item.add_marker(pytest.mark.trio(run=virtual.run))


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    """On virtual time; its processes end with the test."""
    async with living(World(nursery=nursery)) as made:
        yield made
