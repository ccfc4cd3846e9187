"""Killed or frozen between any two effects of a publication: the object at the key is the one that was committed."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.launcher import POINTS
from tests.e2e.processes import Daemon, configure, serving, wait_for_file, wait_until
from tpfd.core.kinds import EXECUTION
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus, PublicationState, TenantId
from tpfd.stores.sqlite import open_sqlite

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
AT_A_TIME = 4

each_policy = pytest.mark.parametrize("on_existing", ["fail", "replace"])


@asynccontextmanager
async def interrupted(folder: Path, action: str, point: str, on_existing: str) -> AsyncIterator[tuple[Daemon, str]]:
    """A daemon that has come to a point of publishing an execution, and the execution."""
    out = folder / "out"
    out.mkdir()
    if on_existing == "replace":
        (out / "rows.csv").write_text("of an earlier day", "utf-8")
    config = configure(folder, "first", "publish.yaml")
    launcher = (LAUNCHER, action, point, str(folder / "marker"))
    async with serving(folder, config, launcher=launcher, **environ(folder, on_existing)) as daemon:
        execution_id = await daemon.submit({"folder": str(folder)})
        await wait_for_file(folder / "marker")
        yield daemon, execution_id


@asynccontextmanager
async def successor(
    folder: Path, on_existing: str, *, launcher: Sequence[str] = (), **sections: Any
) -> AsyncIterator[Daemon]:
    config = configure(folder, "second", "publish.yaml", **sections)
    async with serving(folder, config, launcher=launcher, **environ(folder, on_existing)) as daemon:
        yield daemon


def environ(folder: Path, on_existing: str) -> dict[str, str]:
    return {"OUTPUT_FOLDER": str(folder / "out"), "ON_EXISTING": on_existing}


async def committed(folder: Path, execution_id: str) -> ExecutionRecord:
    async with open_sqlite(folder / "tpfd.db") as store:
        record = await store.get(EXECUTION.key(TenantId("default"), ExecutionId(execution_id)))
    assert record is not None
    return record


async def check_object(folder: Path, execution_id: str) -> None:
    """There is one object, whole, and it is the committed one."""
    record = await committed(folder, execution_id)
    assert record.status is ExecutionStatus.SUCCEEDED
    assert record.publication is not None
    assert record.publication.state is PublicationState.COMPLETED
    content = (folder / "out" / "rows.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == record.publication.digest
    assert content.count(b"\n") == 5001 == record.publication.item_count + 1
    assert [path.name for path in (folder / "out").iterdir()] == ["rows.csv"]


@each_policy
async def test_a36_killed_at_any_point_one_whole_object_appears(tmp_path: Path, on_existing: str) -> None:
    async def killed(folder: Path, point: str) -> None:
        async with interrupted(folder, "KILL", point, on_existing) as (first, execution_id):
            assert await first.ended() == -signal.SIGKILL
            if point in POINTS[: POINTS.index("linked")]:
                assert visible(folder) == (["rows.csv"] if on_existing == "replace" else [])
            async with successor(folder, on_existing) as second:
                await second.wait_status(execution_id, "SUCCEEDED")
                assert await second.stop() == 0
            await check_object(folder, execution_id)
            if point in POINTS[POINTS.index("linked") :]:  # what was in place already was not made again
                assert len((folder / "started").read_text().splitlines()) == 1

    await at_each_point(tmp_path, killed)


@each_policy
async def test_an_owner_that_was_frozen_cannot_change_what_another_committed(tmp_path: Path, on_existing: str) -> None:
    async def frozen(folder: Path, point: str) -> None:
        async with interrupted(folder, "STOP", point, on_existing) as (first, execution_id):
            async with successor(folder, on_existing) as second:
                await second.wait_status(execution_id, "SUCCEEDED")
                assert await second.stop() == 0
            await check_object(folder, execution_id)
            first.send(signal.SIGCONT)
            if point not in {"committing", "committed"}:
                await wait_until("the thawed owner to give up", lambda: gave_up(first))
            await check_object(folder, execution_id)
            assert await first.stop() == 0
            await check_object(folder, execution_id)

    await at_each_point(tmp_path, frozen)


async def test_of_two_frozen_owners_only_the_newer_one_can_write(tmp_path: Path) -> None:
    """The older one thaws in the very write that says what shall be published, while the newer one runs."""
    second_launcher = (LAUNCHER, "STOP", "prepared", str(tmp_path / "second-marker"))
    async with (
        interrupted(tmp_path, "STOP", "preparing", "fail") as (first, execution_id),
        successor(tmp_path, "fail", launcher=second_launcher, lease={"duration": "PT1H"}) as second,
    ):
        await wait_for_file(tmp_path / "second-marker")
        first.send(signal.SIGCONT)
        await wait_until("the older owner to give up", lambda: gave_up(first))
        second.send(signal.SIGCONT)
        await second.wait_status(execution_id, "SUCCEEDED")
        assert await first.stop() == 0
        assert await second.stop() == 0
        await check_object(tmp_path, execution_id)


async def at_each_point(
    folder: Path, scenario: Callable[[Path, str], Awaitable[None]], points: Sequence[str] = POINTS
) -> None:
    """Plays a scenario at every point, a few at a time; an error says at which."""
    limiter = trio.CapacityLimiter(AT_A_TIME)

    async def one(point: str) -> None:
        async with limiter:
            (folder / point).mkdir()
            try:
                await scenario(folder / point, point)
            except BaseException as error:
                error.add_note(f"at the point {point!r}")
                raise

    async with trio.open_nursery() as nursery:
        for point in points:
            nursery.start_soon(one, point)


async def gave_up(daemon: Daemon) -> bool:
    daemon.alive()
    return bool(daemon.events("attempt_without_lease"))


def visible(folder: Path) -> list[str]:
    return [path.name for path in (folder / "out").iterdir() if not path.name.startswith(".")]
