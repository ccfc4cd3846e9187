"""What a payload looks like, as a tree of shapes; each reads JSON data into values and writes them back.

The happy path runs through functions that cattrs generates for each record. A shape raises the first thing that it
meets; `tpfd.codec.explain` walks the same shapes to find all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cattrs
from attrs import define, field, frozen
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from tpfd.codec.kinds import Unfit, kind_of_data
from tpfd.codec.scalars import Reader, Writer


@frozen
class ScalarShape:
    """A single value."""

    read: Reader
    write: Writer


@frozen
class NullableShape:
    """A value or null (None)."""

    inner: Shape

    def read(self, value: Any, _type: Any = None) -> Any:
        return None if value is None else self.inner.read(value, None)

    def write(self, value: Any) -> Any:
        return None if value is None else self.inner.write(value)


@frozen
class ListShape:
    """A finite ordered list; null means empty. A tuple in Python."""

    item: Shape
    min_items: int
    max_items: int | None

    def read(self, value: Any, _type: Any = None) -> tuple[Any, ...]:
        items = self.items([] if value is None else value, list)
        return tuple([self.item.read(one, None) for one in items])

    def write(self, value: Any) -> list[Any]:
        return [self.item.write(one) for one in self.items(value, (tuple, list))]

    def items(self, value: Any, kind: type[list[Any]] | tuple[type[tuple[Any, ...]], type[list[Any]]]) -> Any:
        """The value, if it is a list of an allowed length."""
        if not isinstance(value, kind):
            raise Unfit(f"a list is needed, not {kind_of_data(value)}")
        if len(value) < self.min_items:
            raise Unfit(f"must have {self.min_items} items or more, not {len(value)}")
        if self.max_items is not None and len(value) > self.max_items:
            raise Unfit(f"must have {self.max_items} items or less, not {len(value)}")
        return value


@frozen
class FieldShape:
    """One field of a record."""

    name: str
    attribute: str
    shape: Shape
    required: bool  # the key must be there
    omitted_if_none: bool  # None is written by leaving the key out


@define(eq=False)
class RecordShape:
    """An object with these fields; others are ignored. An attrs class in Python."""

    name: str
    cls: type
    fields: tuple[FieldShape, ...]
    _structure: Any = field(init=False)
    _unstructure: Any = field(init=False)
    _lists_that_must_be_there: tuple[str, ...] = field(init=False)
    _order: tuple[str, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        # To the class every list may be absent, so the generated code does not miss one that must have items; and it
        # writes what may be left out behind the rest, which is not the declared order. Both are rare.
        lists = tuple(one.name for one in self.fields if one.required and isinstance(one.shape, ListShape))
        self._lists_that_must_be_there = lists
        self._order = tuple(one.name for one in self.fields) if any(one.omitted_if_none for one in self.fields) else ()
        converter = cattrs.Converter(detailed_validation=False)
        reading = {
            one.attribute: override(rename=one.name, struct_hook=one.shape.read) for one in self.fields
        }
        writing = {
            one.attribute: override(
                rename=one.name, unstruct_hook=one.shape.write, omit_if_default=one.omitted_if_none
            )
            for one in self.fields
        }
        self._structure = make_dict_structure_fn(self.cls, converter, _cattrs_detailed_validation=False, **reading)  # type: ignore[arg-type]
        self._unstructure = make_dict_unstructure_fn(self.cls, converter, **writing)  # type: ignore[arg-type]

    def read(self, value: Any, _type: Any = None) -> Any:
        data = self.checked_data(value)
        for name in self._lists_that_must_be_there:
            if name not in data:
                raise Unfit(f"{name} is missing")
        return self._structure(data, self.cls)

    def write(self, value: Any) -> Any:
        data = self._unstructure(self.checked_value(value))
        return {name: data[name] for name in self._order if name in data} if self._order else data

    def checked_data(self, value: Any) -> Any:
        if type(value) is not dict:
            raise Unfit(f"an object with the fields of {self.name} is needed, not {kind_of_data(value)}")
        return value

    def checked_value(self, value: Any) -> Any:
        if type(value) is not self.cls:
            raise Unfit(f"a {self.name} is needed, not {kind_of_data(value)}")
        return value


@frozen(eq=False)
class UnionShape:
    """An object with one key, the discriminator, over the variant's object. One of the variants' classes in Python."""

    name: str
    variants: Mapping[str, RecordShape]
    _discriminators: Mapping[type, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        by_class = {variant.cls: discriminator for discriminator, variant in self.variants.items()}
        object.__setattr__(self, "_discriminators", by_class)

    def read(self, value: Any, _type: Any = None) -> Any:
        discriminator, inner = self.chosen_data(value)
        return self.variants[discriminator].read(inner, None)

    def write(self, value: Any) -> Any:
        discriminator = self.chosen_value(value)
        return {discriminator: self.variants[discriminator].write(value)}

    def chosen_data(self, value: Any) -> tuple[str, Any]:
        """Discriminator and what stands below it."""
        if type(value) is not dict or len(value) != 1:
            names = ", ".join(self.variants)
            raise Unfit(f"an object with exactly one of the keys {names} is needed, not {_keys_of(value)}")
        (chosen,) = value.items()
        if chosen[0] not in self.variants:
            raise Unfit(f"{self.name} has no variant {chosen[0][:40]!r}; it has {', '.join(self.variants)}")
        return chosen

    def chosen_value(self, value: Any) -> str:
        discriminator = self._discriminators.get(type(value))
        if discriminator is None:
            names = ", ".join(variant.name for variant in self.variants.values())
            raise Unfit(f"one of {names} is needed, not {kind_of_data(value)}")
        return discriminator


Shape = ScalarShape | NullableShape | ListShape | RecordShape | UnionShape


def _keys_of(value: object) -> str:
    if isinstance(value, dict):
        return f"one with {len(value)} keys"
    return kind_of_data(value)
