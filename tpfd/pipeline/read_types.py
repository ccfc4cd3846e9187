"""Reads `types`, `messages` and `unions` into declarations, both dialects of the template language.

Version 2 writes ``[number, name, type]`` or ``{number, name, type, optional, repeated: true}`` and unions apart;
version 3 writes ``[name?, type?]``, ``{name, type | repeated, presence, nullability}`` and unions among the types.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum

from tpfd.pipeline.declarations import (
    AliasDecl,
    Constraints,
    FieldDecl,
    RecordDecl,
    TypeDecl,
    UnionDecl,
    WrapperDecl,
)
from tpfd.pipeline.names import attribute, did_you_mean
from tpfd.pipeline.scalars import Scalar
from tpfd.pipeline.section import Report, Section, kind_of
from tpfd.pipeline.type_checks import check_types

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FORMS = ("fields", "wraps", "alias", "variants")
_LENGTHS = ("minLength", "maxLength", "pattern", "format")
_BOUNDS = ("minimum", "minimumExclusive", "maximum", "maximumExclusive")
_TYPE_KEYS = (*_FORMS, *_LENGTHS, *_BOUNDS, "allowedValues")
_TYPE_JAVA = ("java", "mappings", "reserved", "representations")
_FIELD_KEYS = (
    "name", "type", "repeated", "optional", "presence", "nullability", "minItems", "maxItems", "keyType", "valueType",
)  # fmt: skip
_FIELD_JAVA = ("number", "deprecated", "since", "deprecatedSince", "comment", "overrides", "referenceable")
_PROTO_NUMBER_PARTS = 3


class Presence(StrEnum):
    REQUIRED = "REQUIRED"
    OPTIONAL = "OPTIONAL"


class Nullability(StrEnum):
    NON_NULL = "NON_NULL"
    NULLABLE = "NULLABLE"


def read_types(root: Section) -> dict[str, TypeDecl]:
    """Every declared type, in declared order.

    What is wrong is noted in the root's report; a type that cannot be read is left out.
    """
    if "types" in root and "messages" in root:
        root.problem("'messages' is the old name of 'types'; one file has one of them", "messages")
    declared: dict[str, TypeDecl] = {}
    for key in ("types", "messages"):
        for name, value in root.section(key, None).values.items():
            _add(declared, _read_type(root.report, name, value, f"{root.at(key)}.{name}"), root.report, key)
    for name, value in root.section("unions", None).values.items():
        _add(declared, _read_union(root.report, name, value, f"{root.at('unions')}.{name}"), root.report, "unions")
    check_types(root.report, declared)
    return declared


def inline_record(report: Report, declared: dict[str, TypeDecl], name: str, value: object, path: str) -> None:
    """Add a record that a step declares in place (`inputFields`), if nobody else declares it."""
    if name not in declared:
        declared[name] = RecordDecl(name, _read_fields(report, value, path))


def _add(declared: dict[str, TypeDecl], found: TypeDecl | None, report: Report, key: str) -> None:
    if found is None:
        return
    path = f"$.{key}.{found.name}"
    if found.name in declared:
        report.problem(path, f"type {found.name!r} is declared twice")
    elif found.name in {*Scalar, "PayloadReference"}:
        report.problem(path, f"{found.name!r} is a built-in type; choose another name")
    elif not _NAME.fullmatch(found.name):
        report.problem(path, f"{found.name!r} is not a type name: letters, digits and _, beginning with a letter")
    else:
        declared[found.name] = found


def _read_type(report: Report, name: str, value: object, path: str) -> TypeDecl | None:
    section = report.section(value, path, _TYPE_KEYS, _TYPE_JAVA)
    forms = [form for form in _FORMS if form in section]
    if len(forms) != 1:
        section.problem(f"a type has exactly one of {', '.join(_FORMS)}; here: {', '.join(forms) or 'none'}")
        return None
    if forms != ["wraps"]:
        for key in (*_LENGTHS, *_BOUNDS, "allowedValues"):
            if key in section:
                section.problem("constraints belong to a type with 'wraps'", key)
    match forms[0]:
        case "fields":
            return RecordDecl(name, _read_fields(report, section.values["fields"], section.at("fields")))
        case "variants":
            return _read_variants(name, section.section("variants", None))
        case "alias":
            target = section.text("alias")
            return AliasDecl(name, target) if target is not None else None
        case _:
            return _read_wrapper(name, section)


def _read_union(report: Report, name: str, value: object, path: str) -> UnionDecl | None:
    return _read_variants(name, report.section(value, path, ("variants",)).section("variants", None))


def _read_variants(name: str, section: Section) -> UnionDecl | None:
    variants: dict[str, str] = {}
    for discriminator, value in section.values.items():
        if isinstance(value, dict):
            variant = section.section(discriminator, ("type", "name"), ("number",))
            type_name = variant.required_text("type")
        else:
            type_name = section.text(discriminator)
        if not _NAME.fullmatch(discriminator):
            section.problem(f"{discriminator!r} is not a discriminator: letters, digits and _", discriminator)
        elif type_name is not None:
            variants[discriminator] = type_name
    if not variants:
        section.problem("a union has at least one variant, as 'approved: PaymentApproved'")
        return None
    return UnionDecl(name, variants)


def _read_fields(report: Report, value: object, path: str) -> tuple[FieldDecl, ...]:
    if not isinstance(value, list):
        report.problem(path, f"a list of [name, type] is needed here, not {kind_of(value)}")
        return ()
    fields: list[FieldDecl] = []
    for index, one in enumerate(value):
        found = _read_field(report, one, f"{path}[{index}]")
        if found is None:
            continue
        double = next((other for other in fields if other.attribute == found.attribute), None)
        if double is not None:
            report.problem(f"{path}[{index}]", f"field {found.name!r} is declared twice (as {double.name!r} before)")
        else:
            fields.append(found)
    return tuple(fields)


def _read_field(report: Report, value: object, path: str) -> FieldDecl | None:
    if isinstance(value, list):
        return _read_tuple(report, value, path)
    section = report.section(value, path, _FIELD_KEYS, _FIELD_JAVA)
    name = section.required_text("name")
    repeated = section.values.get("repeated")
    type_name: str | None
    if isinstance(repeated, str):
        if "type" in section:
            section.problem("a field has 'type' or 'repeated', not both", "repeated")
        type_name = section.text("repeated")
    else:
        type_name = section.required_text("type")
    if type_name == "map":
        section.problem("map fields are not supported; declare a record, or a repeated record of key and value", "type")
        return None
    many = isinstance(repeated, str) or section.flag("repeated") is True
    optional = section.choice("presence", Presence) is Presence.OPTIONAL or section.flag("optional") is True
    nullable = section.choice("nullability", Nullability) is Nullability.NULLABLE
    if many and (optional or nullable):
        section.problem("a repeated field cannot be optional or nullable: an empty list stands for both")
    for key in ("minItems", "maxItems"):
        if key in section and not many:
            section.problem(f"{key} belongs to a repeated field", key)
    if name is None or type_name is None or not _check_field_name(report, name, path):
        return None
    return FieldDecl(
        name=name,
        attribute=attribute(name),
        type_name=type_name,
        repeated=many,
        optional=optional and not many,
        nullable=nullable and not many,
        min_items=section.count("minItems") if many else None,
        max_items=section.count("maxItems") if many else None,
    )


def _read_tuple(report: Report, value: list[object], path: str) -> FieldDecl | None:
    parts = value[1:] if len(value) == _PROTO_NUMBER_PARTS and isinstance(value[0], int) else value
    match parts:
        case [str() as name, str() as type_name]:
            optional, nullable = name.endswith("?"), type_name.endswith("?")
            name, type_name = name.removesuffix("?"), type_name.removesuffix("?")
            if not _check_field_name(report, name, path):
                return None
            return FieldDecl(
                name=name, attribute=attribute(name), type_name=type_name, optional=optional, nullable=nullable
            )
        case _:
            report.problem(path, "a field is [name, type] or {name: ..., type: ...}")
            return None


def _check_field_name(report: Report, name: str, path: str) -> bool:
    if _NAME.fullmatch(name):
        return True
    report.problem(path, f"{name!r} is not a field name: letters, digits and _, beginning with a letter")
    return False


def _read_wrapper(name: str, section: Section) -> WrapperDecl | None:
    text = section.text("wraps")
    if text is None:
        return None
    if text not in set(Scalar):
        section.problem(f"{text!r} is not a scalar; 'wraps' takes one{did_you_mean(text, Scalar)}", "wraps")
        return None
    scalar = Scalar(text)
    for key in _LENGTHS:
        if key in section and scalar is not Scalar.STRING:
            section.problem(f"{key} belongs to a wrapped string", key)
    for key in _BOUNDS:
        if key in section and not scalar.numeric:
            section.problem(f"{key} belongs to a wrapped number", key)
    constraints = Constraints(
        min_length=section.count("minLength"),
        max_length=section.count("maxLength"),
        pattern=_read_pattern(section),
        email=_read_format(section),
        minimum=section.decimal("minimum"),
        minimum_exclusive=section.decimal("minimumExclusive"),
        maximum=section.decimal("maximum"),
        maximum_exclusive=section.decimal("maximumExclusive"),
        allowed_values=_read_allowed_values(section),
    )
    _check_order(section, "minLength", constraints.min_length, "maxLength", constraints.max_length)
    _check_order(section, "minimum", constraints.minimum, "maximum", constraints.maximum)
    return WrapperDecl(name, scalar, constraints)


def _read_pattern(section: Section) -> str | None:
    pattern = section.text("pattern")
    if pattern is None:
        return None
    if "maxLength" not in section:
        section.problem("a pattern needs maxLength beside it, which bounds what it is matched against", "pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        section.problem(f"not a regular expression: {error}", "pattern")
        return None
    return pattern


def _read_format(section: Section) -> bool:
    text = section.text("format")
    if text not in (None, "email"):
        section.problem(f"{text!r} is not known; the one format is 'email'", "format")
    return text == "email"


def _read_allowed_values(section: Section) -> tuple[str | bool | int | Decimal, ...]:
    found: list[str | bool | int | Decimal] = []
    for path, value in section.items("allowedValues"):
        if isinstance(value, (str, bool, int, Decimal)):
            found.append(value)
        else:
            section.report.problem(path, f"a single value is needed here, not {kind_of(value)}")
    if "allowedValues" in section and not found:
        section.problem("the set of allowed values is empty", "allowedValues")
    return tuple(found)


def _check_order(
    section: Section, low_key: str, low: Decimal | int | None, high_key: str, high: Decimal | int | None
) -> None:
    if low is not None and high is not None and low > high:
        section.problem(f"{low_key} {low} is above {high_key} {high}", low_key)
