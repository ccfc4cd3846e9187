from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.objects.owners import EXECUTION
from tpfd.blocking import Threads
from tpfd.core.publication import Staged
from tpfd.errors import InternalError, NonRetryableError, OutsideError
from tpfd.objects.filesystem_target import FilesystemTarget
from tpfd.objects.formats import CsvEncoder, Row
from tpfd.objects.protocol import ObjectTarget, PlaceOutcome, Temporary


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def target(root: Path) -> ObjectTarget:
    return FilesystemTarget(root, Threads(2))


def _rows(count: int) -> list[Row]:
    return [{"id": str(number), "text": f"row {number}"} for number in range(count)]


def _visible(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def _publish(target: ObjectTarget, key: str, count: int, *, fence: int = 1, replace: bool = False) -> Staged:
    async with target.open_temporary(key, EXECUTION, fence, CsvEncoder(["id", "text"])) as session:
        for row in _rows(count):
            await session.write([row])
        staged = await session.finish()
        assert await target.place(staged, key, replace=replace) is PlaceOutcome.PLACED
    return staged


async def test_discarding_twice_is_harmless_and_touches_no_other_execution(target: ObjectTarget, root: Path) -> None:
    other = root / ".out.csv.01JOTHER.3.tmp"
    other.write_text("somebody else's")
    temporary = Temporary(name=f".out.csv.{EXECUTION}.1.tmp", fence=1)
    await target.discard(temporary)
    await target.discard(temporary)
    assert await target.list_temporaries(EXECUTION) == ()
    assert other.exists()


async def test_a_new_session_of_the_same_attempt_starts_afresh(target: ObjectTarget, root: Path) -> None:
    (root / f".out.csv.{EXECUTION}.1.tmp").write_text("left by an earlier session of this fence")
    await _publish(target, "out.csv", 1)
    assert (root / "out.csv").read_text() == "id,text\n0,row 0\n"


@pytest.mark.parametrize("key", ["../x.csv", "/abs/x.csv", "a/../../x.csv", "a\\..\\x.csv", "x\0.csv", "link/x.csv"])
async def test_a32_nothing_is_written_outside(target: ObjectTarget, root: Path, tmp_path: Path, key: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    async with target.open_temporary("x.csv", EXECUTION, 1, CsvEncoder(["id", "text"])) as session:
        staged = await session.finish()
        for replace in (False, True):
            with pytest.raises(NonRetryableError) as caught:
                await target.place(staged, key, replace=replace)
            assert caught.value.code == "object_key_refused"
        with pytest.raises(NonRetryableError):
            await target.inspect(key)
    assert _names(outside) == []
    assert _names(tmp_path) == ["out", "outside"]
    assert _names(root) == ["link"]


async def test_a32_a_link_at_the_key_is_not_followed(target: ObjectTarget, root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (root / "x.csv").symlink_to(victim)
    async with target.open_temporary("x.csv", EXECUTION, 1, CsvEncoder(["id", "text"])) as session:
        staged = await session.finish()
        assert await target.place(staged, "x.csv", replace=False) is PlaceOutcome.OCCUPIED
        with pytest.raises(NonRetryableError, match="not a regular file"):
            await target.inspect("x.csv")
        assert await target.place(staged, "x.csv", replace=True) is PlaceOutcome.PLACED
    assert victim.read_text() == "precious"
    assert not (root / "x.csv").is_symlink()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
async def test_what_is_no_file_is_refused_without_hanging(target: ObjectTarget, root: Path, make: object) -> None:
    assert callable(make)
    make(root / "x.csv")
    with pytest.raises(NonRetryableError, match="not a regular file"):
        await target.inspect("x.csv")


async def test_a_file_in_the_place_of_a_folder_is_named(target: ObjectTarget, root: Path) -> None:
    (root / "2026").write_text("a file")
    with pytest.raises(NonRetryableError, match="'2026' is a link or a file"):
        await target.inspect("2026/out.csv")


async def test_a_missing_root_is_retryable_and_not_made(tmp_path: Path) -> None:
    target = FilesystemTarget(tmp_path / "unmounted", Threads(1))
    with pytest.raises(OutsideError, match="must exist") as caught:
        await target.inspect("out.csv")
    assert caught.value.retryable
    with pytest.raises(OutsideError, match="must exist"):
        async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["id"])):
            pass
    assert not (tmp_path / "unmounted").exists()


async def test_a_failed_write_can_never_be_sealed(
    target: ObjectTarget, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A36: a part that failed is not forgotten; the object is not made without it."""
    real, calls = os.write, 0

    def second_part_fails(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    async with target.open_temporary("out.csv", EXECUTION, 1, CsvEncoder(["id", "text"])) as session:
        await session.write(_rows(512))
        monkeypatch.setattr(os, "write", second_part_fails)
        calls = 1
        with pytest.raises(OutsideError, match="No space left") as caught:
            await session.write(_rows(512))
        assert caught.value.retryable
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(InternalError):
            await session.write(_rows(512))
        with pytest.raises(InternalError):
            await session.finish()
    assert _visible(root) == []
    await _publish(target, "out.csv", 3)
    assert (root / "out.csv").read_text() == "id,text\n0,row 0\n1,row 1\n2,row 2\n"


async def test_short_writes_lose_nothing(
    target: ObjectTarget, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
    staged = await _publish(target, "out.csv", 50)
    data = (root / "out.csv").read_bytes()
    assert (hashlib.sha256(data).hexdigest(), data.count(b"\n")) == (staged.digest, 51)


_WRITER = """
import resource, signal, sys, trio
from pathlib import Path
from tpfd.blocking import Threads
from tpfd.errors import OutsideError
from tpfd.objects.filesystem_target import FilesystemTarget
from tpfd.objects.formats import CsvEncoder

async def main(root, limit_bytes):
    if limit_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    target = FilesystemTarget(Path(root), Threads(1))
    async with target.open_temporary("out.csv", "01E", 1, CsvEncoder(["text"])) as session:
        try:
            for _ in range(100):
                await session.write([{"text": "x" * 1000}] * 512)
            await session.finish()
        except OutsideError as error:
            print(error.code, error.retryable, error.message)
            return
    print("not full")

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


def _write_until_full(root: Path, limit_bytes: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(root), str(limit_bytes)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return done.stdout


def test_a_file_that_may_not_grow_leaves_nothing(root: Path) -> None:
    said = _write_until_full(root, 1_000_000)
    assert said.startswith("object_storage_failed True writing .out.csv.01E.1.tmp: File too large")
    assert list(root.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root, to mount a small disk")
def test_a_full_disk_leaves_nothing(root: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(root)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {mounted.stderr.strip()}")
    try:
        said = _write_until_full(root)
        assert said.startswith("object_storage_failed True writing .out.csv.01E.1.tmp: No space left on device")
        assert list(root.iterdir()) == []
    finally:
        subprocess.run(["umount", str(root)], check=True)


_PLACER = """
import os, signal, sys, trio
from pathlib import Path
from tpfd.blocking import Inline
from tpfd.objects.filesystem_target import FilesystemTarget
from tpfd.objects.formats import CsvEncoder

async def main(root, before):
    target = FilesystemTarget(Path(root), Inline())
    if before == "unlink":
        os.unlink = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
    else:
        os.link = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
    async with target.open_temporary("out.csv", "01E", 1, CsvEncoder(["text"])) as session:
        await session.write([{"text": "x"}])
        await target.place(await session.finish(), "out.csv", replace=False)

trio.run(main, sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize(("before", "there"), [("link", False), ("unlink", True)])
async def test_a36_a_real_kill_while_placing(target: ObjectTarget, root: Path, before: str, there: bool) -> None:
    done = await trio.run_process(
        [sys.executable, "-c", _PLACER, str(root), before], check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -signal.SIGKILL
    for temporary in await target.list_temporaries("01E"):
        await target.discard(temporary)
    found = await target.inspect("out.csv")
    assert (found is not None) is there
    assert _visible(root) == (["out.csv"] if there else [])
    if there:
        assert (root / "out.csv").read_text() == "text\nx\n"
