"""YAML as a tree of plain values, without the traps of YAML 1.1.

A plain (unquoted) scalar is ``true``/``false``, null, a whole number or a decimal number; *everything else is text*:
``on``, ``yes``, ``1:30``, ``2026-11-30``, ``012`` and ``1_000`` stay what they look like. A number with a point becomes
`decimal.Decimal`, so that ``1.10`` is still ``1.10``. Keys are always text. A key written twice is an error, and so is
a document that unfolds (through aliases) into far more than was written.

The tree is built from parser events with an explicit stack: no recursion, so depth is a number we choose and not the
interpreter's limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import NoReturn

import yaml
from attrs import define, field, frozen

from tpfd.errors import ConfigError, Problem

MAX_DEPTH = 64
MAX_NODES = 200_000
"""Values in one document, aliases counted at every use; a pipeline of 1,000 steps has about 30,000."""

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][-+]?[0-9]{1,4})?", re.ASCII)
_WORDS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_STR_TAG = "tag:yaml.org,2002:str"
_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_REFERENCE = re.compile(
    r"\$(?P<escape>\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
    r"|(?P<open>\$\{)"
)


class Substituted(str):
    """Text that came (at least partly) from the environment.

    The environment knows only text, so a reader that wants a number or a switch may read this one with `plain_scalar`,
    where text that was quoted in the file would be a wrong type.
    """

    __slots__ = ()


@frozen
class Located:
    """A tree and where its parts were written.

    Attributes:
        tree: dicts, lists, str, bool, int, Decimal and None.
        lines: line number (from 1) by path, as ``{"$.steps[0].name": 12}``; the line of a value's key where it has one.
    """

    tree: object
    lines: Mapping[str, int]


def plain_scalar(text: str) -> str | int | bool | Decimal | None:
    """What an unquoted scalar means.

    Returns:
        None, a bool, an int or a Decimal where the text is exactly one of these, else the text itself.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= 20:
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    return text


def read_yaml(text: str, origin: str) -> object:
    """Read one YAML document.

    Args:
        text: the whole document; an empty one is None.
        origin: the file's name, for messages.

    Returns:
        dicts with text keys in written order, lists, str, bool, int, `decimal.Decimal` and None.

    Raises:
        ConfigError: it is not YAML, has several documents, a key twice, a merge key, a tag of its own, or is too deep
            or too large. Every doubled key is listed.
    """
    return read_located(text, origin).tree


def read_located(text: str, origin: str) -> Located:
    """As `read_yaml`, with the line of every value.

    Raises:
        ConfigError: as `read_yaml`.
    """
    builder = _Builder(origin)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"{origin}:{mark.line + 1}" if mark else origin
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError([*builder.problems, Problem("$", f"{line}: not YAML: {reason}")]) from error
    except yaml.reader.ReaderError as error:
        line = f"{origin}:{text.count(chr(10), 0, error.position) + 1}"
        raise ConfigError([Problem("$", f"{line}: not YAML: {error.reason}")]) from error
    if builder.problems:
        raise ConfigError(builder.problems)
    return Located(builder.root, builder.lines)


@define
class _Open:
    """A list or mapping whose end has not been seen yet."""

    value: list[object] | dict[str, object]
    path: str
    anchor: str | None
    key: str | None = None
    key_lines: dict[str, int] = field(factory=dict)


@define
class _Builder:
    """Turns parser events into a tree. Stops the parse only where going on is pointless."""

    origin: str
    root: object = None
    lines: dict[str, int] = field(factory=dict)
    problems: list[Problem] = field(factory=list)
    documents: int = 0
    nodes: int = 0
    stack: list[_Open] = field(factory=list)
    anchors: dict[str, tuple[object, int]] = field(factory=dict)

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    self._stop(line, "a second document starts here; one file holds one document")
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.MappingStartEvent():
                self._begin({}, event, line)
            case yaml.SequenceStartEvent():
                self._begin([], event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case yaml.AliasEvent():
                self._alias(event, line)
            case _:  # stream and document brackets carry nothing
                pass

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._key(top, event.value, line)
            return
        if event.tag not in (None, "!", _STR_TAG):
            self._stop(line, f"tag {event.tag} is not known here; write plain values")
        unquoted = event.implicit[0] and event.tag is None
        value = plain_scalar(event.value) if unquoted else event.value
        self._place(value, 1, line)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)

    def _key(self, top: _Open, key: str, line: int) -> None:
        if key == "<<":
            self._stop(line, "merge keys (<<) are not part of YAML 1.2; write the fields out", f"{top.path}.<<")
        first = top.key_lines.setdefault(key, line)
        if first != line or key in top.value:
            message = f"{self.origin}:{line}: key {key!r} stands here a second time, first in line {first}"
            self.problems.append(Problem(f"{top.path}.{key}", message))
        top.key = key
        self.lines[f"{top.path}.{key}"] = line

    def _begin(self, value: list[object] | dict[str, object], event: yaml.CollectionStartEvent, line: int) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._stop(line, "a key must be plain text, not a list or mapping", top.path)
        if event.tag is not None:
            self._stop(line, f"tag {event.tag} is not known here; write plain values")
        if len(self.stack) >= MAX_DEPTH:
            self._stop(line, f"more than {MAX_DEPTH} levels deep")
        path = self._path_of_next()
        self._place(value, 1, line)
        self.stack.append(_Open(value, path, event.anchor))

    def _end(self) -> None:
        closed = self.stack.pop()
        if closed.anchor is not None:
            self.anchors[closed.anchor] = (closed.value, _node_count(closed.value))

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        if event.anchor is None or event.anchor not in self.anchors:
            self._stop(line, f"alias *{event.anchor} names nothing that was finished before it")
        value, nodes = self.anchors[event.anchor]
        self._place(value, nodes, line)

    def _path_of_next(self) -> str:
        if not self.stack:
            return "$"
        top = self.stack[-1]
        return f"{top.path}.{top.key}" if isinstance(top.value, dict) else f"{top.path}[{len(top.value)}]"

    def _place(self, value: object, nodes: int, line: int) -> None:
        """Put a value where the next one belongs, counting what it unfolds to."""
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            self._stop(line, f"more than {MAX_NODES} values, aliases counted at every use")
        if not self.stack:
            self.root = value
            self.lines["$"] = line
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            self.lines[self._path_of_next()] = line
            top.value.append(value)
            return
        assert top.key is not None
        top.value[top.key] = value
        top.key = None

    def _stop(self, line: int, message: str, path: str = "") -> NoReturn:
        raise ConfigError([*self.problems, Problem(path or self._path_of_next(), f"{self.origin}:{line}: {message}")])


def _node_count(value: object) -> int:
    """Values in a finished tree; the tree is at most `MAX_NODES` by then, because each part was counted when placed."""
    count, open_values = 0, [value]
    while open_values:
        one = open_values.pop()
        count += 1
        if isinstance(one, dict):
            open_values.extend(one.values())
        elif isinstance(one, list):
            open_values.extend(one)
    return count


def substitute(tree: object, environ: Mapping[str, str]) -> object:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in every text value (never in keys).

    ``$${`` stands for a literal ``${``. A name that is set but empty counts as set.

    Args:
        tree: as `read_yaml` returns it; it is not changed.
        environ: names and values.

    Returns:
        The tree with texts replaced; those are `Substituted`.

    Raises:
        ConfigError: every name that is not set and has no default, and every ``${`` that is not closed, with its path.
    """
    problems: list[Problem] = []

    def text_at(path: str, text: str) -> str:
        def one(match: re.Match[str]) -> str:
            if match["escape"]:
                return "${"
            if match["open"]:
                problems.append(Problem(path, "'${' starts no ${NAME} or ${NAME:-default}; as plain text write $${"))
                return ""
            name, default = match["name"], match["default"]
            if name in environ:
                return environ[name]
            if default is None:
                message = f"environment variable {name} is not set; set it, or write ${{{name}:-default}}"
                problems.append(Problem(path, message))
            return default or ""

        return Substituted(_REFERENCE.sub(one, text)) if "${" in text else text

    replaced = _map_texts(tree, "$", text_at)
    if problems:
        raise ConfigError(problems)
    return replaced


def _map_texts(value: object, path: str, text_at: Callable[[str, str], str]) -> object:
    match value:
        case str():
            return text_at(path, value)
        case dict():
            return {key: _map_texts(one, f"{path}.{key}", text_at) for key, one in value.items()}
        case list():
            return [_map_texts(one, f"{path}[{index}]", text_at) for index, one in enumerate(value)]
        case _:
            return value
