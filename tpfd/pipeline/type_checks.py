"""Checks declared types against each other: unknown names, cycles, variants that cannot be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tpfd.pipeline.declarations import AliasDecl, RecordDecl, TypeDecl, UnionDecl
from tpfd.pipeline.names import did_you_mean
from tpfd.pipeline.scalars import Scalar
from tpfd.pipeline.section import Report

MAX_TYPE_DEPTH = 32
"""A payload may be 64 levels deep; a type adds up to two (itself and a list of it)."""


def check_types(report: Report, declared: Mapping[str, TypeDecl]) -> None:
    """Note everything about the types that does not hold together."""
    known = {*declared, *Scalar}
    for declaration in declared.values():
        at = _path(report, declaration.name)
        for inner, name in _references(declaration):
            path = at + inner
            if name.startswith("<"):
                report.problem(path, f"{name} comes with a Java connector and is not known here; declare the type")
            elif name not in known:
                report.problem(path, f"type {name!r} is not declared{did_you_mean(name, known)}")
    cyclic = list(_cyclic(declared))
    for name in cyclic:
        report.problem(_path(report, name), f"type {name!r} contains itself; types must be finite")
    if not cyclic:
        _check_depth(report, declared)
    for declaration in declared.values():
        if isinstance(declaration, UnionDecl):
            _check_variants(report, declared, declaration)


def alias_target(declared: Mapping[str, TypeDecl], name: str) -> str:
    """The name at the end of a chain of aliases (or where a chain comes back to itself)."""
    seen: set[str] = set()
    while isinstance(found := declared.get(name), AliasDecl) and name not in seen:
        seen.add(name)
        name = found.target
    return name


def _references(declaration: TypeDecl) -> Iterator[tuple[str, str]]:
    """Path (below the declaration) and name of every type that it names."""
    match declaration:
        case RecordDecl(fields=fields):
            yield from ((f".fields[{index}]", one.type_name) for index, one in enumerate(fields))
        case UnionDecl(variants=variants):
            yield from ((f".variants.{discriminator}", name) for discriminator, name in variants.items())
        case AliasDecl(target=target):
            yield ".alias", target
        case _:
            pass


def _path(report: Report, name: str) -> str:
    """Where a type was declared: the old dialect has three places."""
    places = [f"$.{key}.{name}" for key in ("types", "messages", "unions")]
    return next((place for place in places if place in report.lines), places[0])


def _cyclic(declared: Mapping[str, TypeDecl]) -> Iterable[str]:
    """Types that contain themselves."""
    for name, declaration in declared.items():
        reached: set[str] = set()
        open_names = [one for _, one in _references(declaration)]
        while open_names:
            one = open_names.pop()
            if one in declared and one not in reached:
                reached.add(one)
                open_names.extend(inner for _, inner in _references(declared[one]))
        if name in reached:
            yield name


def _check_depth(report: Report, declared: Mapping[str, TypeDecl]) -> None:
    """No type is deeper than a payload may be: what is below the limit is peeled off level by level."""
    left = dict(declared)
    for _ in range(MAX_TYPE_DEPTH):
        left = {
            name: declaration
            for name, declaration in left.items()
            if any(part in left for _, part in _references(declaration))
        }
    for name in left:
        report.problem(_path(report, name), f"type {name!r} is more than {MAX_TYPE_DEPTH} types deep")


def _check_variants(report: Report, declared: Mapping[str, TypeDecl], union: UnionDecl) -> None:
    """A value is told apart by its class alone, so each variant is a record of its own."""
    by_record: dict[str, str] = {}
    for discriminator, variant in union.variants.items():
        path = f"{_path(report, union.name)}.variants.{discriminator}"
        target = alias_target(declared, variant)
        if not isinstance(declared.get(target), RecordDecl):
            if target in declared or target in set(Scalar):
                report.problem(path, f"variant {discriminator!r} must be a record (a type with 'fields')")
        elif target in by_record:
            report.problem(path, f"{by_record[target]!r} and {discriminator!r} have the same type; give each its own")
        else:
            by_record[target] = discriminator
