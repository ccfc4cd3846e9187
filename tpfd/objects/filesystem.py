"""Input objects as files of one folder.

Only the folder itself is listed, not what is below it: `after: move` puts finished files below it, and a folder of a
hundred thousand files stays one plain scan per page. Links are never followed and never listed.

**Still being written?** A file is settled when its modification lies `settle` back, or when this source has seen it
unchanged for that long on its own monotonic clock (a copy may carry a modification time from the future, and clocks of
file servers are often off). Names that programs give to unfinished files are not listed at all: ``.*``, ``~*``,
``*.tmp``, ``*.part``.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import trio
from attrs import evolve, frozen

from tpfd.blocking import Blocking
from tpfd.errors import Conflict, NonRetryableError
from tpfd.objects.folders import open_file, open_parent, open_root, reporting
from tpfd.objects.keys import check_key, key_problem, next_version
from tpfd.objects.protocol import (
    DEFAULT_IDENTITY,
    AfterAction,
    AfterKind,
    IgnoredObject,
    ListedObject,
    ObjectReference,
    Page,
)
from tpfd.objects.selecting import check_size, checked_fields, identity_of, name_filter, text_of

PROVIDER = "filesystem"
IDENTITY_FIELDS = ("provider", "container", "key", "etag", "size", "lastModified", "checksum")

_WATCHED_COUNT = 10_000  # unsettled files remembered between polls, about 2 MiB


@frozen
class _Seen:
    """An unsettled file as this source first saw it in its present state."""

    etag: str
    since_s: float  # trio's clock


class FilesystemSource:
    """An `ObjectSource` on a local folder."""

    def __init__(
        self,
        root: Path,
        *,
        blocking: Blocking,
        now_epoch_ms: Callable[[], int],
        include: Sequence[str] = ("*",),
        exclude: Sequence[str] = (),
        identity_fields: Sequence[str] = DEFAULT_IDENTITY,
        settle_ms: int = 1_000,
    ) -> None:
        """
        Args:
            root: the location's folder (root and prefix joined); must exist when it is used.
            blocking: runs this provider's calls.
            now_epoch_ms: the wall clock, to be compared with modification times.
            include: globs of names to take, case-sensitive.
            exclude: globs of names to leave; stronger than `include`.
            identity_fields: some of `IDENTITY_FIELDS`.
            settle_ms: how long a file must be unchanged.

        Raises:
            ValueError: an identity field is not known.
        """
        self._root = root.absolute()
        self._blocking = blocking
        self._now_epoch_ms = now_epoch_ms
        self._takes = name_filter(include, exclude)
        self._identity_fields = checked_fields(identity_fields, IDENTITY_FIELDS)
        self._settle_ms = settle_ms
        self._watched: dict[str, _Seen] = {}

    async def list_page(self, limit: int, after: str | None) -> Page:
        page = await self._blocking.run(self._list, limit, after)
        return Page(objects=self._settled(page.objects), next_after=page.next_after, ignored=page.ignored)

    async def identity(self, listed: ListedObject) -> str:
        checksum = ""
        if "checksum" in self._identity_fields:
            checksum = (await self.reference(listed)).sha256
        else:
            await trio.lowlevel.checkpoint()
        values = {
            "provider": PROVIDER,
            "container": str(self._root),
            "key": listed.key,
            "etag": listed.etag,
            "size": listed.size_bytes,
            "lastModified": listed.modified_epoch_ms,
            "checksum": checksum,
        }
        return identity_of(self._identity_fields, values)

    async def read_bytes(self, listed: ListedObject, max_bytes: int) -> bytes:
        return await self._blocking.run(self._read, listed, max_bytes)

    async def read_text(self, listed: ListedObject, max_bytes: int) -> str:
        return text_of(listed.key, await self.read_bytes(listed, max_bytes))

    async def reference(self, listed: ListedObject) -> ObjectReference:
        digest = await self._blocking.run(self._digest_listed, listed)
        return ObjectReference(
            provider=PROVIDER,
            container=str(self._root),
            key=listed.key,
            path=str(self._root / listed.key),
            size_bytes=listed.size_bytes,
            sha256=digest,
            etag=listed.etag,
        )

    async def verify(self, reference: ObjectReference) -> None:
        await self._blocking.run(self._verify, reference)

    def open_object(self, path: str) -> BinaryIO:
        found = Path(path).absolute()
        if not found.is_relative_to(self._root):
            raise NonRetryableError(f"{path} is not in {self._root}, the source", code="object_outside_source")
        key = found.relative_to(self._root).as_posix()
        check_key(key)
        with reporting(f"opening {key} in {self._root}"), open_root(self._root) as root:
            try:
                with open_parent(root, key, create=False) as (folder, name):
                    return os.fdopen(open_file(folder, name, key), "rb")
            except FileNotFoundError as error:
                raise NonRetryableError(
                    f"{path} does not exist: put it back and re-drive", code="object_missing"
                ) from error

    async def after(self, listed: ListedObject, action: AfterAction) -> bool:
        return await self._blocking.run(self._after, listed, action)

    def _settled(self, objects: Iterable[ListedObject]) -> tuple[ListedObject, ...]:
        now_epoch_ms, now_s = self._now_epoch_ms(), trio.current_time()
        return tuple(evolve(listed, settled=self._is_settled(listed, now_epoch_ms, now_s)) for listed in objects)

    def _is_settled(self, listed: ListedObject, now_epoch_ms: int, now_s: float) -> bool:
        seen = self._watched.pop(listed.key, None)
        if now_epoch_ms - listed.modified_epoch_ms >= self._settle_ms:
            return True
        if seen is None or seen.etag != listed.etag:
            seen = _Seen(listed.etag, now_s)
        self._watched[listed.key] = seen  # last in the dictionary: looked at most recently
        if len(self._watched) > _WATCHED_COUNT:
            del self._watched[next(iter(self._watched))]
        return (now_s - seen.since_s) * 1_000 >= self._settle_ms

    def _list(self, limit: int, after: str | None) -> Page:
        objects: list[ListedObject] = []
        ignored: list[IgnoredObject] = []
        with reporting(f"listing {self._root}"), open_root(self._root) as root:
            with os.scandir(root) as entries:
                names = heapq.nsmallest(limit, self._names((entry.name for entry in entries), after))
            for name in names:
                try:
                    status = os.stat(name, dir_fd=root, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # taken away since the scan
                reason = _reason_to_ignore(name, status)
                if reason is None:
                    objects.append(_listed(name, status))
                else:
                    ignored.append(IgnoredObject(name=ascii(name), reason=reason))
        next_after = names[-1] if len(names) == limit else None
        return Page(objects=tuple(objects), next_after=next_after, ignored=tuple(ignored))

    def _names(self, names: Iterable[str], after: str | None) -> Iterator[str]:
        for name in names:
            if (after is None or name > after) and self._takes(name):
                yield name

    @contextmanager
    def _open(self, listed: ListedObject) -> Iterator[BufferedReader]:
        doing = f"reading {listed.key} in {self._root}"
        with reporting(doing), open_root(self._root) as root:
            try:
                descriptor = open_file(root, listed.key, listed.key)
            except FileNotFoundError as error:
                raise Conflict(f"{listed.key} is gone since it was listed", code="object_changed") from error
            with os.fdopen(descriptor, "rb") as file:
                yield file
                # Asked after the reading, so that a change before or during it is seen.
                if _etag(os.fstat(descriptor)) != listed.etag:
                    raise Conflict(f"{listed.key} has changed since it was listed", code="object_changed")

    def _read(self, listed: ListedObject, max_bytes: int) -> bytes:
        check_size(listed.key, listed.size_bytes, max_bytes)
        with self._open(listed) as file:
            return file.read(listed.size_bytes + 1)

    def _digest_listed(self, listed: ListedObject) -> str:
        with self._open(listed) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _verify(self, reference: ObjectReference) -> None:
        check_key(reference.key)
        with reporting(f"reading {reference.key} in {self._root}"), open_root(self._root) as root:
            try:
                with (
                    open_parent(root, reference.key, create=False) as (folder, name),
                    os.fdopen(open_file(folder, name, reference.key), "rb") as file,
                ):
                    size_bytes = os.fstat(file.fileno()).st_size
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError as error:
                raise NonRetryableError(
                    f"input object {reference.key} is no longer in {self._root}: put it back and re-drive",
                    code="object_missing",
                ) from error
        if (size_bytes, digest) != (reference.size_bytes, reference.sha256):
            raise NonRetryableError(
                f"input object {reference.key} has changed since it was taken in (now {size_bytes} bytes, sha256 "
                f"{digest}; then {reference.size_bytes} bytes, sha256 {reference.sha256})",
                code="object_changed",
            )

    def _after(self, listed: ListedObject, action: AfterAction) -> bool:
        if action.kind is AfterKind.KEEP:
            return False
        check_key(listed.key)
        with reporting(f"{action.kind} of {listed.key} in {self._root}"), open_root(self._root) as root:
            try:
                status = os.stat(listed.key, dir_fd=root, follow_symlinks=False)
            except FileNotFoundError:
                return False
            if _etag(status) != listed.etag:
                return False
            if action.kind is AfterKind.MOVE:
                _link_below(root, listed.key, action.folder)
            os.unlink(listed.key, dir_fd=root)
            os.fsync(root)
            return True


def _link_below(root: int, name: str, folder: str) -> None:
    """Gives a file a second name in a folder below the root, beside what may stand there already."""
    key = f"{folder}/{name}"
    while True:
        check_key(key)
        with open_parent(root, key, create=True) as (parent, last):
            try:
                os.link(name, last, src_dir_fd=root, dst_dir_fd=parent, follow_symlinks=False)
            except FileExistsError:
                there = os.stat(last, dir_fd=parent, follow_symlinks=False)
                here = os.stat(name, dir_fd=root, follow_symlinks=False)
                if not os.path.samestat(here, there):  # else: an earlier try got as far as this
                    key = next_version(key)
                    continue
            os.fsync(parent)
            return


def _listed(name: str, status: os.stat_result) -> ListedObject:
    return ListedObject(
        key=name,
        size_bytes=status.st_size,
        modified_epoch_ms=status.st_mtime_ns // 1_000_000,
        etag=_etag(status),
        settled=False,
    )


def _etag(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"


def _reason_to_ignore(name: str, status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link; links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    return key_problem(name)
