"""JSON schemas of pipeline types, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping

from tpfd.pipeline.declarations import RecordDecl, UnionDecl, WrapperDecl
from tpfd.pipeline.model import Pipeline
from tpfd.pipeline.scalars import Scalar
from tpfd.pipeline.types import TypeTable

_SCALARS: Mapping[Scalar, Mapping[str, object]] = {
    Scalar.STRING: {"type": "string"},
    Scalar.BOOL: {"type": "boolean"},
    Scalar.INT32: {"type": "integer", "format": "int32"},
    Scalar.INT64: {"type": "integer", "format": "int64"},
    Scalar.FLOAT32: {"type": "number", "format": "float"},
    Scalar.FLOAT64: {"type": "number", "format": "double"},
    Scalar.DECIMAL: {"type": ["string", "number"], "pattern": r"^[+-]?\d+(\.\d+)?$"},
    Scalar.UUID: {"type": "string", "format": "uuid"},
    Scalar.TIMESTAMP: {"type": "string", "format": "date-time"},
    Scalar.DATE: {"type": "string", "format": "date"},
    Scalar.DATETIME: {"type": "string"},
    Scalar.DURATION: {"type": "string", "format": "duration"},
    Scalar.URI: {"type": "string", "format": "uri"},
    Scalar.PATH: {"type": "string"},
    Scalar.CURRENCY: {"type": "string", "pattern": "^[A-Z]{3}$"},
    Scalar.BYTES: {"type": "string", "contentEncoding": "base64"},
    Scalar.PAYLOAD_REF: {"type": "object"},
}


def input_schema(pipeline: Pipeline) -> Mapping[str, object]:
    """Schema of what a pipeline takes; nested records stand inline (types have no cycles)."""
    return schema_of(pipeline.types, pipeline.input_type)


def schema_of(types: TypeTable, type_name: str) -> Mapping[str, object]:
    """Schema of one type."""
    match types.declaration(type_name):
        case Scalar() as scalar:
            return _SCALARS[scalar]
        case WrapperDecl() as wrapper:
            return _SCALARS[wrapper.scalar]
        case UnionDecl(variants=variants):
            return {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {name: schema_of(types, variant)},
                        "required": [name],
                        "additionalProperties": False,
                    }
                    for name, variant in variants.items()
                ]
            }
        case RecordDecl() as record:
            return _record(types, record)


def _record(types: TypeTable, record: RecordDecl) -> Mapping[str, object]:
    properties: dict[str, object] = {}
    for field in record.fields:
        inner = schema_of(types, field.type_name)
        properties[field.name] = {"type": "array", "items": inner} if field.repeated else inner
    required = [field.name for field in record.fields if not field.repeated and not field.optional]
    return {"type": "object", "title": record.name, "properties": properties, "required": required}
