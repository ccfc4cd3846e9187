"""`payload_ref` in JSON: an object that says where bytes are kept."""

from __future__ import annotations

from typing import Any

from tpfd.codec.kinds import Unfit, kind_of_data
from tpfd.pipeline.scalars import PayloadRef

_TEXTS = {
    "provider": "provider",
    "container": "container",
    "contentType": "content_type",
    "codec": "codec",
    "checksum": "checksum",
    "version": "version",
}


def read_payload_ref(value: Any, _type: Any = None) -> PayloadRef:
    """From ``{provider, container, key, contentType, codec, checksum, sizeBytes, version, metadata}``.

    Only ``key`` must be there; null means absent.

    Raises:
        Unfit: it is not such an object.
    """
    if not isinstance(value, dict):
        raise Unfit(f"a payload reference (an object with 'key') is needed, not {kind_of_data(value)}")
    key = value.get("key")
    if not isinstance(key, str) or not key.strip():
        raise Unfit(f"a payload reference needs its 'key', not {kind_of_data(key)}")
    size_bytes = value.get("sizeBytes")
    if size_bytes is None:
        size_bytes = 0
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
        raise Unfit(f"sizeBytes must be a whole number from 0, not {kind_of_data(size_bytes)}")
    texts: dict[str, str | None] = {}
    for name, attribute in _TEXTS.items():
        text = value.get(name)
        if text is not None and not isinstance(text, str):
            raise Unfit(f"{name} must be text, not {kind_of_data(text)}")
        texts[attribute] = text
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
        raise Unfit("metadata must be an object of texts")
    return PayloadRef(key=key, size_bytes=size_bytes, metadata=metadata, **texts)


def write_payload_ref(value: Any) -> dict[str, object]:
    """To the object above, without what is absent.

    Raises:
        Unfit: it is not a `PayloadRef`.
    """
    if not isinstance(value, PayloadRef):
        raise Unfit(f"a PayloadRef is needed, not {kind_of_data(value)}")
    found: dict[str, object] = {"key": value.key}
    found.update({name: text for name, attribute in _TEXTS.items() if (text := getattr(value, attribute)) is not None})
    found["sizeBytes"] = value.size_bytes
    if value.metadata:
        found["metadata"] = dict(value.metadata)
    read_payload_ref(found)
    return found
