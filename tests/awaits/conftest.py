"""Desks over every store. An ERROR in the log that a test did not announce fails it.

A module with ``VIRTUAL_TIME`` runs on virtual time, and so over the memory store only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.awaits.desk import Desk, seat
from tests.conformance.stores import STORES
from tests.engine import virtual
from tests.engine.conftest import expected
from tests.engine.expected import Expected
from tpfd.stores.protocol import Store

__all__ = ["expected"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and getattr(getattr(item, "module", None), "VIRTUAL_TIME", False):
            item.add_marker(pytest.mark.trio(run=virtual.run))


Seat = Callable[..., Desk]


@pytest.fixture(params=sorted(STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def desk_for(expected: Expected, nursery: trio.Nursery, store: Store) -> Seat:
    """Makes a desk: ``desk_for(program, …, keys=…, setting=…)``; all of a test's desks share its store."""
    return partial(seat, nursery, store)
