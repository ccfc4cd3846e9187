"""What `types` declares, as values: records, unions, wrappers, aliases."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from attrs import frozen

from tpfd.pipeline.scalars import Scalar


@frozen(kw_only=True)
class FieldDecl:
    """One field of a record.

    Presence and nullability are independent: ``optional`` says that the key may be absent, ``nullable`` that null may
    stand there. In Python both are None.
    """

    name: str  # on the wire, camelCase
    attribute: str  # in Python, snake_case
    type_name: str  # a scalar's name or a declared type; of each item where repeated
    repeated: bool = False  # a finite ordered list; absent or null means empty
    optional: bool = False  # the key may be absent
    nullable: bool = False  # null may be the value
    min_items: int | None = None  # repeated only; None: no lower bound
    max_items: int | None = None  # repeated only; None: no upper bound

    @property
    def may_be_none(self) -> bool:
        return self.optional or self.nullable


@frozen
class RecordDecl:
    """A product type: all of these fields, in this order."""

    name: str
    fields: tuple[FieldDecl, ...]


@frozen
class UnionDecl:
    """A closed sum type: exactly one of these records, named by its discriminator."""

    name: str
    variants: Mapping[str, str]  # discriminator -> record type, in declared order


@frozen(kw_only=True)
class Constraints:
    """What a wrapper demands of its scalar. None means: not demanded."""

    min_length: int | None = None  # Unicode code points
    max_length: int | None = None  # Unicode code points
    pattern: str | None = None  # the whole text must match; only with max_length
    email: bool = False  # `format: email`: one @, no space, dotted domain
    minimum: Decimal | None = None
    minimum_exclusive: Decimal | None = None
    maximum: Decimal | None = None
    maximum_exclusive: Decimal | None = None
    allowed_values: tuple[str | bool | int | Decimal, ...] = ()  # the closed set, as in JSON; empty: any


@frozen
class WrapperDecl:
    """A nominal name for a scalar, with constraints. In Python it is the scalar's value."""

    name: str
    scalar: Scalar
    constraints: Constraints


@frozen
class AliasDecl:
    """Another name for a type."""

    name: str
    target: str


TypeDecl = RecordDecl | UnionDecl | WrapperDecl | AliasDecl
