"""Writes the types of a pipeline as a Python module to start from (`tpfd types`)."""

from __future__ import annotations

from collections.abc import Iterable

from tpfd.pipeline.declarations import AliasDecl, FieldDecl, RecordDecl, TypeDecl, UnionDecl, WrapperDecl
from tpfd.pipeline.model import Pipeline
from tpfd.pipeline.scalars import Scalar
from tpfd.pipeline.types import SCALAR_NAMES

_SCALAR_SOURCE = {
    Scalar.STRING: "str",
    Scalar.BOOL: "bool",
    Scalar.INT32: "int",
    Scalar.INT64: "int",
    Scalar.FLOAT32: "float",
    Scalar.FLOAT64: "float",
    Scalar.DECIMAL: "Decimal",
    Scalar.UUID: "UUID",
    Scalar.TIMESTAMP: "dt.datetime",
    Scalar.DATE: "dt.date",
    Scalar.DATETIME: "dt.datetime",
    Scalar.DURATION: "str",
    Scalar.URI: "str",
    Scalar.PATH: "str",
    Scalar.CURRENCY: "str",
    Scalar.BYTES: "bytes",
    Scalar.PAYLOAD_REF: "PayloadRef",
}
_STANDARD_IMPORTS = {
    "dt.": "import datetime as dt",
    "Decimal": "from decimal import Decimal",
    "UUID": "from uuid import UUID",
}
_NOTES = {
    Scalar.TIMESTAMP: "an instant: aware",
    Scalar.DATETIME: "local: naive",
    Scalar.DURATION: "ISO 8601",
    Scalar.CURRENCY: "ISO 4217",
}


def types_module(pipeline: Pipeline, module: str = "my_module") -> str:
    """Source text of a module with one frozen attrs class per record.

    Args:
        pipeline: its types need not be bound.
        module: dotted name under which the text will be saved; stands in the lines that bind the classes.

    Returns:
        Formatted Python, with the `python: {types: ...}` lines for the pipeline file in the docstring.
    """
    declarations = _in_order(pipeline.types.declarations.values())
    records = [one.name for one in declarations if isinstance(one, RecordDecl)]
    body = _joined([_source(pipeline, one) for one in declarations])
    bindings = "\n".join(f"    {name}: {module}:{name}" for name in records)
    standard = sorted(line for mark, line in _STANDARD_IMPORTS.items() if mark in body)
    standard.sort(key=lambda line: line.startswith("from "))
    imports = "\n".join(standard)
    attrs_imports = "from attrs import field, frozen" if "field(" in body else "from attrs import frozen"
    scalars = "\nfrom tpfd.pipeline.scalars import PayloadRef" if "PayloadRef" in body else ""
    return (
        f'"""Types of the pipeline {pipeline.pipeline_id}. Bind them in its file:\n\n'
        f'python:\n  types:\n{bindings}\n"""\n\n'
        "from __future__ import annotations\n\n"
        + (f"{imports}\n\n" if imports else "")
        + f"{attrs_imports}{scalars}\n{body}\n"
    )


def _joined(sources: list[str]) -> str:
    """Classes stand two blank lines apart, one-line names together."""
    text = ""
    before = ""
    for source in sources:
        alone = "\n" in source or "\n" in before
        text += ("\n\n" if alone else "\n" if not before else "") + source + "\n"
        before = source
    return text.rstrip("\n")


def _in_order(declarations: Iterable[TypeDecl]) -> list[TypeDecl]:
    """Every type after what it names, so that unions and aliases stand behind their parts."""
    by_name = {one.name: one for one in declarations}
    found: dict[str, TypeDecl] = {}

    def add(name: str) -> None:
        if name in found or name not in by_name:
            return
        for part in _parts(by_name[name]):
            add(part)
        found[name] = by_name[name]

    for name in by_name:
        add(name)
    return list(found.values())


def _parts(declaration: TypeDecl) -> list[str]:
    match declaration:
        case RecordDecl(fields=fields):
            return [one.type_name for one in fields]
        case UnionDecl(variants=variants):
            return list(variants.values())
        case AliasDecl(target=target):
            return [target]
        case _:
            return []


def _source(pipeline: Pipeline, declaration: TypeDecl) -> str:
    match declaration:
        case RecordDecl(name=name, fields=fields):
            lines = [_field(pipeline, one) for one in fields] or ["    pass"]
            return "\n".join(["@frozen", f"class {name}:", *lines])
        case UnionDecl(name=name, variants=variants):
            return f"{name} = {' | '.join(variants.values())}"
        case AliasDecl(name=name, target=target):
            return f"{name} = {_name(target)}"
        case WrapperDecl(name=name, scalar=scalar):
            return f"{name} = {_SCALAR_SOURCE[scalar]}"


def _field(pipeline: Pipeline, one: FieldDecl) -> str:
    text = _name(one.type_name)
    if one.repeated:
        annotation = f"tuple[{text}, ...] = field(default=(), kw_only=True)"
    elif one.optional:
        annotation = f"{text} | None = field(default=None, kw_only=True)"
    else:
        annotation = f"{text} | None" if one.nullable else text
    declared = pipeline.types.declaration(one.type_name)
    note = _NOTES.get(declared) if isinstance(declared, Scalar) else None
    return f"    {one.attribute}: {annotation}" + (f"  # {note}" if note else "")


def _name(type_name: str) -> str:
    return _SCALAR_SOURCE[Scalar(type_name)] if type_name in SCALAR_NAMES else type_name
