from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stores.faults import Faults
from tpfd.stores.sqlite import SqliteStore, open_sqlite


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def sqlite_store(tmp_path: Path, faults: Faults) -> AsyncIterator[SqliteStore]:
    """A store whose connections fail as `faults` says and hold values up to 5,000 bytes."""
    connection_class = faults.connection_class(length=5_000)
    async with open_sqlite(
        tmp_path / "store.db", busy_timeout_ms=50, connection_class=connection_class
    ) as store:
        yield store
