"""Payloads that are not in their record: large values in chunks, the outputs of a unit's children in pages.

A large value is stored once, under an id made of its owner, slot and digest, and never changed: the manifest first, so
that whatever is left of it by a process that died is found with its owner; then the chunks; and only then may a record
name it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tpfd.codec.strict_json import parse_json
from tpfd.core.kinds import CHILD_BY_UNIT, CHUNK, MANIFEST
from tpfd.core.records import JsonText, Payload, TenantId
from tpfd.core.stored import PayloadChunk, PayloadManifest
from tpfd.core.transact import Decision, Key, Snapshot
from tpfd.errors import InternalError, StoreError, TooLarge
from tpfd.items import Item
from tpfd.program import Program
from tpfd.runtime import Runtime

INLINE_CHARS = 64 * 1024
"""Longest value that stands in its record; a longer one would be rewritten with every renewal."""
CHUNK_CHARS = 64 * 1024
CHUNKS_PER_DECISION = 16
PAGE_COUNT = 200
"""Children read at a time."""


async def stored(runtime: Runtime, tenant_id: TenantId, owner: str, slot: str, payload: Payload) -> Payload:
    """The payload as it goes into a record: as it is, or stored apart and referred to.

    Args:
        owner: an execution, with whose root it is removed; or a name that begins no execution's id.

    Raises:
        TooLarge: it is over `max_payload_bytes`; nothing was stored.
        StoreError: the store failed.
    """
    text = payload.json
    if text is None or len(text) <= INLINE_CHARS:
        return payload
    data = text.encode()
    limit = runtime.settings.max_payload_bytes
    if len(data) > limit:
        raise TooLarge(f"the {slot} has {len(data):,} bytes; execution.max-payload allows {limit:,}")
    digest = hashlib.sha256(data).hexdigest()
    stored_id = f"{owner}.{slot}.{digest}"
    parts = [text[at : at + CHUNK_CHARS] for at in range(0, len(text), CHUNK_CHARS)]
    chunks = [
        PayloadChunk(tenant_id=tenant_id, chunk_id=chunk_id(stored_id, number), text=part)
        for number, part in enumerate(parts)
    ]
    manifest = PayloadManifest(
        tenant_id=tenant_id,
        stored_id=stored_id,
        chunk_count=len(chunks),
        size_bytes=len(data),
        digest=digest,
        created_epoch_ms=runtime.now(),
    )
    await _put(runtime, [manifest])
    for first in range(0, len(chunks), CHUNKS_PER_DECISION):
        await _put(runtime, chunks[first : first + CHUNKS_PER_DECISION])
    return Payload(type_name=payload.type_name, stored_id=stored_id, item_count=payload.item_count)


def rows_of(manifest: PayloadManifest) -> list[Key[Any]]:
    """All rows of a stored value, to remove them. The manifest is the last to go, as it was the first to come."""
    chunks = [
        CHUNK.key(manifest.tenant_id, chunk_id(manifest.stored_id, number)) for number in range(manifest.chunk_count)
    ]
    return [*chunks, MANIFEST.key_of(manifest)]


async def keys_of(runtime: Runtime, tenant_id: TenantId, stored_id: str) -> list[Key[Any]]:
    """The same by a value's name; none if it is not there. Raises StoreError."""
    manifest = await runtime.store.get(MANIFEST.key(tenant_id, stored_id))
    return [] if manifest is None else rows_of(manifest)


async def discard(runtime: Runtime, tenant_id: TenantId, payload: Payload) -> None:
    """Removes what `stored` has stored for a record that was not written after all."""
    if payload.stored_id is None:
        return
    keys = await keys_of(runtime, tenant_id, payload.stored_id)
    for first in range(0, len(keys), CHUNKS_PER_DECISION):
        removed = Decision(None, deletes=tuple(keys[first : first + CHUNKS_PER_DECISION]))
        await runtime.store.transact((), functools.partial(_decided, removed))


def chunk_id(stored_id: str, number: int) -> str:
    """Key of one part."""
    return f"{stored_id}#{number:08d}"


async def text_of(runtime: Runtime, tenant_id: TenantId, payload: Payload) -> JsonText:
    """The JSON text of a payload that is inline or stored.

    Raises:
        StoreError: parts are missing or damaged.
        InternalError: it is a reference to children's outputs, which have no text of their own.
    """
    if payload.json is not None:
        return payload.json
    if payload.stored_id is None:
        raise InternalError("the outputs of children are read as a stream")
    manifest = await runtime.store.get(MANIFEST.key(tenant_id, payload.stored_id))
    if manifest is None:
        raise StoreError(f"stored payload {payload.stored_id} has no manifest", retryable=False)
    keys = [CHUNK.key(tenant_id, chunk_id(payload.stored_id, number)) for number in range(manifest.chunk_count)]
    parts = await runtime.store.get_many(keys)
    text = "".join(part.text for part in parts if part is not None)
    data = text.encode()
    if None in parts or len(data) != manifest.size_bytes or hashlib.sha256(data).hexdigest() != manifest.digest:
        raise StoreError(f"stored payload {payload.stored_id} is damaged", retryable=False)
    return JsonText(text)


async def value_of(runtime: Runtime, program: Program, tenant_id: TenantId, payload: Payload) -> Any:
    """The typed value of a payload of one value."""
    return program.codec.decode_json(payload.type_name, await text_of(runtime, tenant_id, payload))


async def any_value_of(runtime: Runtime, program: Program, tenant_id: TenantId, payload: Payload) -> Any:
    """The typed value of a payload; of a MANY payload the list of its values."""
    if payload.item_count is None:
        return await value_of(runtime, program, tenant_id, payload)
    return [item.value async for item in items_of(runtime, program, tenant_id, payload)]


async def items_of(
    runtime: Runtime, program: Program, tenant_id: TenantId, payload: Payload
) -> AsyncGenerator[Item, None]:
    """The typed items of a MANY payload, in order; a unit's outputs are read page by page."""
    decode = program.codec.decode
    if payload.outputs_of is None:
        values = parse_json(await text_of(runtime, tenant_id, payload))
        if not isinstance(values, list):
            raise InternalError("a MANY payload is not a list")
        for index, value in enumerate(values):
            yield Item(index, decode(payload.type_name, value))
        return
    cursor: str | None = None
    while True:
        page = await runtime.store.query(CHILD_BY_UNIT, payload.outputs_of, limit=PAGE_COUNT, cursor=cursor)
        for child in page.records:
            # One without a result stands for an item that was rejected.
            if child.result is not None and child.item_index is not None:
                yield Item(child.item_index, await value_of(runtime, program, tenant_id, child.result))
        if page.cursor is None:
            return
        cursor = page.cursor


async def texts_of(runtime: Runtime, tenant_id: TenantId, payload: Payload) -> AsyncGenerator[JsonText, None]:
    """The items of a unit's outputs as JSON texts, page by page."""
    cursor: str | None = None
    assert payload.outputs_of is not None
    while True:
        page = await runtime.store.query(CHILD_BY_UNIT, payload.outputs_of, limit=PAGE_COUNT, cursor=cursor)
        for child in page.records:
            if child.result is not None:
                yield await text_of(runtime, tenant_id, child.result)
        if page.cursor is None:
            return
        cursor = page.cursor


async def _put(runtime: Runtime, records: Sequence[PayloadChunk | PayloadManifest]) -> None:
    await runtime.store.transact((), functools.partial(_decided, Decision(None, puts=tuple(records))))


def _decided(decision: Decision[None], _: Snapshot) -> Decision[None]:
    return decision
