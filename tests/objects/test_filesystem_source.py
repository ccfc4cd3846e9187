from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest
from trio.testing import MockClock

from tpfd.blocking import Inline
from tpfd.errors import NonRetryableError, OutsideError
from tpfd.objects.filesystem import FilesystemSource
from tpfd.objects.protocol import AfterAction, AfterKind, IgnoredObject, ListedObject, ObjectSource

NOW = 1_800_000_000_000
KEEP = AfterAction(kind=AfterKind.KEEP)
DELETE = AfterAction(kind=AfterKind.DELETE)
MOVE = AfterAction(kind=AfterKind.MOVE, folder="done/here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def _source(root: Path, **more: object) -> ObjectSource:
    return FilesystemSource(root, blocking=Inline(), now_epoch_ms=lambda: NOW, **more)  # type: ignore[arg-type]


def _put(path: Path, text: str = "x", age_ms: int = 60_000) -> None:
    path.write_text(text)
    modified_ns = (NOW - age_ms) * 1_000_000
    os.utime(path, ns=(modified_ns, modified_ns))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def _only(source: ObjectSource) -> ListedObject:
    (listed,) = (await source.list_page(10, None)).objects
    return listed


async def test_lists_what_is_asked_for(root: Path) -> None:
    for name in ("b.csv", "a.csv", "c.CSV", "d.txt", "skip-me.csv", ".hidden.csv", "~lock.csv", "e.csv.tmp", "f.part"):
        _put(root / name)
    (root / "folder.csv").mkdir()
    _put(root / "folder.csv" / "below.csv")
    page = await _source(root, include=["*.csv", "*.tmp", "*.part"], exclude=["skip-*"]).list_page(10, None)
    assert [listed.key for listed in page.objects] == ["a.csv", "b.csv"]
    assert page.next_after is None
    assert page.ignored == (IgnoredObject(name="'folder.csv'", reason="is not a regular file"),)


async def test_shows_size_and_time(root: Path) -> None:
    _put(root / "a.csv", "12345", age_ms=5_000)
    listed = await _only(_source(root))
    assert (listed.size_bytes, listed.modified_epoch_ms, listed.settled) == (5, NOW - 5_000, True)


async def test_links_and_unsafe_names_are_ignored_with_a_reason(root: Path, tmp_path: Path) -> None:
    _put(tmp_path / "secret.csv")
    (root / "link.csv").symlink_to(tmp_path / "secret.csv")
    _put(root / "line\nbreak.csv")
    with open(os.fsencode(root) + b"/bad\xff.csv", "wb"):  # noqa: ASYNC230, PTH123 (a name that is not UTF-8)
        pass
    page = await _source(root).list_page(10, None)
    assert page.objects == ()
    reasons = {entry.name: entry.reason for entry in page.ignored}
    assert reasons == {
        "'link.csv'": "is a symbolic link; links are not followed",
        "'line\\nbreak.csv'": "contains a control character",
        "'bad\\udcff.csv'": "is not valid Unicode text",
    }


async def test_a_page_of_many_files_needs_memory_for_the_page_only(root: Path) -> None:
    for number in range(5_000):
        (root / f"{number:06d}-{'n' * 100}.csv").touch()
    source = _source(root)
    tracemalloc.start()
    try:
        await source.list_page(10, None)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000, "5,000 names alone would be more than 700,000"


async def test_a_young_file_is_settled_when_it_stays_as_it_is(root: Path, mock_clock: MockClock) -> None:
    _put(root / "a.csv", age_ms=0)
    source = _source(root, settle_ms=1_000)
    assert not (await _only(source)).settled
    mock_clock.jump(0.9)
    assert not (await _only(source)).settled
    mock_clock.jump(0.2)
    assert (await _only(source)).settled


async def test_a_file_that_still_moves_is_not_settled(root: Path, mock_clock: MockClock) -> None:
    source = _source(root, settle_ms=1_000)
    for turn in range(5):
        _put(root / "a.csv", "x" * turn, age_ms=-turn)
        assert not (await _only(source)).settled
        mock_clock.jump(2)
    assert (await _only(source)).settled


async def test_a_modification_time_in_the_future_does_not_block(root: Path, mock_clock: MockClock) -> None:
    _put(root / "a.csv", age_ms=-86_400_000)
    source = _source(root, settle_ms=1_000)
    assert not (await _only(source)).settled
    mock_clock.jump(1.5)
    assert (await _only(source)).settled


async def test_what_is_remembered_of_unsettled_files_is_bounded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpfd.objects.filesystem._WATCHED_COUNT", 5)
    source = FilesystemSource(root, blocking=Inline(), now_epoch_ms=lambda: NOW)
    for number in range(20):
        _put(root / f"{number}.csv", age_ms=0)
    await source.list_page(100, None)
    assert len(source._watched) == 5


async def test_a_file_replaced_by_a_link_is_not_read(root: Path, tmp_path: Path) -> None:
    _put(root / "a.csv")
    _put(tmp_path / "secret")
    source = _source(root)
    listed = await _only(source)
    (root / "a.csv").unlink()
    (root / "a.csv").symlink_to(tmp_path / "secret")
    with pytest.raises(NonRetryableError, match="not a regular file"):
        await source.read_bytes(listed, 100)


async def test_a_reference_verifies_until_a_byte_changes(root: Path) -> None:
    _put(root / "a.csv", "pay 10")
    source = _source(root)
    reference = await source.reference(await _only(source))
    assert reference.sha256 == hashlib.sha256(b"pay 10").hexdigest()
    assert (reference.size_bytes, reference.path) == (6, str(root / "a.csv"))
    await source.verify(reference)
    _put(root / "a.csv", "pay 10", age_ms=1)  # restored: same bytes
    await source.verify(reference)
    _put(root / "a.csv", "pay 99")
    with pytest.raises(NonRetryableError) as caught:
        await source.verify(reference)
    assert caught.value.code == "object_changed"
    (root / "a.csv").unlink()
    with pytest.raises(NonRetryableError) as caught:
        await source.verify(reference)
    assert caught.value.code == "object_missing"


async def test_a_missing_folder_is_retryable(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="must exist") as caught:
        await _source(tmp_path / "unmounted").list_page(10, None)
    assert caught.value.retryable


async def test_after_move_ends_what_a_killed_one_began(root: Path) -> None:
    _put(root / "a.csv")
    source = _source(root)
    listed = await _only(source)
    (root / "done" / "here").mkdir(parents=True)
    os.link(root / "a.csv", root / "done" / "here" / "a.csv")
    assert await source.after(listed, MOVE)
    assert [path.name for path in (root / "done" / "here").iterdir()] == ["a.csv"]
    assert not (root / "a.csv").exists()


async def test_after_move_cannot_lead_outside(root: Path, tmp_path: Path) -> None:
    _put(root / "a.csv")
    (root / "link").symlink_to(tmp_path)
    source = _source(root)
    listed = await _only(source)
    for folder in ("..", "/tmp", "link"):
        with pytest.raises(NonRetryableError):
            await source.after(listed, AfterAction(kind=AfterKind.MOVE, folder=folder))
    assert (root / "a.csv").exists()
    assert _names(tmp_path) == ["in"]
