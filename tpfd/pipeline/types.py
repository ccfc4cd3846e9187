"""The types of a pipeline and the attrs classes that stand for its records.

A table is built from declarations that were checked (`tpfd.pipeline.read_types`). It makes a frozen class with slots
for every record, unless `bind` has put the user's own in its place.
"""

from __future__ import annotations

import types as python_types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tpfd.errors import ConfigError, InternalError, Problem
from tpfd.pipeline.declarations import AliasDecl, FieldDecl, RecordDecl, TypeDecl, UnionDecl, WrapperDecl
from tpfd.pipeline.scalars import PYTHON_TYPES, Scalar

SCALAR_NAMES = frozenset(Scalar)


class TypeTable:
    """All declared types of one pipeline.

    Attributes:
        declarations: by name, in declared order.
        python_names: record name -> ``module:Class`` of the user's own class.
    """

    __slots__ = ("_classes", "_names", "declarations", "python_names")

    def __init__(
        self,
        declarations: Mapping[str, TypeDecl],
        python_names: Mapping[str, str] | None = None,
        own_classes: Mapping[str, type] | None = None,
    ) -> None:
        """Make the classes.

        Args:
            declarations: checked ones: names known, no cycles.
            python_names: see above; they are not imported here.
            own_classes: classes to use instead of generated ones, by record name.
        """
        self.declarations = declarations
        self.python_names: Mapping[str, str] = python_names or {}
        self._classes: dict[str, type] = dict(own_classes or {})
        for name, declaration in declarations.items():
            if isinstance(declaration, RecordDecl):
                self._class(name)
        self._names = {cls: name for name, cls in self._classes.items()}

    def resolve(self, type_name: str) -> str:
        """Follow aliases to a scalar, record, union or wrapper."""
        while isinstance(declaration := self.declarations.get(type_name), AliasDecl):
            type_name = declaration.target
        return type_name

    def declaration(self, type_name: str) -> RecordDecl | UnionDecl | WrapperDecl | Scalar:
        """What a name stands for, aliases followed.

        Raises:
            InternalError: nobody declared it; the loader should have refused the pipeline.
        """
        resolved = self.resolve(type_name)
        if resolved in SCALAR_NAMES:
            return Scalar(resolved)
        declaration = self.declarations.get(resolved)
        if declaration is None or isinstance(declaration, AliasDecl):
            raise InternalError(f"type {type_name!r} is not declared")
        return declaration

    def record(self, type_name: str) -> RecordDecl:
        """The record behind a name.

        Raises:
            InternalError: it is something else.
        """
        declaration = self.declaration(type_name)
        if not isinstance(declaration, RecordDecl):
            raise InternalError(f"type {type_name!r} is not a record")
        return declaration

    def cls(self, type_name: str) -> type:
        """The attrs class of a record.

        Raises:
            InternalError: it is not a record.
        """
        return self._classes[self.record(type_name).name]

    def name_of(self, cls: type) -> str | None:
        """The record that a class stands for; None: no record of this pipeline."""
        return self._names.get(cls)

    def is_union(self, type_name: str) -> bool:
        return isinstance(self.declaration(type_name), UnionDecl)

    def variants(self, type_name: str) -> Mapping[str, str]:
        """Discriminator -> record type of a union, in declared order.

        Raises:
            InternalError: it is not a union.
        """
        declaration = self.declaration(type_name)
        if not isinstance(declaration, UnionDecl):
            raise InternalError(f"type {type_name!r} is not a union")
        return declaration.variants

    def concrete(self, type_name: str) -> tuple[str, ...]:
        """The records that a value of a step type can be: itself, or the variants of a union."""
        declaration = self.declaration(type_name)
        if isinstance(declaration, UnionDecl):
            return tuple(self.resolve(variant) for variant in declaration.variants.values())
        return (self.record(type_name).name,)

    def annotation(self, type_name: str) -> Any:
        """The Python annotation of a value of this type: a class, or ``A | B`` for a union."""
        match self.declaration(type_name):
            case Scalar() as scalar:
                return PYTHON_TYPES[scalar]
            case WrapperDecl(scalar=scalar):
                return PYTHON_TYPES[scalar]
            case RecordDecl(name=name):
                return self._class(name)
            case UnionDecl(variants=variants):
                return typing.Union[tuple(self.annotation(variant) for variant in variants.values())]  # noqa: UP007

    def field_annotation(self, declared: FieldDecl) -> Any:
        """The annotation of the attribute that holds a field."""
        base: Any = self.annotation(declared.type_name)
        if declared.repeated:
            return python_types.GenericAlias(tuple, (base, ...))
        return base | None if declared.may_be_none else base

    def bind(self, resolve: Callable[[str], object]) -> TypeTable:
        """A table with the user's own classes in place of generated ones.

        Args:
            resolve: imports ``module:name``; raises ConfigError where it cannot.

        Raises:
            ConfigError: a class cannot be imported or differs from its record; every difference is listed.
        """
        own: dict[str, type] = {}
        problems: list[Problem] = []
        for name, reference in self.python_names.items():
            path = f"$.python.types.{name}"
            try:
                found = resolve(reference)
            except ConfigError as error:
                problems += [Problem(path, problem.message) for problem in error.problems]
                continue
            if not (isinstance(found, type) and attrs.has(found)):
                problems.append(Problem(path, f"{reference} is not an attrs class"))
            elif found in own.values():
                problems.append(Problem(path, f"{reference} stands for two types; give each type its own class"))
            else:
                own[name] = found
        if problems:
            raise ConfigError(problems)
        table = TypeTable(self.declarations, self.python_names, own)
        problems = [problem for name, cls in own.items() for problem in table._differences(name, cls)]
        if problems:
            raise ConfigError(problems)
        return table

    def _class(self, name: str) -> type:
        found = self._classes.get(name)
        if found is None:
            attributes: dict[str, Any] = {}
            for one in self.record(name).fields:
                annotation = self.field_annotation(one)
                # A field with a default may stand before one without, which positional arguments cannot express.
                attributes[one.attribute] = (
                    attrs.field(type=annotation, default=() if one.repeated else None, kw_only=True)
                    if one.repeated or one.optional
                    else attrs.field(type=annotation)
                )
            found = self._classes[name] = attrs.make_class(name, attributes, frozen=True, slots=True)
        return found

    def _differences(self, name: str, cls: type) -> list[Problem]:
        """How a user's class differs from its record."""
        path = f"$.python.types.{name}"
        reference = self.python_names[name]
        try:
            hints = typing.get_type_hints(cls)
        except (NameError, TypeError) as error:
            return [Problem(path, f"{reference}: its annotations cannot be read: {error}")]
        found = {one.name: one for one in attrs.fields(cls)}
        declared = {one.attribute: one for one in self.record(name).fields}
        problems = [
            Problem(path, f"{reference} lacks attribute {attribute!r} (field {one.name!r})")
            for attribute, one in declared.items()
            if attribute not in found
        ]
        problems += [
            Problem(path, f"{reference} has attribute {attribute!r}, which is no field of {name}: it would be lost")
            for attribute, one in found.items()
            if attribute not in declared and one.init
        ]
        for attribute, one in found.items():
            wanted = declared.get(attribute)
            if wanted is None:
                continue
            if not one.init or one.alias != attribute:
                problems.append(Problem(path, f"{reference}.{attribute} must be an __init__ argument of that name"))
            annotation = self.field_annotation(wanted)
            if not same_annotation(hints.get(attribute), annotation):
                problems.append(
                    Problem(
                        path,
                        f"{reference}.{attribute} is annotated {describe(hints.get(attribute))}, "
                        f"the contract says {describe(annotation)}",
                    )
                )
            default = () if wanted.repeated else None if wanted.optional else attrs.NOTHING
            if one.default != default:
                needs = "no default: it must be given" if default is attrs.NOTHING else f"the default {default!r}"
                problems.append(Problem(path, f"{reference}.{attribute} needs {needs}"))
        return problems


def same_annotation(left: object, right: object) -> bool:
    """Whether two annotations mean the same; ``Optional[X]`` equals ``X | None``, in any order."""
    unions = (typing.Union, python_types.UnionType)
    if typing.get_origin(left) in unions and typing.get_origin(right) in unions:
        return set(typing.get_args(left)) == set(typing.get_args(right))
    return left == right


def describe(annotation: object) -> str:
    """An annotation as a person writes it."""
    if annotation is None:
        return "nothing"
    return annotation.__qualname__ if type(annotation) is type else str(annotation).replace("typing.", "")
