"""Objects become executions: each once, whatever restarts, changes, fails or goes away."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import trio
from attrs import define, evolve, field, frozen

from tests.engine.expected import Expected
from tests.engine.pipelines import BEGIN, INLINE, Line, Row, begin, program, service
from tests.engine.world import POLICY, TENANT, Process, S, World
from tests.objects.unasked import Unasked
from tpfd.core.kinds import EXECUTION, INGESTED
from tpfd.core.records import ExecutionId, TenantId
from tpfd.errors import Conflict, NonRetryableError, OutsideError, PayloadError, Problem
from tpfd.objects.ingest import FORGET_EVERY, Ingest
from tpfd.objects.protocol import AfterAction, AfterKind, ListedObject, Page


@frozen
class Stored:
    etag: str
    data: object
    settled: bool = True


@define(eq=False)
class MemorySource(Unasked):
    """A location in memory. `page_count` objects are listed at a time."""

    objects: dict[str, Stored] = field(factory=dict)
    failing: dict[str, Exception] = field(factory=dict)
    done: list[str] = field(factory=list)
    page_count: int = 3

    def put(self, key: str, data: object, etag: str = "1", *, settled: bool = True) -> None:
        self.objects[key] = Stored(etag, data, settled)

    async def list_page(self, limit: int, after: str | None) -> Page:
        await trio.lowlevel.checkpoint()
        if "*" in self.failing:
            raise self.failing["*"]
        keys = [key for key in sorted(self.objects) if after is None or key > after][: self.page_count]
        listed = tuple(
            ListedObject(
                key=key,
                size_bytes=1,
                modified_epoch_ms=0,
                etag=self.objects[key].etag,
                settled=self.objects[key].settled,
            )
            for key in keys
        )
        return Page(objects=listed, next_after=keys[-1] if len(keys) == self.page_count else None)

    async def identity(self, listed: ListedObject) -> str:
        await trio.lowlevel.checkpoint()
        if f"identity {listed.key}" in self.failing:
            raise self.failing[f"identity {listed.key}"]
        return hashlib.sha256(f"{listed.key}/{listed.etag}".encode()).hexdigest()

    async def after(self, listed: ListedObject, action: AfterAction) -> bool:
        await trio.lowlevel.checkpoint()
        if f"after {listed.key}" in self.failing:
            raise self.failing[f"after {listed.key}"]
        if listed.key not in self.objects or self.objects[listed.key].etag != listed.etag:
            return False
        del self.objects[listed.key]
        self.done.append(listed.key)
        return True

    async def read(self, listed: ListedObject) -> object:
        await trio.lowlevel.checkpoint()
        if listed.key in self.failing:
            raise self.failing[listed.key]
        return self.objects[listed.key].data


def last(row: Row) -> Line:
    if row.text == "bad":
        raise PayloadError([Problem("$", "no good")])
    return Line(row.number, row.text)


PROGRAM = program(BEGIN + service("last", "Row", "Line", more=INLINE), {"begin": begin, "last": last})


def ingest(process: Process, files: MemorySource, kind: AfterKind = AfterKind.KEEP, **more: Any) -> Ingest:
    async def submit(
        tenant_id: TenantId, source: str, listed: ListedObject, data: object, identity: str
    ) -> tuple[ExecutionId, bool]:
        keep = kind is AfterKind.KEEP
        return await process.submitting.ingest(tenant_id, PROGRAM, source, listed.key, data, identity, keep=keep)

    return Ingest(
        name="test/files",
        tenant_id=TENANT,
        source=files,
        read=files.read,
        submit=submit,
        store=process.runtime.store,
        after=AfterAction(kind=kind),
        poll_interval_ms=1_000,
        batch_size=more.pop("batch_size", 50),
        trouble=process.runtime.trouble,
    )


def file(number: int, name: str = "row") -> dict[str, object]:
    return {"name": name, "count": number}


async def started(world: World) -> tuple[Process, MemorySource]:
    world.load(PROGRAM)
    return await world.start(), MemorySource()


def executions(world: World) -> int:
    return len(world.observed.rows(EXECUTION))


async def test_each_object_runs_once_also_by_several_processes_and_over_restarts(world: World) -> None:
    world.load(PROGRAM)
    source = MemorySource()
    a, b = await world.start("a"), await world.start("b")
    for process in (a, b):
        process.gate.delay_s = lambda: 0.01
        world.nursery.start_soon(ingest(process, source).run)
    for number in range(10):
        source.put(f"{number}.csv", file(number))
        await trio.sleep(0.3)
    await trio.sleep(5)
    assert executions(world) == 10
    a.kill()
    c = await world.start("c")
    world.nursery.start_soon(ingest(c, source).run)
    await trio.sleep(20)
    assert executions(world) == 10
    assert {one.status for one in world.observed.rows(EXECUTION)} == {S.SUCCEEDED}
    assert {one.source_key for one in world.observed.rows(EXECUTION)} == set(source.objects)


async def test_a_changed_object_is_another_and_an_unsettled_one_waits(world: World) -> None:
    a, source = await started(world)
    one = ingest(a, source)
    source.put("x.csv", file(1), settled=False)
    assert await one.poll() == 0
    source.put("x.csv", file(1))
    assert await one.poll() == 1
    assert await one.poll() == 0
    source.put("x.csv", file(2), etag="2")
    assert await one.poll() == 1
    assert executions(world) == 2


async def test_a_batch_bounds_what_one_poll_takes(world: World) -> None:
    a, source = await started(world)
    one = ingest(a, source, batch_size=4)
    for number in range(10):
        source.put(f"{number}.csv", file(number))
    assert [await one.poll() for _ in range(4)] == [4, 4, 2, 0]


@pytest.mark.parametrize("kind", [AfterKind.DELETE, AfterKind.MOVE])
async def test_after_success_an_object_is_taken_away_once(world: World, kind: AfterKind) -> None:
    a, source = await started(world)
    one = ingest(a, source, kind)
    source.put("good.csv", file(1))
    source.put("bad.csv", file(2, "bad"))
    assert await one.poll() == 2
    await trio.sleep(1)
    for _ in range(3):
        await one.poll()
    assert source.done == ["good.csv"]
    assert list(source.objects) == ["bad.csv"], "what has failed stays where it is"
    # After a restart what is due is still done.
    source.put("more.csv", file(3))
    await one.poll()
    await trio.sleep(1)
    again = ingest(a, source, kind)
    await again.poll()
    await again.poll()
    assert source.done == ["good.csv", "more.csv"]
    assert executions(world) == 3


async def test_an_object_that_cannot_be_taken_is_told_once_and_harms_no_other(
    world: World, expected: Expected
) -> None:
    a, source = await started(world)
    one = ingest(a, source)
    source.put("a.csv", {"nothing": "fits"})
    source.put("b.csv", file(1))
    expected.error("object_refused")
    assert [await one.poll() for _ in range(3)] == [1, 0, 0]
    assert len(expected.logged("object_refused")) == 1
    source.put("a.csv", file(2), etag="2")
    assert await one.poll() == 1


@pytest.mark.parametrize("what", ["read", "after"])
async def test_an_object_that_the_storage_refuses_holds_up_no_other(
    world: World, expected: Expected, what: str
) -> None:
    a, source = await started(world)
    one = ingest(a, source, AfterKind.DELETE)
    denied = OutsideError("reading b.csv in /in: Permission denied", code="object_storage_failed")
    source.failing["b.csv" if what == "read" else "after b.csv"] = denied
    for name in "abc":
        source.put(f"{name}.csv", file(1))
    expected.error("ingest test/files_failed")
    world.nursery.start_soon(one.run)
    await trio.sleep(10)
    assert source.done == ["a.csv", "c.csv"]
    assert a.coordinator.readiness().reasons == ("ingest test/files: reading b.csv in /in: Permission denied",)
    source.failing.clear()
    await trio.sleep(5)
    assert source.done == ["a.csv", "c.csv", "b.csv"]
    assert a.coordinator.readiness().ready
    assert executions(world) == 3


async def test_an_object_that_can_never_be_taken_away_is_told_once_and_stays(
    world: World, expected: Expected
) -> None:
    a, source = await started(world)
    one = ingest(a, source, AfterKind.MOVE)
    source.failing["after b.csv"] = NonRetryableError("b.csv: S3 copies 5 GiB at once", code="object_too_large")
    for name in "abc":
        source.put(f"{name}.csv", file(1))
    expected.error("object_left")
    world.nursery.start_soon(one.run)
    await trio.sleep(10)
    assert (source.done, list(source.objects)) == (["a.csv", "c.csv"], ["b.csv"])
    assert len(expected.logged("object_left")) == 1
    assert a.coordinator.readiness().ready
    assert executions(world) == 3


@pytest.mark.parametrize("where", ["x.csv", "identity x.csv"])
async def test_an_object_that_changes_while_it_is_taken_is_looked_at_again(world: World, where: str) -> None:
    a, source = await started(world)
    one = ingest(a, source)
    source.put("x.csv", file(1))
    source.failing[where] = Conflict("x.csv has changed since it was listed", code="object_changed")
    assert await one.poll() == 0
    source.failing.clear()
    assert await one.poll() == 1


async def test_a_listing_that_fails_is_told_and_tried_again(world: World, expected: Expected) -> None:
    a, source = await started(world)
    one = ingest(a, source)
    source.failing["*"] = OutsideError("opening folder /in, which must exist: No such file or directory")
    expected.error("ingest test/files_failed")
    world.nursery.start_soon(one.run)
    await trio.sleep(100)
    assert not a.coordinator.readiness().ready
    source.failing.clear()
    source.put("x.csv", file(1))
    await trio.sleep(2)
    assert executions(world) == 1
    assert a.coordinator.readiness().ready


async def test_rows_of_objects_that_are_gone_go_with_their_executions(world: World) -> None:
    world.policy = evolve(POLICY, succeeded_ttl_ms=2 * 3_600_000)
    a, source = await started(world)
    one = ingest(a, source)
    for number in range(8):
        source.put(f"{number}.csv", file(number))
    world.nursery.start_soon(one.run)
    await trio.sleep(5)
    for number in (0, 3, 7):
        del source.objects[f"{number}.csv"]
    await trio.sleep(FORGET_EVERY + 10)
    assert len(world.observed.rows(INGESTED)) == 8, "whoever comes back before that is known"
    await trio.sleep(2 * 3_600 + FORGET_EVERY)
    assert sorted(one.object_key for one in world.observed.rows(INGESTED)) == [f"{n}.csv" for n in (1, 2, 4, 5, 6)]
    assert executions(world) == 0
    await trio.sleep(10)
    assert executions(world) == 0, "what is still listed is not run again when its execution is removed"


async def test_a_disk_that_was_away_for_a_while_runs_nothing_twice(world: World) -> None:
    a, source = await started(world)
    one = ingest(a, source)
    for number in range(8):
        source.put(f"{number}.csv", file(number))
    await one.poll()
    away, source.objects = source.objects, {}
    again = ingest(a, source)  # a restart looks for what is gone at once
    await again.poll()
    source.objects = away
    assert await again.poll() == 0
    assert executions(world) == 8
