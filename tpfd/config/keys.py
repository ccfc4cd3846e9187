"""All keys as a flat table, read from the classes of `tpfd.config.model`."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import attrs

from tpfd.config.fields import SPEC, Kind, SectionSpec, Spec
from tpfd.config.model import Config

T = TypeVar("T")


@attrs.frozen
class Key:
    """One thing that can be set.

    Attributes:
        path: where it stands in YAML, as ``store.sqlite.path``.
        attributes: where it stands in `Config`, as ``("store", "sqlite", "path")``.
        spec: kind, range, documentation.
        default: the value when nobody sets it, in the attribute's type and unit.
        choices: the words allowed, for `Kind.CHOICE`; else empty.
    """

    path: str
    attributes: tuple[str, ...]
    spec: Spec
    default: object
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def environment(self) -> str:
        """Name of the variable that sets it: ``TPFD_STORE__SQLITE__PATH``."""
        return environment_name(self.path)

    def value_in(self, config: Config) -> object:
        """Its value there, in the attribute's type and unit."""
        return functools.reduce(getattr, self.attributes, config)


def environment_name(path: str) -> str:
    """``store.sqlite.group-commit-max`` -> ``TPFD_STORE__SQLITE__GROUP_COMMIT_MAX``."""
    return "TPFD_" + path.replace(".", "__").replace("-", "_").upper()


def _walk(cls: type[Any], prefix: str, attributes: tuple[str, ...]) -> Iterator[Key | tuple[str, SectionSpec]]:
    hints = typing.get_type_hints(cls)
    for field in attrs.fields(cls):
        spec = field.metadata[SPEC]
        kind_suffix = spec.kind.unit_suffix if isinstance(spec, Spec) else ""
        path = prefix + field.name.removesuffix(kind_suffix).rstrip("_").replace("_", "-")
        here = (*attributes, field.name)
        if isinstance(spec, SectionSpec):
            yield path, spec
            yield from _walk(hints[field.name], path + ".", here)
            continue
        factory = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]  # the stubs call it a function
        default = field.default.factory() if factory else field.default
        choices = typing.get_args(hints[field.name]) if spec.kind is Kind.CHOICE else ()
        yield Key(path, here, spec, default, choices)


ENTRIES: Final = tuple(_walk(Config, "", ()))
"""Sections (as path and spec) and keys in the order in which they are declared, each section before its keys."""

KEYS: Final[Mapping[str, Key]] = {entry.path: entry for entry in ENTRIES if isinstance(entry, Key)}
"""Every key by path."""

SECTIONS: Final[Mapping[str, str]] = {entry[0]: entry[1].doc for entry in ENTRIES if not isinstance(entry, Key)}
"""Every section's documentation by path."""


def children(section: str) -> tuple[str, ...]:
    """Names that may stand directly in a section; ``""`` is the top level."""
    prefix = f"{section}." if section else ""
    paths = (path for path in (*SECTIONS, *KEYS) if path.startswith(prefix))
    return tuple(path[len(prefix) :] for path in paths if "." not in path[len(prefix) :])


def build(values: Mapping[str, object]) -> Config:
    """Make a `Config` from values by path; what is missing keeps its default.

    Args:
        values: already in the attribute's type and unit.
    """
    config = Config()
    for path, value in values.items():
        config = _with(config, KEYS[path].attributes, value)
    return config


def _with(part: T, attributes: tuple[str, ...], value: object) -> T:
    """A copy of a section with one value inside it replaced."""
    first, rest = attributes[0], attributes[1:]
    new = _with(getattr(part, first), rest, value) if rest else value
    return attrs.evolve(part, **{first: new})  # type: ignore[misc]  # a section is always an attrs class
