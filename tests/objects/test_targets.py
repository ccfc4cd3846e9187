"""What every output location does, whoever provides it."""

from __future__ import annotations

import hashlib

import pytest
import trio

from tests.objects.owners import EXECUTION, Ledger, Owner
from tests.objects.places import Location
from tpfd.core.publication import OnExisting, Staged
from tpfd.errors import NonRetryableError, OutsideError
from tpfd.objects.formats import CsvEncoder, Row, make_encoder
from tpfd.objects.protocol import ObjectTarget, PlaceOutcome, Temporary


def _rows(count: int) -> list[Row]:
    return [{"id": str(number), "text": f"row {number}"} for number in range(count)]


def _csv() -> CsvEncoder:
    return CsvEncoder(["id", "text"])


async def _publish(target: ObjectTarget, key: str, count: int, *, fence: int = 1, replace: bool = False) -> Staged:
    async with target.open_temporary(key, EXECUTION, fence, _csv()) as session:
        for row in _rows(count):
            await session.write([row])
        staged = await session.finish()
        assert await target.place(staged, key, replace=replace) is PlaceOutcome.PLACED
    return staged


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 2000])
async def test_the_object_is_whole_and_as_promised(place: Location, count: int) -> None:
    staged = await _publish(place.target(), "2026/07/out.csv", count)
    data = place.read("2026/07/out.csv")
    assert data.decode() == "id,text\n" + "".join(f"{n},row {n}\n" for n in range(count))
    assert (staged.size_bytes, staged.item_count) == (len(data), count)
    assert staged.digest == hashlib.sha256(data).hexdigest()
    found = await place.target().inspect("2026/07/out.csv")
    assert found is not None
    assert (found.digest, found.size_bytes) == (staged.digest, staged.size_bytes)
    assert (place.objects(), place.leftovers()) == (["2026/07/out.csv"], [])


@pytest.mark.parametrize(
    ("format_name", "rows", "text"),
    [
        ("json", [{"a": 1}, {"a": "é"}], '[\n{"a":1},\n{"a":"é"}\n]\n'),
        ("json", [], "[]\n"),
        ("jsonl", [{"a": 1}, {"a": None}], '{"a":1}\n{"a":null}\n'),
        ("jsonl", [], ""),
        ("csv", [{"a": "x,y"}], 'a\n"x,y"\n'),
    ],
)
async def test_every_format_is_written_to_its_end(
    place: Location, format_name: str, rows: list[Row], text: str
) -> None:
    target = place.target()
    async with target.open_temporary("x", EXECUTION, 1, make_encoder(format_name, ["a"])) as session:
        await session.write(rows)
        assert await target.place(await session.finish(), "x", replace=False) is PlaceOutcome.PLACED
    assert place.read("x").decode() == text


async def test_nothing_is_seen_before_it_is_placed(place: Location) -> None:
    target = place.target()
    async with target.open_temporary("out.csv", EXECUTION, 7, _csv()) as session:
        await session.write(_rows(600))
        staged = await session.finish()
        assert place.objects() == []
        assert await target.inspect("out.csv") is None
        (temporary,) = await place.target().list_temporaries(EXECUTION)
        assert temporary == Temporary(name=staged.temporary, fence=7)
    assert place.leftovers() == []


async def test_an_abandoned_session_leaves_nothing(place: Location) -> None:
    async def fail_half_way() -> None:
        async with place.target().open_temporary("out.csv", EXECUTION, 1, _csv()) as session:
            await session.write(_rows(600))
            await session.finish()
            raise RuntimeError("step failed")

    with pytest.raises(RuntimeError, match="step failed"):
        await fail_half_way()
    assert (place.objects(), place.leftovers()) == ([], [])


async def test_a_cancelled_session_leaves_nothing(place: Location) -> None:
    with trio.CancelScope() as scope:
        async with place.target().open_temporary("out.csv", EXECUTION, 1, _csv()) as session:
            await session.write(_rows(600))
            await session.finish()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert (place.objects(), place.leftovers()) == ([], [])


async def test_placing_never_replaces_unless_asked(place: Location) -> None:
    place.put("out.csv", "old")
    target = place.target()
    async with target.open_temporary("out.csv", EXECUTION, 1, _csv()) as session:
        staged = await session.finish()
        assert await target.place(staged, "out.csv", replace=False) is PlaceOutcome.OCCUPIED
        assert place.read("out.csv") == b"old"
        assert await target.place(staged, "out.csv", replace=True) is PlaceOutcome.PLACED
    assert place.read("out.csv") == b"id,text\n"


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("consumed", [False, True])
async def test_a_stopped_owner_that_wakes_up_late_cannot_place(
    place: Location, replace: bool, consumed: bool
) -> None:
    late, newer = place.target(), place.target()
    async with late.open_temporary("out.csv", EXECUTION, 1, _csv()) as session:
        staged = await session.finish()
        (old,) = await newer.list_temporaries(EXECUTION)  # the new owner's first act
        await newer.discard(old)
        await _publish(newer, "out.csv", 3, fence=2)
        if consumed:
            place.delete("out.csv")
        assert await late.place(staged, "out.csv", replace=replace) is PlaceOutcome.SUPERSEDED
    assert place.objects() == ([] if consumed else ["out.csv"])
    assert consumed or place.read("out.csv").count(b"\n") == 4
    assert place.leftovers() == []


async def test_discarding_twice_is_harmless_and_touches_no_other_execution(place: Location) -> None:
    target = place.target()
    async with (
        target.open_temporary("out.csv", "01JOTHER", 3, _csv()) as other,
        target.open_temporary("out.csv", EXECUTION, 1, _csv()) as session,
    ):
        await session.finish()
        staged = await other.finish()
        (temporary,) = await target.list_temporaries(EXECUTION)
        await target.discard(temporary)
        await target.discard(temporary)
        assert await target.list_temporaries(EXECUTION) == ()
        assert await target.place(staged, "out.csv", replace=False) is PlaceOutcome.PLACED
    assert place.leftovers() == []


@pytest.mark.parametrize("key", ["../x.csv", "/abs/x.csv", "a/../../x.csv", "a\\..\\x.csv", "x\0.csv", "a//x.csv"])
async def test_a32_no_key_leaves_the_location(place: Location, key: str) -> None:
    target = place.target()
    async with target.open_temporary("x.csv", EXECUTION, 1, _csv()) as session:
        staged = await session.finish()
        for replace in (False, True):
            with pytest.raises(NonRetryableError) as caught:
                await target.place(staged, key, replace=replace)
            assert caught.value.code == "object_key_refused"
        with pytest.raises(NonRetryableError):
            await target.inspect(key)
    assert (place.objects(), place.leftovers()) == ([], [])


@pytest.mark.parametrize("effects", range(1, 12))
async def test_a36_killed_at_any_point_a_retry_gives_one_whole_object(place: Location, effects: int) -> None:
    """Before the write, before the record, before the placing, behind it, behind the record."""
    ledger = Ledger()
    killed = Owner(ledger, place.target(), "out.csv", [{"a": "1"}] * 3, OnExisting.FAIL)
    for _ in range(effects):
        if not killed.ended:
            await killed.step()
    was_placed = place.objects() == ["out.csv"]
    state_before = place.state("out.csv") if was_placed else None
    retry = Owner(ledger, place.target(), "out.csv", [{"a": "1"}] * 3, OnExisting.FAIL)
    await retry.run()
    assert ledger.completed
    assert place.read("out.csv") == b"a\n1\n1\n1\n"
    if was_placed:
        assert place.state("out.csv") == state_before, "adopted, not written again"
        assert retry.staged is None
    await killed.close()
    await retry.close()
    assert (place.objects(), place.leftovers()) == (["out.csv"], [])


async def test_a_location_that_is_not_there_is_retryable(nowhere: Location) -> None:
    target = nowhere.target()
    with pytest.raises(OutsideError) as caught:
        async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["id"])) as session:
            await session.finish()
    assert caught.value.retryable
    assert caught.value.code == "object_storage_failed"
    assert caught.value.__cause__ is not None
