"""An ingested object as the input of the first step: by field name."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import frozen

from tpfd.errors import NonRetryableError
from tpfd.objects.protocol import ListedObject, ObjectReference


class Readable(Protocol):
    """What is needed of an ``ObjectSource``."""

    async def reference(self, listed: ListedObject) -> ObjectReference:
        """See ``ObjectSource``."""

    async def read_text(self, listed: ListedObject, max_bytes: int) -> str:
        """See ``ObjectSource``."""

    async def read_bytes(self, listed: ListedObject, max_bytes: int) -> bytes:
        """See ``ObjectSource``."""


_FROM_REFERENCE: tuple[tuple[str, Callable[[ObjectReference], object]], ...] = (
    (r".*(folder|directory)(path)?|container|root|bucket", lambda reference: reference.container),
    (r"(.*file)?(path|uri|location)|url", lambda reference: reference.path),
    (r"(object)?key|(file|object)?name", lambda reference: reference.key),
    (r"(content|object|file)?size(bytes)?|length", lambda reference: reference.size_bytes),
    (r"etag", lambda reference: reference.etag),
    (r"sha256|digest|checksum", lambda reference: reference.sha256),
    (r"provider", lambda reference: reference.provider),
)
"""Field names (lower case, without `_`) and what they get."""

_CONTENT = re.compile(r"content|text|body|data|payload|bytes")


@frozen
class ObjectReader:
    """Makes the input of an execution from an object.

    Attributes:
        mode: `text` and `bytes` (base64) read the object itself into the field for its content; `reference` and
            `metadata` only say where it is and what it was.
        fields: names of the input's fields.
        max_bytes: largest object that is read.
    """

    source: Readable
    mode: str
    fields: Sequence[str]
    max_bytes: int

    async def __call__(self, listed: ListedObject) -> dict[str, object]:
        """JSON data of the input; fields that no rule fits are left out, and the type says whether that will do.

        Raises:
            TooLarge, Conflict: as ``ObjectSource.read_bytes``.
        """
        reference = await self.source.reference(listed)
        data: dict[str, object] = {}
        for name in self.fields:
            plain = name.lower().replace("_", "")
            if _CONTENT.fullmatch(plain) and self.mode in ("text", "bytes"):
                data[name] = await self._content(listed)
                continue
            for pattern, value in _FROM_REFERENCE:
                if re.fullmatch(pattern, plain):
                    data[name] = value(reference)
                    break
        if not data:
            raise NonRetryableError(
                f"none of the fields {', '.join(self.fields)} is filled by an object; name one path, key or content",
                code="object_not_mapped",
            )
        return data

    async def _content(self, listed: ListedObject) -> str:
        if self.mode == "text":
            return await self.source.read_text(listed, self.max_bytes)
        return base64.b64encode(await self.source.read_bytes(listed, self.max_bytes)).decode()
