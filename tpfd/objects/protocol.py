"""What the engine asks of a place where objects live.

Two protocols, met by the filesystem and by S3: nothing in them speaks of folders, links, buckets or uploads. All calls
are Trio calls; providers do blocking work through the `Blocking` they were given.

Errors of both: `OutsideError` (``object_storage_failed``) for whatever the storage refuses, with the driver's error as
its cause; `NonRetryableError` where another try cannot help.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import BinaryIO, Protocol

from attrs import frozen

from tpfd.core.publication import Staged
from tpfd.objects.formats import Encoder, Row

DEFAULT_IDENTITY = ("provider", "container", "key", "etag")


@frozen(kw_only=True)
class ListedObject:
    """An object as a listing shows it."""

    key: str  # relative to the source's location
    size_bytes: int
    modified_epoch_ms: int  # by the storage's clock
    etag: str  # changes whenever the content may have changed
    settled: bool  # False: perhaps still being written; do not take it yet


@frozen(kw_only=True)
class IgnoredObject:
    """Something that stands in the location and will never be listed."""

    name: str  # with escapes, fit for a log line
    reason: str


@frozen(kw_only=True)
class Page:
    """One page of a listing, in key order."""

    objects: tuple[ListedObject, ...]
    next_after: str | None  # give it as `after` for the next page; None: this was the last
    ignored: tuple[IgnoredObject, ...] = ()  # in this page's range, and why


@frozen(kw_only=True)
class ObjectReference:
    """Where an object is and what it was when it was taken in."""

    provider: str
    container: str  # the location: an absolute folder, or a bucket with prefix
    key: str
    path: str  # how a step opens it: an absolute path, or a URL
    size_bytes: int
    sha256: str
    etag: str


class AfterKind(StrEnum):
    """What happens to an input object when its execution has succeeded."""

    KEEP = "keep"
    DELETE = "delete"
    MOVE = "move"


@frozen(kw_only=True)
class AfterAction:
    """An `AfterKind`; with MOVE also where to."""

    kind: AfterKind
    folder: str = "processed"  # MOVE only: relative to the source's location; never listed by the source


class ObjectSource(Protocol):
    """A location whose objects become executions."""

    async def list_page(self, limit: int, after: str | None) -> Page:
        """Lists up to `limit` objects whose key is greater than `after` (None: from the start).

        Unsettled objects are listed too, marked so. Memory is bounded by `limit`; a page may cost a scan of the whole
        location, so ask for thousands.
        """
        ...

    async def identity(self, listed: ListedObject) -> str:
        """Gives a sha256 hex of the configured identity fields: equal means the same object, taken in once."""
        ...

    async def read_bytes(self, listed: ListedObject, max_bytes: int) -> bytes:
        """Reads a listed object whole.

        Raises:
            TooLarge: over `max_bytes`; nothing was read.
            Conflict: ``object_changed``: it is no longer what was listed; list it again.
        """
        ...

    async def read_text(self, listed: ListedObject, max_bytes: int) -> str:
        """Reads a listed object as UTF-8, without a byte order mark.

        Raises:
            TooLarge, Conflict: as `read_bytes`.
            MalformedError: not UTF-8; names the position.
        """
        ...

    async def reference(self, listed: ListedObject) -> ObjectReference:
        """Reads a listed object once for its checksum and gives a reference to it.

        Raises:
            Conflict: as `read_bytes`.
        """
        ...

    async def verify(self, reference: ObjectReference) -> None:
        """Makes sure that a referenced object is still, byte for byte, what it was.

        Raises:
            NonRetryableError: ``object_missing`` or ``object_changed``.
        """
        ...

    def open_object(self, path: str) -> BinaryIO:
        """Opens an object of the location for reading; called by a step function, in a worker thread of Trio.

        Args:
            path: of an `ObjectReference`, or as somebody submitted it.

        Raises:
            NonRetryableError: ``object_outside_source``, ``object_key_refused`` or ``object_missing``; while reading
                ``object_changed``, where the storage can tell.
            OutsideError: ``object_storage_failed``, also while reading.
        """
        ...

    async def after(self, listed: ListedObject, action: AfterAction) -> bool:
        """Does what the pipeline asks for after success. Repeating it is harmless.

        Returns:
            False if there was nothing to do: kept, already gone, or replaced by another object meanwhile (which is
            then left for its own execution).
        """
        ...


class PlaceOutcome(StrEnum):
    """How an attempt to place a staged object ended."""

    PLACED = "placed"
    OCCUPIED = "occupied"  # something stands at the key; inspect it and ask `next_step` again
    SUPERSEDED = "superseded"  # a newer owner discarded the temporary; stop, nothing was changed


@frozen(kw_only=True)
class FoundObject:
    """An object at a key."""

    digest: str  # sha256 hex
    size_bytes: int


@frozen(kw_only=True)
class Temporary:
    """A staged or half-written object of some attempt."""

    name: str
    fence: int


class WriteSession(Protocol):
    """A temporary object being written, by one task."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Adds rows in order. Cheap for single rows; at most a few hundred are held in memory."""
        ...

    async def finish(self) -> Staged:
        """Writes what is held, makes the bytes durable and closes the object. Called once, last."""
        ...


class ObjectTarget(Protocol):
    """A location where output objects appear whole or not at all (see `tpfd.core.publication`)."""

    def open_temporary(
        self, key: str, execution_id: str, fence: int, encoder: Encoder
    ) -> AbstractAsyncContextManager[WriteSession]:
        """Opens the temporary of one attempt.

        Place it inside the ``async with``: whatever is left of the temporary at its end is removed, also when the
        block is cancelled.

        Args:
            key: where it is going to stand, if nothing comes in between.
            execution_id: whose output it is.
            fence: of this attempt.
            encoder: fresh; belongs to this object.
        """
        ...

    async def place(self, staged: Staged, key: str, *, replace: bool) -> PlaceOutcome:
        """Puts a staged object at its key, atomically and durably; the temporary is consumed.

        Args:
            staged: what `WriteSession.finish` gave.
            key: checked; parents are made. One that it was not opened for may cost another attempt.
            replace: False refuses to replace anything, whatever happens at the same moment.

        Raises:
            NonRetryableError: ``object_key_refused``, also when a part of the key is a symbolic link;
                ``conditional_writes_missing`` where a service cannot refuse to replace.
            OutsideError: ``output_key_taken``, when the storage cannot move what it staged to another key.
        """
        ...

    async def inspect(self, key: str) -> FoundObject | None:
        """Reads what stands at a key and makes its place durable, so that it may be adopted. None: nothing."""
        ...

    async def list_temporaries(self, execution_id: str) -> tuple[Temporary, ...]:
        """Lists what attempts of one execution left behind."""
        ...

    async def discard(self, temporary: Temporary) -> None:
        """Removes a temporary; from then on its owner cannot place it. Nothing happens if it is gone."""
        ...
