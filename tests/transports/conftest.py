"""An empty world for the tests of senders."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from tests.engine import virtual
from tests.engine.expected import Expected
from tests.engine.world import World

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
def expected(caplog: pytest.LogCaptureFixture) -> Iterator[Expected]:
    """Which errors the log may hold."""
    caplog.set_level(logging.INFO)
    announced = Expected(caplog)
    yield announced
    assert announced.surprises() == []


@pytest.fixture
async def world(expected: Expected, nursery: trio.Nursery) -> AsyncIterator[World]:
    """On virtual time; its processes end with the test."""
    made = World(nursery=nursery)
    yield made
    for process in made.processes:
        process.kill()
    nursery.cancel_scope.cancel("the test is over")
