"""Output objects as files in a folder.

The temporary stands hidden in the location's own folder, also when the key is deeper, so that one short listing finds
what dead attempts left. Placing is a hard link (which never replaces) and the removal of the temporary, or a rename
where the pipeline allows replacing; both need the temporary to exist, which is what stops an owner who wakes up late.
Key folders and the root must be on one file system, and that one must know hard links.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from tpfd.blocking import Blocking
from tpfd.core.publication import Staged
from tpfd.errors import InternalError
from tpfd.objects.folders import open_file, open_parent, open_root, reporting
from tpfd.objects.formats import Encoder, Row
from tpfd.objects.keys import check_key, temporary_fence, temporary_name
from tpfd.objects.protocol import FoundObject, PlaceOutcome, Temporary

_HELD_ROW_COUNT = 512  # rows per thread call; about 100 KiB of payments
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FilesystemTarget:
    """An `ObjectTarget` in a local folder."""

    def __init__(self, root: Path, blocking: Blocking) -> None:
        """
        Args:
            root: the location's folder (root and prefix joined); must exist when it is used.
            blocking: runs this provider's calls.
        """
        self._root = root
        self._blocking = blocking

    @asynccontextmanager
    async def open_temporary(
        self, key: str, execution_id: str, fence: int, encoder: Encoder
    ) -> AsyncIterator[_FileSession]:
        temporary = temporary_name(key.rpartition("/")[2], execution_id, fence)
        descriptor = await self._blocking.run(self._create, temporary)
        session = _FileSession(temporary, descriptor, encoder, self._blocking)
        try:
            yield session
        finally:
            with trio.CancelScope(shield=True):
                await self._blocking.run(self._remove, session)

    async def place(self, staged: Staged, key: str, *, replace: bool) -> PlaceOutcome:
        check_key(key)
        return await self._blocking.run(self._place, staged.temporary, key, replace)

    async def inspect(self, key: str) -> FoundObject | None:
        check_key(key)
        return await self._blocking.run(self._inspect, key)

    async def list_temporaries(self, execution_id: str) -> tuple[Temporary, ...]:
        return await self._blocking.run(self._list_temporaries, execution_id)

    async def discard(self, temporary: Temporary) -> None:
        await self._blocking.run(self._unlink, temporary.name)

    def _create(self, temporary: str) -> int:
        with reporting(f"creating {temporary} in {self._root}"), open_root(self._root) as root:
            try:
                return os.open(temporary, _CREATE, 0o666, dir_fd=root)
            except FileExistsError:
                # Only this fence gives this name: an earlier session of the same attempt that could not clean up.
                os.unlink(temporary, dir_fd=root)
                return os.open(temporary, _CREATE, 0o666, dir_fd=root)

    def _remove(self, session: _FileSession) -> None:
        session.close()
        self._unlink(session.temporary)

    def _unlink(self, temporary: str) -> None:
        doing = f"removing {temporary} in {self._root}"
        with reporting(doing), open_root(self._root) as root, suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=root)

    def _place(self, temporary: str, key: str, replace: bool) -> PlaceOutcome:
        doing = f"placing {key} in {self._root} by a {'rename' if replace else 'hard link'}"
        with (
            reporting(doing),
            open_root(self._root) as root,
            open_parent(root, key, create=True) as (folder, name),
        ):
            try:
                if replace:
                    os.replace(temporary, name, src_dir_fd=root, dst_dir_fd=folder)
                else:
                    os.link(temporary, name, src_dir_fd=root, dst_dir_fd=folder, follow_symlinks=False)
                    os.unlink(temporary, dir_fd=root)
            except FileExistsError:
                return PlaceOutcome.OCCUPIED
            except FileNotFoundError:
                if _exists(temporary, root):
                    raise  # then it is the key's folder that went away
                return PlaceOutcome.SUPERSEDED
            os.fsync(folder)
        return PlaceOutcome.PLACED

    def _inspect(self, key: str) -> FoundObject | None:
        with reporting(f"reading {key} in {self._root}"), open_root(self._root) as root:
            try:
                with (
                    open_parent(root, key, create=False) as (folder, name),
                    os.fdopen(open_file(folder, name, key), "rb") as file,
                ):
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    # It may have been placed by a process that died before it could do this.
                    os.fsync(file.fileno())
                    os.fsync(folder)
                    return FoundObject(digest=digest, size_bytes=os.fstat(file.fileno()).st_size)
            except FileNotFoundError:
                return None

    def _list_temporaries(self, execution_id: str) -> tuple[Temporary, ...]:
        with reporting(f"listing {self._root}"), open_root(self._root) as root, os.scandir(root) as entries:
            fences = ((entry.name, temporary_fence(entry.name, execution_id)) for entry in entries)
            return tuple(Temporary(name=name, fence=fence) for name, fence in fences if fence is not None)


class _FileSession:
    """A temporary file being written; rows are held until they are worth a thread call."""

    def __init__(self, temporary: str, descriptor: int, encoder: Encoder, blocking: Blocking) -> None:
        self.temporary = temporary
        self._descriptor: int | None = descriptor  # None: closed
        self._encoder = encoder
        self._blocking = blocking
        self._held: list[Row] = []
        self._hash = hashlib.sha256()
        self._size_bytes = 0
        self._item_count = 0
        self._broken = False

    async def write(self, rows: Sequence[Row]) -> None:
        self._held.extend(rows)
        if len(self._held) < _HELD_ROW_COUNT:
            await trio.lowlevel.checkpoint()
            return
        held, self._held = self._held, []
        await self._blocking.run(self._append, held)

    async def finish(self) -> Staged:
        held, self._held = self._held, []
        return await self._blocking.run(self._seal, held)

    def _append(self, rows: Sequence[Row]) -> None:
        text = self._encoder.header() if self._item_count == 0 else ""
        text += self._encoder.rows(rows)
        self._put(text.encode())
        self._item_count += len(rows)

    def _seal(self, rows: Sequence[Row]) -> Staged:
        self._append(rows)
        self._put(self._encoder.footer().encode())
        with reporting(f"writing {self.temporary}"):
            os.fsync(self._open())
        self.close()
        return Staged(
            temporary=self.temporary,
            digest=self._hash.hexdigest(),
            size_bytes=self._size_bytes,
            item_count=self._item_count,
        )

    def _put(self, data: bytes) -> None:
        descriptor, rest = self._open(), memoryview(data)
        self._broken = True  # until all of it is written: a gap must never be sealed
        with reporting(f"writing {self.temporary}"):
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        self._broken = False
        self._hash.update(data)
        self._size_bytes += len(data)

    def _open(self) -> int:
        if self._descriptor is None or self._broken:
            raise InternalError(f"temporary {self.temporary} was written to after it was finished or had failed")
        return self._descriptor

    def close(self) -> None:
        """Closes the file; once is enough."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
