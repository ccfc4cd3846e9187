"""Declared types: what is refused, the classes that are made, the user's own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Optional
from uuid import UUID

import attrs
import pytest

from tpfd.codec.payloads import PayloadCodec
from tpfd.errors import ConfigError, InternalError, Problem
from tpfd.pipeline.contract import bind_types
from tpfd.pipeline.declarations import RecordDecl, WrapperDecl
from tpfd.pipeline.model import Pipeline
from tpfd.pipeline.scalars import PYTHON_TYPES, PayloadRef, Scalar

Load = Callable[..., Pipeline]
Problems = Callable[..., list[str]]

ONE_STEP = '\nsteps: [{name: S, input: A, output: A, python: "m:f"}]\n'
HEAD = "version: 3\nappName: x\ntypes:\n"


def with_types(load: Load, types: str) -> Pipeline:
    return load(types + ONE_STEP, head=HEAD)


def type_problems(problems: Problems, types: str) -> list[str]:
    return problems(types + ONE_STEP, head=HEAD)


def test_a_generated_class_is_frozen_and_typed(load: Load) -> None:
    types = with_types(
        load,
        """
  Id: {wraps: uuid}
  Name: {alias: string}
  Inner: {fields: [[v, int64]]}
  Other: {fields: [[w, bool]]}
  U: {variants: {inner: Inner, other: Other}}
  A:
    fields:
      - [someId, Id]
      - [from, Name]
      - ["note?", string]
      - [mid, "string?"]
      - {name: parts, repeated: Inner, minItems: 1, maxItems: 3}
      - [choice, U]
      - [at, timestamp]
""",
    ).types
    cls = types.cls("A")
    hints = {one.name: one.type for one in attrs.fields(cls)}
    inner, other = types.cls("Inner"), types.cls("Other")
    assert hints == {
        "some_id": UUID,
        "from_": str,
        "note": str | None,
        "mid": str | None,
        "parts": tuple.__class_getitem__((inner, ...)),
        "choice": inner | other,
        "at": dt.datetime,
    }
    value = cls(UUID(int=1), "x", None, inner(5), dt.datetime.now(dt.UTC))
    assert (value.note, value.parts) == (None, ())
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.from_ = "y"
    assert not hasattr(value, "__dict__")
    assert types.name_of(cls) == "A"
    assert types.name_of(int) is None
    assert types.concrete("U") == ("Inner", "Other")
    assert types.is_union("U")
    assert not types.is_union("A")


def test_every_scalar_has_a_python_type(load: Load) -> None:
    fields = ", ".join(f"[f_{scalar}, {scalar}]" for scalar in Scalar)
    types = with_types(load, f"  A: {{fields: [{fields}]}}\n").types
    assert [one.type for one in attrs.fields(types.cls("A"))] == [PYTHON_TYPES[scalar] for scalar in Scalar]
    assert PYTHON_TYPES[Scalar.DECIMAL] is Decimal
    assert PYTHON_TYPES[Scalar.PAYLOAD_REF] is PayloadRef


def test_constraints_are_read(load: Load) -> None:
    types = with_types(
        load,
        """
  A: {fields: [[code, Code], [amount, Amount]]}
  Code: {wraps: string, minLength: 3, maxLength: 3, pattern: "[A-Z]{3}", allowedValues: [EUR, USD]}
  Amount: {wraps: decimal, minimumExclusive: 0, maximum: 10.50}
""",
    ).types
    code, amount = types.declarations["Code"], types.declarations["Amount"]
    assert isinstance(code, WrapperDecl)
    assert isinstance(amount, WrapperDecl)
    assert (code.constraints.min_length, code.constraints.pattern) == (3, "[A-Z]{3}")
    assert code.constraints.allowed_values == ("EUR", "USD")
    assert (amount.constraints.minimum_exclusive, str(amount.constraints.maximum)) == (Decimal(0), "10.50")


def test_all_problems_of_the_types_at_once(problems: Problems) -> None:
    found = type_problems(
        problems,
        """
  A: {fields: [[x, strng], [y, B], [Y, string], {name: z, type: map, keyType: string, valueType: string}, [only]]}
  B: {fields: [[a, C]]}
  C: {fields: [[b, B]]}
  string: {alias: uuid}
  D: {wraps: text}
  E: {wraps: string, pattern: "a*"}
  F: {wraps: string, minimum: 1}
  G: {wraps: decimal, minimum: 5, maximum: 1}
  H: {variants: {a: Code, b: B, c: B}}
  Code: {wraps: string, pattern: "(", maxLength: 3}
  I: {fields: [], wraps: string}
  J: {alias: J}
  K: {variants: {}}
  L: {fields: [[a, <acme.Thing>]]}
  M: {fields: {a: string}}
  N: {fields: [{name: a, repeated: string, presence: optional}]}
  O: {fields: [[a, string]], maxLength: 3}
""",
    )
    expected = [
        "a field is [name, type] or {name: ..., type: ...} @ $.types.A.fields[4]",
        "map fields are not supported",
        "field 'Y' is declared twice (as 'y' before) @ $.types.A.fields[2]",
        "'string' is a built-in type; choose another name @ $.types.string",
        "'text' is not a scalar; 'wraps' takes one",
        "a pattern needs maxLength beside it, which bounds what it is matched against @ $.types.E.pattern",
        "minimum belongs to a wrapped number @ $.types.F.minimum",
        "minimum 5 is above maximum 1 @ $.types.G.minimum",
        "not a regular expression",
        "a type has exactly one of fields, wraps, alias, variants; here: fields, wraps @ $.types.I",
        "a union has at least one variant",
        "a list of [name, type] is needed here, not a mapping @ $.types.M.fields",
        "a repeated field cannot be optional or nullable",
        "constraints belong to a type with 'wraps' @ $.types.O.maxLength",
        "type 'strng' is not declared; did you mean 'string'? @ $.types.A.fields[0]",
        "<acme.Thing> comes with a Java connector",
        "type 'B' contains itself; types must be finite @ $.types.B",
        "type 'C' contains itself; types must be finite @ $.types.C",
        "type 'J' contains itself; types must be finite @ $.types.J",
        "variant 'a' must be a record (a type with 'fields') @ $.types.H.variants.a",
        "'b' and 'c' have the same type; give each its own @ $.types.H.variants.c",
    ]
    for part in expected:
        assert any(part in problem for problem in found), f"{part} not in {found}"
    assert len(found) == len(expected)


def test_a_cycle_is_found_at_once_however_wide_the_types_are(problems: Problems) -> None:
    many = "".join(f"  T{n}: {{fields: [[a, T{n + 1}], [b, T{n + 1}], [c, T{n + 1}]]}}\n" for n in range(60))
    found = type_problems(problems, "  A: {fields: [[a, T0]]}\n" + many + "  T60: {fields: [[a, T0]]}\n")
    assert len([problem for problem in found if "contains itself" in problem]) == 61


def test_types_deeper_than_a_payload_may_be_are_refused(load: Load, problems: Problems) -> None:
    def chain(length: int) -> str:
        links = "".join(f"  T{n}: {{fields: [[a, T{n + 1}]]}}\n" for n in range(length - 1))
        return f"  A: {{alias: T0}}\n{links}  T{length - 1}: {{fields: []}}\n"

    assert with_types(load, chain(31)).types.cls("T0")
    found = type_problems(problems, chain(500))
    assert "type 'T0' is more than 32 types deep @ $.types.T0" in found
    assert not any("'T490'" in problem for problem in found)


@pytest.mark.parametrize("name", ["self", "cl", "converter", "o", "class", "None", "print", "cls", "value"])
def test_no_field_name_breaks_the_class(load: Load, name: str) -> None:
    codec = PayloadCodec(with_types(load, f"  A: {{fields: [[{name}, string], [{name}2?, string]]}}\n").types)
    value = codec.decode("A", {name: "1", f"{name}2": "2"})
    assert codec.encode("A", value) == f'{{"{name}":"1","{name}2":"2"}}'


def test_types_that_are_not_there_are_an_invariant(load: Load) -> None:
    types = with_types(load, "  A: {fields: []}\n  W: {wraps: string}\n").types
    with pytest.raises(InternalError, match="not declared"):
        types.declaration("B")
    with pytest.raises(InternalError, match="not a record"):
        types.cls("W")
    with pytest.raises(InternalError, match="not a union"):
        types.variants("A")


@attrs.frozen
class GoodLine:
    sku: str
    count: int


@attrs.frozen
class GoodOrder:
    order_id: UUID
    amount: Decimal
    placed_at: dt.datetime
    lines: tuple[GoodLine, ...] = ()
    note: Optional[str] = None  # noqa: UP045 - the older spelling means the same


@attrs.frozen
class BadOrder:
    order_id: str
    amount: Decimal = Decimal(0)
    lines: list[GoodLine] = attrs.field(factory=list)
    note: str | None = attrs.field(default=None, alias="remark")
    extra: int = 0


class NoAttrs:
    pass


CLASSES = {"m:GoodLine": GoodLine, "m:GoodOrder": GoodOrder, "m:BadOrder": BadOrder, "m:NoAttrs": NoAttrs}
ORDER = """
  A:
    fields:
      - [orderId, uuid]
      - [amount, decimal]
      - [placedAt, timestamp]
      - {name: lines, repeated: Line}
      - [note?, string]
  Line: {fields: [[sku, string], [count, int32]]}
"""


def from_table(reference: str) -> object:
    try:
        return CLASSES[reference]
    except KeyError:
        raise ConfigError([Problem("$", f"cannot import {reference}")]) from None


def bound(load: Load, names: str) -> Pipeline:
    pipeline = load(ORDER + ONE_STEP + f"python: {{types: {{{names}}}}}\n", head=HEAD)
    return bind_types(pipeline, from_table)


def bind_problems(load: Load, names: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        bound(load, names)
    return [str(problem) for problem in caught.value.problems]


def test_the_users_own_classes_take_the_place_of_generated_ones(load: Load) -> None:
    types = bound(load, "A: m:GoodOrder, Line: m:GoodLine").types
    assert types.cls("A") is GoodOrder
    assert types.name_of(GoodLine) == "Line"


def test_every_difference_of_a_class_is_listed(load: Load) -> None:
    found = bind_problems(load, "A: m:BadOrder, Line: m:GoodLine")
    expected = [
        "m:BadOrder lacks attribute 'placed_at' (field 'placedAt') @ $.python.types.A",
        "m:BadOrder has attribute 'extra', which is no field of A: it would be lost @ $.python.types.A",
        "m:BadOrder.order_id is annotated str, the contract says UUID @ $.python.types.A",
        "m:BadOrder.amount needs no default: it must be given @ $.python.types.A",
        "m:BadOrder.lines is annotated list",
        "m:BadOrder.lines needs the default () @ $.python.types.A",
        "m:BadOrder.note must be an __init__ argument of that name @ $.python.types.A",
    ]
    for part in expected:
        assert any(part in problem for problem in found), f"{part} not in {found}"
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("A: m:Gone", "cannot import m:Gone @ $.python.types.A"),
        ("A: m:NoAttrs", "m:NoAttrs is not an attrs class @ $.python.types.A"),
        ("A: m:GoodLine, Line: m:GoodLine", "m:GoodLine stands for two types"),
        ("A: m:GoodOrder", "lines is annotated tuple"),
    ],
)
def test_classes_that_cannot_be_used(load: Load, names: str, expected: str) -> None:
    assert any(expected in problem for problem in bind_problems(load, names))


def test_aliases_resolve_to_records(load: Load) -> None:
    pipeline = load("  A: {alias: B}\n  B: {fields: [[x, string]]}\n" + ONE_STEP, head=HEAD)
    assert pipeline.types.resolve("A") == "B"
    assert isinstance(pipeline.types.declaration("A"), RecordDecl)
    assert pipeline.types.cls("A") is pipeline.types.cls("B")
