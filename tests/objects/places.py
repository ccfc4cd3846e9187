"""A location for objects as everybody sees it from outside, on any provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from tests.aws.standin import StandIn
from tests.objects.s3 import TestBucket, daemon_bucket, s3_target
from tpfd.blocking import Blocking, Threads
from tpfd.core.publication import OnExisting
from tpfd.objects.filesystem import FilesystemSource
from tpfd.objects.filesystem_target import FilesystemTarget
from tpfd.objects.protocol import ObjectSource, ObjectTarget
from tpfd.objects.s3_source import S3Source

LATER_EPOCH_MS = 4_000_000_000_000
"""When every file has been as it is for long enough."""


class Location(Protocol):
    """A folder or a bucket."""

    @property
    def url(self) -> str:
        """How references begin."""

    def source(self, **options: Any) -> ObjectSource:
        """The location as a source of input."""

    def target(self, on_existing: OnExisting = OnExisting.FAIL) -> ObjectTarget:
        """The location as another process sees it, for a pipeline of this policy."""

    def put(self, key: str, text: str | bytes) -> None:
        """Somebody else puts an object."""

    def read(self, key: str) -> bytes:
        """What stands there."""

    def delete(self, key: str) -> None:
        """Somebody consumes an object."""

    def state(self, key: str) -> object:
        """Changes whenever the object is written."""

    def objects(self) -> list[str]:
        """Keys of all objects that others see."""

    def leftovers(self) -> list[str]:
        """Whatever else takes room."""


@frozen
class FolderPlace:
    """A folder."""

    root: Path
    blocking: Blocking

    @property
    def url(self) -> str:
        return f"{self.root}/"

    def source(self, **options: Any) -> ObjectSource:
        return FilesystemSource(self.root, blocking=self.blocking, now_epoch_ms=lambda: LATER_EPOCH_MS, **options)

    def target(self, on_existing: OnExisting = OnExisting.FAIL) -> ObjectTarget:
        return FilesystemTarget(self.root, self.blocking)

    def put(self, key: str, text: str | bytes) -> None:
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(text.encode() if isinstance(text, str) else text)

    def read(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def delete(self, key: str) -> None:
        (self.root / key).unlink()

    def state(self, key: str) -> object:
        return (self.root / key).stat().st_ino

    def objects(self) -> list[str]:
        return [name for name in self._files() if not name.startswith(".")]

    def leftovers(self) -> list[str]:
        return [name for name in self._files() if name.startswith(".")]

    def _files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())


@frozen
class BucketPlace:
    """A prefix of a bucket; every target has a client of its own."""

    aws: StandIn
    there: TestBucket

    @property
    def url(self) -> str:
        return f"s3://{self.there.name}/p/"

    def source(self, **options: Any) -> ObjectSource:
        return S3Source(daemon_bucket(self.aws, self.there.name), **options)

    def target(self, on_existing: OnExisting = OnExisting.FAIL) -> ObjectTarget:
        bucket = daemon_bucket(self.aws, self.there.name)
        return s3_target(bucket, replaces=on_existing is OnExisting.REPLACE)

    def put(self, key: str, text: str | bytes) -> None:
        self.there.put(key, text)

    def read(self, key: str) -> bytes:
        return self.there.read(key)

    def delete(self, key: str) -> None:
        self.there.delete(key)

    def state(self, key: str) -> object:
        return self.there.client.head_object(Bucket=self.there.name, Key=f"p/{key}")["LastModified"]

    def objects(self) -> list[str]:
        return [key for key in self.there.all_keys() if not key.startswith(".tpfd/")]

    def leftovers(self) -> list[str]:
        return [key for key in self.there.all_keys() if key.startswith(".tpfd/")] + self.there.uploads()


def folder(root: Path, blocking: Blocking | None = None) -> FolderPlace:
    """A folder that is made for it."""
    root.mkdir(parents=True)
    return FolderPlace(root, Threads(2) if blocking is None else blocking)
