"""Everything that is wrong with a payload, with the path of each: walked only after the quick way has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tpfd.codec.shapes import ListShape, NullableShape, RecordShape, Shape, UnionShape
from tpfd.errors import Problem


def data_problems(shape: Shape, data: Any, path: str = "$") -> Iterator[Problem]:
    """Why JSON data cannot be read as this shape. Nothing, if it can."""
    match shape:
        case NullableShape(inner=inner):
            if data is not None:
                yield from data_problems(inner, data, path)
        case ListShape(item=item):
            if (problem := _refusal(path, shape.items, [] if data is None else data, list)) is not None:
                yield problem
            if isinstance(data, list):
                for index, one in enumerate(data):
                    yield from data_problems(item, one, f"{path}[{index}]")
        case RecordShape(fields=fields):
            if (problem := _refusal(path, shape.checked_data, data)) is not None:
                yield problem
                return
            for one in fields:
                if one.name in data:
                    yield from data_problems(one.shape, data[one.name], f"{path}.{one.name}")
                elif one.required:
                    yield Problem(f"{path}.{one.name}", "is missing")
        case UnionShape(variants=variants):
            if (problem := _refusal(path, shape.chosen_data, data)) is not None:
                yield problem
                return
            discriminator, inner_data = shape.chosen_data(data)
            yield from data_problems(variants[discriminator], inner_data, f"{path}.{discriminator}")
        case _:
            if (problem := _refusal(path, shape.read, data, None)) is not None:
                yield problem


def value_problems(shape: Shape, value: Any, path: str = "$") -> Iterator[Problem]:
    """Why a Python value cannot be written as this shape. Nothing, if it can."""
    match shape:
        case NullableShape(inner=inner):
            if value is not None:
                yield from value_problems(inner, value, path)
        case ListShape(item=item):
            if (problem := _refusal(path, shape.items, value, (tuple, list))) is not None:
                yield problem
            if isinstance(value, (tuple, list)):
                for index, one in enumerate(value):
                    yield from value_problems(item, one, f"{path}[{index}]")
        case RecordShape(fields=fields):
            if (problem := _refusal(path, shape.checked_value, value)) is not None:
                yield problem
                return
            for one in fields:
                inner_value = getattr(value, one.attribute)
                if inner_value is not None or not one.omitted_if_none:
                    yield from value_problems(one.shape, inner_value, f"{path}.{one.name}")
        case UnionShape(variants=variants):
            if (problem := _refusal(path, shape.chosen_value, value)) is not None:
                yield problem
                return
            discriminator = shape.chosen_value(value)
            yield from value_problems(variants[discriminator], value, f"{path}.{discriminator}")
        case _:
            if (problem := _refusal(path, shape.write, value)) is not None:
                yield problem


def _refusal(path: str, check: Callable[..., object], *arguments: object) -> Problem | None:
    try:
        check(*arguments)
    except ValueError as error:
        return Problem(path, str(error))
    return None
