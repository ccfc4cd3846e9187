"""Payloads of one pipeline: JSON text to typed values and back, exactly.

The text is canonical: compact, fields in declared order, absent values left out, non-ASCII kept. Equal values are equal
texts (a decimal's trailing zeros are part of its value here: 9.70 stays 9.70), so that a digest of the text identifies
the payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from tpfd.codec.explain import data_problems, value_problems
from tpfd.codec.scalars import SCALARS
from tpfd.codec.shapes import FieldShape, ListShape, NullableShape, RecordShape, ScalarShape, Shape, UnionShape
from tpfd.codec.strict_json import parse_json
from tpfd.codec.wrappers import wrapper_codec
from tpfd.errors import InternalError, PayloadError, Problem
from tpfd.pipeline.declarations import FieldDecl, RecordDecl, UnionDecl, WrapperDecl
from tpfd.pipeline.scalars import Scalar
from tpfd.pipeline.types import TypeTable

_REFUSALS = (ValueError, TypeError, KeyError, AttributeError)
"""What the quick way raises on a misfit: hooks a ValueError, generated code the others."""


class PayloadCodec:
    """Reads and writes every declared type of a pipeline."""

    __slots__ = ("_records", "_shapes", "_types")

    def __init__(self, types: TypeTable) -> None:
        """Prepare every declared type.

        Args:
            types: bound to the user's classes, if there are any.

        Raises:
            ConfigError: an allowed value of a wrapper does not fit it.
        """
        self._types = types
        self._records: dict[str, RecordShape] = {}
        self._shapes: dict[str, Shape] = {name: self._shape(name) for name in types.declarations}

    def decode_json(self, type_name: str, text: str | bytes) -> Any:
        """Read JSON text as a type.

        Raises:
            MalformedError: it is not (strict) JSON.
            PayloadError: it does not fit the type; every problem with its path.
        """
        return self.decode(type_name, parse_json(text))

    def decode(self, type_name: str, data: object) -> Any:
        """Read parsed JSON (see `tpfd.codec.strict_json`) as a type. Fields that the type does not have are ignored.

        Returns:
            An instance of the type's class; of a union, of the variant's class.

        Raises:
            PayloadError: it does not fit; every problem with its path.
        """
        shape = self._declared(type_name)
        try:
            return shape.read(data, None)
        except _REFUSALS as error:
            raise _explained(data_problems, shape, data, error) from error

    def unstructure(self, type_name: str, value: object) -> Any:
        """A value as JSON data: dicts, lists, str, int, float, bool, None; decimals are text.

        Raises:
            PayloadError: the value does not fit the type; every problem with its path.
        """
        shape = self._declared(type_name)
        try:
            return shape.write(value)
        except _REFUSALS as error:
            raise _explained(value_problems, shape, value, error) from error

    def encode(self, type_name: str, value: object) -> str:
        """A value as canonical JSON text.

        Raises:
            PayloadError: as `unstructure`.
        """
        return orjson.dumps(self.unstructure(type_name, value)).decode()

    def _declared(self, type_name: str) -> Shape:
        try:
            return self._shapes[type_name]
        except KeyError:
            raise InternalError(f"type {type_name!r} is not declared") from None

    def _shape(self, type_name: str) -> Shape:
        match self._types.declaration(type_name):
            case Scalar() as scalar:
                return ScalarShape(SCALARS[scalar].read, SCALARS[scalar].write)
            case WrapperDecl() as wrapper:
                codec = wrapper_codec(wrapper)
                return ScalarShape(codec.read, codec.write)
            case RecordDecl(name=name):
                return self._record(name)
            case UnionDecl(name=name, variants=variants):
                return UnionShape(name, {key: self._record(self._types.resolve(one)) for key, one in variants.items()})

    def _record(self, name: str) -> RecordShape:
        found = self._records.get(name)
        if found is None:
            declaration = self._types.record(name)
            fields = tuple(self._field(one) for one in declaration.fields)
            found = self._records[name] = RecordShape(name, self._types.cls(name), fields)
        return found

    def _field(self, declared: FieldDecl) -> FieldShape:
        shape = self._shape(declared.type_name)
        if declared.repeated:
            shape = ListShape(shape, declared.min_items or 0, declared.max_items)
        if declared.nullable:
            shape = NullableShape(shape)
        return FieldShape(
            name=declared.name,
            attribute=declared.attribute,
            shape=shape,
            required=not (declared.optional or (declared.repeated and not declared.min_items)),
            omitted_if_none=declared.optional,
        )


def _explained(
    problems_of: Callable[[Shape, Any], Iterator[Problem]], shape: Shape, payload: object, error: Exception
) -> PayloadError:
    """All problems; where the walk finds none, it was the user's own class that refused."""
    return PayloadError(list(problems_of(shape, payload)) or [Problem("$", f"refused: {error}")])
