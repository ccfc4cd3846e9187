"""Values too large to stand in a record: kept in parts beside it, named by a ``stored_id`` in its payload."""

from __future__ import annotations

from attrs import frozen

from tpfd.core.records import TenantId


@frozen(kw_only=True)
class PayloadManifest:
    """A value too large to stand in a record. Written after its chunks; content-addressed, never changed."""

    tenant_id: TenantId
    stored_id: str  # execution id + slot + sha256
    chunk_count: int
    size_bytes: int
    digest: str
    created_epoch_ms: int


@frozen(kw_only=True)
class PayloadChunk:
    """One part of a stored value."""

    tenant_id: TenantId
    chunk_id: str  # stored id + zero-padded number
    text: str
