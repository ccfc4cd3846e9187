"""Dead letters and rejects as they stand on the wire: one JSON object each, camelCase."""

from __future__ import annotations

import msgspec
from attrs import asdict

from tpfd.dispatch.protocol import ItemReject, Letter


def wire(record: Letter | ItemReject) -> dict[str, object]:
    """The record with its names as they stand on the wire; what is None is left out of neither."""
    return {_camel(name): value for name, value in asdict(record).items()}


def wire_json(record: Letter | ItemReject) -> bytes:
    """`wire` as JSON."""
    return msgspec.json.encode(wire(record))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
