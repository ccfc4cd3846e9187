"""Walks a YAML tree, collecting every problem instead of stopping at the first.

A `Section` is one mapping with its path. Its readers give the value, or the default after noting what is wrong, so that
one pass over a file finds all of its mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from attrs import define, field, frozen

from tpfd.durations import parse_duration_ms
from tpfd.errors import Problem
from tpfd.pipeline.names import did_you_mean
from tpfd.pipeline.yaml_text import Substituted, plain_scalar

E = TypeVar("E", bound=StrEnum)

_PYTHON_REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@define
class Report:
    """What was found in one file.

    Attributes:
        origin: the file's name.
        lines: line by path.
        problems: in the order they were found.
        unused: paths of keys that are known but have no meaning here.
    """

    origin: str
    lines: Mapping[str, int]
    problems: list[Problem] = field(factory=list)
    unused: list[str] = field(factory=list)

    def problem(self, path: str, message: str) -> None:
        """Note what is wrong at a path, with the line of the nearest thing that was written."""
        at = path
        while at not in self.lines and at != "$":
            at = at[: max(at.rfind("."), at.rfind("["), 1)]
        line = self.lines.get(at)
        where = f"{self.origin}:{line}" if line else self.origin
        self.problems.append(Problem(path, f"{where}: {message}"))

    def root(self, tree: object, known: Iterable[str], java_only: Iterable[str]) -> Section:
        return self.section(tree, "$", known, java_only)

    def section(self, value: object, path: str, known: Iterable[str] | None, java_only: Iterable[str] = ()) -> Section:
        """A mapping at a path.

        Args:
            value: what stands there; None is an empty mapping.
            path: where.
            known: keys that mean something; None: any key does.
            java_only: keys that are accepted and listed as not used.
        """
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.problem(path, f"a mapping is needed here, not {kind_of(value)}")
            value = {}
        section = Section(self, path, value)
        if known is not None:
            section.check_keys(frozenset(known), frozenset(java_only))
        return section


@frozen
class Section:
    """One mapping of the file."""

    report: Report
    path: str
    values: Mapping[str, object]

    def check_keys(self, known: frozenset[str], java_only: frozenset[str]) -> None:
        for key in self.values:
            if key in java_only:
                self.report.unused.append(self.at(key))
            elif key not in known:
                self.problem(f"unknown key {key!r}{did_you_mean(key, known)}", key)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def at(self, key: str) -> str:
        return f"{self.path}.{key}"

    def problem(self, message: str, key: str | None = None) -> None:
        self.report.problem(self.path if key is None else self.at(key), message)

    def text(self, key: str) -> str | None:
        """Text that is not blank; None where the key is absent or wrong."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.problem(f"text is needed here, not {kind_of(value)}", key)
            return None
        if not value.strip():
            self.problem("must not be blank", key)
            return None
        return str(value)

    def required_text(self, key: str) -> str | None:
        if self.values.get(key) is None:
            self.problem(f"{key!r} is missing")
        return self.text(key)

    def blank_text(self, key: str) -> str:
        """Text that may be empty; "" where the key is absent or wrong."""
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.problem(f"text is needed here, not {kind_of(value)}", key)
            return ""
        return str(value)

    def flag(self, key: str) -> bool | None:
        value = unwrapped(self.values.get(key))
        if value is None or isinstance(value, bool):
            return value
        self.problem(f"true or false is needed here, not {kind_of(value)}", key)
        return None

    def count(self, key: str, *, minimum: int = 0) -> int | None:
        """A whole number."""
        value = unwrapped(self.values.get(key))
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.problem(f"a whole number is needed here, not {kind_of(value)}", key)
            return None
        if value < minimum:
            self.problem(f"must be {minimum} or more, not {value}", key)
            return None
        return value

    def decimal(self, key: str) -> Decimal | None:
        value = unwrapped(self.values.get(key))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            self.problem(f"a number is needed here, not {kind_of(value)}", key)
            return None
        return Decimal(value)

    def duration_ms(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        try:
            return parse_duration_ms(value)
        except ValueError as error:
            self.problem(str(error), key)
            return None

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts without doubles."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.problem(f"a list is needed here, not {kind_of(value)}", key)
            return ()
        found: list[str] = []
        for index, one in enumerate(value):
            path = f"{self.at(key)}[{index}]"
            if not isinstance(one, str) or not one.strip():
                self.report.problem(path, f"text is needed here, not {kind_of(one)}")
            elif one in found:
                self.report.problem(path, f"{one!r} stands here twice")
            else:
                found.append(str(one))
        return tuple(found)

    def choice(self, key: str, options: type[E], aliases: Mapping[str, E] | None = None) -> E | None:
        """One of an enum's values; upper or lower case does not matter."""
        text = self.text(key)
        if text is None:
            return None
        by_name: dict[str, E] = {one.value.lower(): one for one in options}
        by_name.update({name.lower(): one for name, one in (aliases or {}).items()})
        found = by_name.get(text.lower())
        if found is None:
            names = [one.value for one in options]
            self.problem(f"{text!r} is not one of {', '.join(names)}{did_you_mean(text, names)}", key)
        return found

    def python(self, key: str) -> str | None:
        """A reference ``module:name``."""
        text = self.text(key)
        if text is not None and not is_python_reference(text):
            self.problem(f"{text!r} is not a Python reference; write module:function", key)
            return None
        return text

    def section(self, key: str, known: Iterable[str] | None, java_only: Iterable[str] = ()) -> Section:
        """The mapping under a key; an empty one where it is absent."""
        return self.report.section(self.values.get(key), self.at(key), known, java_only)

    def sections(self, key: str, read: Callable[[str, Section], None]) -> None:
        """Call `read` with name and mapping for every entry of the mapping under a key."""
        for name, value in self.section(key, None).values.items():
            read(name, self.report.section(value, f"{self.at(key)}.{name}", None))

    def items(self, key: str) -> list[tuple[str, object]]:
        """Path and value of every entry of the list under a key."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problem(f"a list is needed here, not {kind_of(value)}", key)
            return []
        return [(f"{self.at(key)}[{index}]", one) for index, one in enumerate(value)]

    def without(self, *keys: str) -> dict[str, object]:
        """What else stands in the mapping, as written."""
        return {key: as_written(value) for key, value in self.values.items() if key not in keys}

    def free(self, key: str) -> dict[str, object]:
        """The mapping under a key whose keys are not ours to check, as written."""
        return self.section(key, None).without()

    def ignore(self, *keys: str) -> None:
        """List keys as not used, where they stand."""
        self.report.unused.extend(self.at(key) for key in keys if key in self.values)


def is_python_reference(text: str) -> bool:
    return _PYTHON_REFERENCE.fullmatch(text) is not None


def unwrapped(value: object) -> object:
    """A value from the environment is text; where a number or switch is wanted it means what it would unquoted."""
    return plain_scalar(value) if isinstance(value, Substituted) else value


def as_written(value: object) -> object:
    """A tree without the mark of what came from the environment."""
    match value:
        case Substituted():
            return str(value)
        case dict():
            return {key: as_written(one) for key, one in value.items()}
        case list():
            return [as_written(one) for one in value]
        case _:
            return value


def kind_of(value: object) -> str:
    """What stands there, for a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the switch {str(value).lower()}"
        case int() | Decimal():
            return f"the number {value}"
        case str():
            return f"the text {value[:40]!r}"
        case list():
            return "a list"
        case _:
            return "a mapping"
