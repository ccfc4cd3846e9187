"""What every source of input does, whoever provides it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.objects.places import Location
from tpfd.errors import Conflict, MalformedError, NonRetryableError, OutsideError, TooLarge
from tpfd.objects.protocol import AfterAction, AfterKind, ListedObject, ObjectSource

KEEP = AfterAction(kind=AfterKind.KEEP)
DELETE = AfterAction(kind=AfterKind.DELETE)
MOVE = AfterAction(kind=AfterKind.MOVE, folder="done/here")


async def _only(source: ObjectSource) -> ListedObject:
    (listed,) = (await source.list_page(10, None)).objects
    return listed


async def test_only_what_is_asked_for_is_listed(place: Location) -> None:
    for name in ("b.csv", "a.csv", "c.CSV", "d.txt", "skip-me.csv", ".hidden.csv", "~lock.csv", "e.csv.tmp", "f.part"):
        place.put(name, "12345")
    place.put("below/g.csv", "x")
    source = place.source(include=["*.csv", "*.tmp", "*.part"], exclude=["skip-*"])
    page = await source.list_page(10, None)
    assert [(one.key, one.size_bytes, one.settled) for one in page.objects] == [("a.csv", 5, True), ("b.csv", 5, True)]
    assert (page.next_after, page.ignored) == (None, ())


async def test_an_unsafe_name_is_ignored_with_a_reason(place: Location) -> None:
    place.put("line\nbreak.csv", "x")
    page = await place.source().list_page(10, None)
    assert page.objects == ()
    assert [(one.name, one.reason) for one in page.ignored] == [("'line\\nbreak.csv'", "contains a control character")]


@pytest.mark.parametrize("limit", [1, 10, 12, 13])
async def test_pages_are_complete_and_in_order(place: Location, limit: int) -> None:
    names = [f"{number:03d}é.csv" for number in range(25)]
    for name in reversed(names):
        place.put(name, "x")
    for number in range(3):
        place.put(f"{number * 10:03d}/below.csv", "x")
    source, seen, after = place.source(), [], None
    while True:
        page = await source.list_page(limit, after)
        assert len(page.objects) <= limit
        seen += [listed.key for listed in page.objects]
        if (after := page.next_after) is None:
            break
    assert seen == names


async def test_identity_follows_its_fields(place: Location) -> None:
    fields: dict[str, list[str]] = {"default": [], "name": ["key"], "content": ["checksum"], "size": ["size", "key"]}
    sources = {
        name: place.source(**({"identity_fields": chosen} if chosen else {})) for name, chosen in fields.items()
    }

    async def changed_by(text: str) -> set[str]:
        before = {name: await source.identity(await _only(source)) for name, source in sources.items()}
        place.put("a.csv", text)
        return {name for name, source in sources.items() if await source.identity(await _only(source)) != before[name]}

    place.put("a.csv", "one")
    assert await changed_by("two") == {"default", "content"}
    assert await changed_by("three") == {"default", "content", "size"}
    place.put("b.csv", "three")
    first, second = (await place.source().list_page(10, None)).objects
    same = {name for name, one in sources.items() if await one.identity(first) == await one.identity(second)}
    assert same == {"content"}


def test_unknown_identity_fields_are_named(place: Location) -> None:
    with pytest.raises(ValueError, match="colour"):
        place.source(identity_fields=["key", "colour"])
    with pytest.raises(ValueError, match="known here are"):
        place.source(identity_fields=[])


@pytest.mark.parametrize("content", [b"", b"x", b"\xef\xbb\xbfZo\xc3\xab"])
async def test_reads_bytes_and_text_without_a_mark(place: Location, content: bytes) -> None:
    place.put("a.csv", content)
    source = place.source()
    listed = await _only(source)
    assert await source.read_bytes(listed, 100) == content
    assert await source.read_text(listed, 100) == content.decode("utf-8-sig")
    assert (await source.reference(listed)).sha256 == hashlib.sha256(content).hexdigest()


async def test_text_that_is_not_utf8_is_placed(place: Location) -> None:
    place.put("a.csv", b"one\ntwo\nZo\xeb")
    source = place.source()
    with pytest.raises(MalformedError, match=r"a\.csv: line 3, byte 10"):
        await source.read_text(await _only(source), 100)


async def test_too_large_is_refused_unread(place: Location) -> None:
    place.put("a.csv", "12345")
    source = place.source()
    with pytest.raises(TooLarge, match="5 bytes, more than 4"):
        await source.read_bytes(await _only(source), 4)


async def test_a_changed_object_is_not_read_as_the_listed_one(place: Location) -> None:
    place.put("a.csv", "old")
    source = place.source()
    listed = await _only(source)
    place.put("a.csv", "new!")
    with pytest.raises(Conflict) as caught:
        await source.reference(listed)
    assert caught.value.code == "object_changed"
    place.delete("a.csv")
    with pytest.raises(Conflict, match="is gone"):
        await source.read_bytes(listed, 100)


async def test_a_reference_verifies_until_a_byte_changes(place: Location) -> None:
    place.put("a.csv", "pay 10")
    source = place.source()
    reference = await source.reference(await _only(source))
    assert (reference.size_bytes, reference.path) == (6, f"{place.url}a.csv")
    await source.verify(reference)
    await source.verify(evolve(reference, etag="of another copy of the same bytes"))
    place.put("a.csv", "pay 99")
    with pytest.raises(NonRetryableError) as caught:
        await source.verify(reference)
    assert caught.value.code == "object_changed"
    place.delete("a.csv")
    with pytest.raises(NonRetryableError) as caught:
        await source.verify(reference)
    assert caught.value.code == "object_missing"


@pytest.mark.parametrize("key", ["../a.csv", "/etc/passwd", "x/../../a.csv"])
async def test_a_reference_cannot_lead_outside(place: Location, key: str) -> None:
    place.put("a.csv", "x")
    source = place.source()
    reference = evolve(await source.reference(await _only(source)), key=key)
    with pytest.raises(NonRetryableError) as caught:
        await source.verify(reference)
    assert caught.value.code == "object_key_refused"


async def test_a_location_that_is_not_there_is_retryable(nowhere: Location) -> None:
    with pytest.raises(OutsideError) as caught:
        await nowhere.source().list_page(10, None)
    assert (caught.value.code, caught.value.retryable) == ("object_storage_failed", True)


# ── after ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_after_keep_and_delete(place: Location) -> None:
    place.put("a.csv", "x")
    source = place.source()
    listed = await _only(source)
    assert not await source.after(listed, KEEP)
    assert place.objects() == ["a.csv"]
    assert await source.after(listed, DELETE)
    assert place.objects() == []
    assert not await source.after(listed, DELETE), "repeating it is harmless"
    assert not await source.after(listed, MOVE)


async def test_after_leaves_a_new_object_of_the_same_name(place: Location) -> None:
    place.put("a.csv", "old")
    source = place.source()
    listed = await _only(source)
    place.put("a.csv", "new one")
    assert not await source.after(listed, DELETE)
    assert not await source.after(listed, MOVE)
    assert (place.objects(), place.read("a.csv")) == (["a.csv"], b"new one")


async def test_after_move_keeps_what_was_moved_before(place: Location) -> None:
    source = place.source()
    for text in ("first", "second"):
        place.put("a.csv", text)
        assert await source.after(await _only(source), MOVE)
    assert {key: place.read(key) for key in place.objects()} == {
        "done/here/a.csv": b"first",
        "done/here/a.v2.csv": b"second",
    }
    assert (await source.list_page(10, None)).objects == ()


@pytest.mark.parametrize("folder", ["..", "/tmp", "a/../.."])
async def test_after_move_cannot_lead_outside(place: Location, folder: str) -> None:
    place.put("a.csv", "x")
    source = place.source()
    with pytest.raises(NonRetryableError):
        await source.after(await _only(source), AfterAction(kind=AfterKind.MOVE, folder=folder))
    assert place.objects() == ["a.csv"]


# ── opened by a step ─────────────────────────────────────────────────────────────────────────────────────────────────


async def _in_thread(call: Callable[[], Any]) -> Any:
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


async def test_a_step_reads_an_object_as_a_file(place: Location) -> None:
    place.put("a.csv", b"one\ntwo\nthree")
    source = place.source()

    def read() -> tuple[list[bytes], bytes, bytes, int]:
        with source.open_object(f"{place.url}a.csv") as file:
            lines = list(file)
            file.seek(4)
            part = file.read(3)
            file.seek(-5, 2)
            return lines, part, file.read(), file.tell()

    assert await _in_thread(read) == ([b"one\n", b"two\n", b"three"], b"two", b"three", 13)


async def test_a_step_opens_what_stands_deeper_and_what_is_empty(place: Location) -> None:
    place.put("2026/a.csv", b"")
    with await _in_thread(lambda: place.source().open_object(f"{place.url}2026/a.csv")) as file:
        assert await _in_thread(file.read) == b""


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/passwd", "object_outside_source"),
        ("s3://another/p/a.csv", "object_outside_source"),
        ("{url}../a.csv", "object_key_refused"),
        ("{url}none.csv", "object_missing"),
        ("{url}no/such/folder.csv", "object_missing"),
    ],
)
async def test_a_step_opens_nothing_else(place: Location, path: str, code: str) -> None:
    place.put("a.csv", "x")
    with pytest.raises(NonRetryableError) as caught:
        await _in_thread(lambda: place.source().open_object(path.format(url=place.url)))
    assert caught.value.code == code
