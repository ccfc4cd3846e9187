"""A25: the disk is full. Who is told that something is stored finds it; the rest are told; and it ends by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.conformance.samples import TENANT, always, execution, fact, put
from tests.stores.faults import Faults
from tpfd.core.kinds import EXECUTION
from tpfd.core.transact import Decision
from tpfd.errors import StoreError
from tpfd.stores.sqlite import SqliteStore, open_sqlite

AT_ONCE = 16


async def submit(store: SqliteStore, first: int, stored: set[str], errors: list[StoreError]) -> None:
    """Submits one after another until the store refuses one."""
    for number in range(first, 100_000, AT_ONCE):
        record = execution(f"e{number:06d}", error_message="x" * 2_000)
        try:
            await store.transact([], always(Decision(None, (record,), facts=(fact("submitted", record.execution_id),))))
        except StoreError as error:
            errors.append(error)
            return
        stored.add(record.execution_id)


async def fill(store: SqliteStore) -> set[str]:
    """Submits until nobody gets anything stored any more; returns what was acknowledged."""
    stored: set[str] = set()
    errors: list[StoreError] = []
    async with trio.open_nursery() as nursery:
        for first in range(AT_ONCE):
            nursery.start_soon(submit, store, first, stored, errors)
    assert len(errors) == AT_ONCE
    assert {(error.code, error.retryable) for error in errors} == {("store_full", True)}
    assert "without a restart" in errors[0].message
    return stored


async def check(store: SqliteStore, stored: set[str]) -> None:
    """Exactly what was acknowledged is there, whole: the record, and its fact."""
    facts = [found.fact.execution_id for found in await store.feed(after=0, limit=10_000)]
    assert sorted(facts) == sorted(stored)
    found = await store.get_many([EXECUTION.key(TENANT, name) for name in facts])
    assert all(record is not None for record in found)


async def test_a_file_at_its_limit(tmp_path: Path, faults: Faults) -> None:
    faults.max_pages = 300
    async with open_sqlite(tmp_path / "store.db", connection_class=faults.connection_class()) as store:
        stored = await fill(store)
        assert stored
        await check(store, stored)
        faults.max_pages = 10_000
        await put(store, execution("later"), facts=(fact("submitted", "later"),))
        await check(store, stored | {"later"})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield disk
    finally:
        subprocess.run(["/bin/umount", str(disk)], check=True)


async def test_a_real_full_disk(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 1_500_000)
    async with open_sqlite(small_disk / "store.db") as store:
        stored = await fill(store)
        assert stored
        await check(store, stored)
        ballast.unlink()
        await put(store, execution("later"), facts=(fact("submitted", "later"),))
        await check(store, stored | {"later"})
    async with open_sqlite(small_disk / "store.db") as store:
        await check(store, stored | {"later"})
