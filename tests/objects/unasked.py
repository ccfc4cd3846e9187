"""Where a source of objects is asked for nothing but its objects."""

from __future__ import annotations

from typing import BinaryIO, NoReturn

from tpfd.objects.protocol import ListedObject, ObjectReference

UNASKED = "nobody here opens an object"


class Unasked:
    """What steps ask of a source, and ingest never does."""

    async def read_bytes(self, listed: ListedObject, max_bytes: int) -> NoReturn:
        raise AssertionError(UNASKED)

    async def read_text(self, listed: ListedObject, max_bytes: int) -> NoReturn:
        raise AssertionError(UNASKED)

    async def reference(self, listed: ListedObject) -> ObjectReference:
        raise AssertionError(UNASKED)

    async def verify(self, reference: ObjectReference) -> None:
        raise AssertionError(UNASKED)

    def open_object(self, path: str) -> BinaryIO:
        raise AssertionError(UNASKED)
