"""The scalar types of the contract language and the Python type that stands for each."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Mapping
from enum import StrEnum

from attrs import frozen


class Scalar(StrEnum):
    STRING = "string"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL = "decimal"
    UUID = "uuid"
    TIMESTAMP = "timestamp"
    DATE = "date"
    DATETIME = "datetime"
    DURATION = "duration"
    URI = "uri"
    PATH = "path"
    CURRENCY = "currency"
    BYTES = "bytes"
    PAYLOAD_REF = "payload_ref"

    @property
    def numeric(self) -> bool:
        """Bounds (``minimum`` ...) make sense on it."""
        return self in _NUMERIC


_NUMERIC = frozenset({Scalar.INT32, Scalar.INT64, Scalar.FLOAT32, Scalar.FLOAT64, Scalar.DECIMAL})


@frozen(kw_only=True)
class PayloadRef:
    """Where bytes that travel beside the payload are kept, and what they must be when read again."""

    key: str  # name within the container
    provider: str | None = None  # who keeps it, as ``filesystem`` or ``s3``; None: the pipeline's only one
    container: str | None = None  # bucket or root; None: the provider's own
    content_type: str | None = None  # media type; None: not known
    codec: str | None = None  # how the bytes are encoded; None: as they are
    checksum: str | None = None  # sha256 hex, or the provider's own fingerprint; None: not verified
    size_bytes: int = 0  # size when it was referenced
    version: str | None = None  # the provider's version id; None: not versioned
    metadata: Mapping[str, str] = {}  # free text for the application


PYTHON_TYPES: Mapping[Scalar, type] = {
    Scalar.STRING: str,
    Scalar.BOOL: bool,
    Scalar.INT32: int,
    Scalar.INT64: int,
    Scalar.FLOAT32: float,
    Scalar.FLOAT64: float,
    Scalar.DECIMAL: decimal.Decimal,
    Scalar.UUID: uuid.UUID,
    Scalar.TIMESTAMP: dt.datetime,  # aware, UTC
    Scalar.DATE: dt.date,
    Scalar.DATETIME: dt.datetime,  # naive, local to whoever wrote it
    Scalar.DURATION: str,  # ISO 8601 text
    Scalar.URI: str,
    Scalar.PATH: str,
    Scalar.CURRENCY: str,  # ISO 4217 code
    Scalar.BYTES: bytes,
    Scalar.PAYLOAD_REF: PayloadRef,
}
