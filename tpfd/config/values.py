"""One value: from what was written to what the attribute holds, and back to text for people.

Text that came from the environment, a flag or ``${NAME}`` is `Substituted`: those know no types, so ``"64"`` may be a
whole number there and a list is read as YAML (``[a, b]``). What was quoted in the file is text and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final, Literal, TypeVar, cast
from urllib.parse import urlsplit

from tpfd.config.fields import Address, Kind, SecretRef
from tpfd.config.keys import Key
from tpfd.durations import format_duration, parse_duration_ms, parse_size_bytes
from tpfd.errors import ConfigError, Problem
from tpfd.pipeline.yaml_text import Substituted, plain_scalar, read_yaml

MASK: Final = "********"

T = TypeVar("T", int, float)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SECRET_SOURCES = ("file", "env", "credential")


def read_value(key: Key, written: object) -> object:
    """Read the value of a key.

    Args:
        key: what it is for.
        written: as it stands in the YAML tree, or `Substituted` text.

    Returns:
        The value in the attribute's type and unit.

    Raises:
        ConfigError: it does not fit; every problem with its path below the key.
    """
    path = f"$.{key.path}"
    if isinstance(written, Substituted):
        written = _untyped(key, written)
    if written is None:
        raise ConfigError([Problem(path, f"has no value; write a {key.spec.kind}, or take the line out")])
    match key.spec.kind:
        case Kind.TEXTS:
            return _texts(path, written)
        case Kind.MAP:
            return _map(path, written)
        case Kind.SECRETS:
            return _secrets(path, written)
        case _:
            try:
                return _scalar(key, written)
            except ValueError as error:
                raise ConfigError([Problem(path, str(error))]) from error


def _untyped(key: Key, text: Substituted) -> object:
    match key.spec.kind:
        case Kind.TEXTS | Kind.MAP | Kind.SECRETS:
            try:
                return read_yaml(str(text), "as YAML")
            except ConfigError as error:
                raise ConfigError(
                    [Problem(f"$.{key.path}{one.path[1:]}", one.message) for one in error.problems]
                ) from error
        case Kind.INTEGER | Kind.NUMBER | Kind.SWITCH:
            return plain_scalar(text)
        case _:
            return text


def _scalar(key: Key, written: object) -> object:
    spec = key.spec
    match spec.kind:
        case Kind.DURATION:
            return _in_range(key, parse_duration_ms(written, zero_ok=True))  # the range says whether zero will do
        case Kind.SIZE:
            return _in_range(key, parse_size_bytes(written))
        case Kind.INTEGER if isinstance(written, int) and not isinstance(written, bool):
            return _in_range(key, written)
        case Kind.NUMBER if isinstance(written, int | Decimal) and not isinstance(written, bool):
            return _in_range(key, float(written))
        case Kind.SWITCH if isinstance(written, bool):
            return written
        case Kind.CHOICE if written in key.choices:
            return written
        case Kind.CHOICE:
            raise ValueError(f"{shown(written)} is not one of {', '.join(key.choices)}")
        case Kind.TEXT if isinstance(written, str):
            return _clean(written)
        case Kind.URL if isinstance(written, str):
            return _url(_clean(written))
        case Kind.ADDRESS if isinstance(written, str):
            return _address(_clean(written))
        case Kind.TEXT | Kind.URL | Kind.ADDRESS if isinstance(written, int | Decimal):
            raise ValueError(f"{shown(written)} is not text; put it in quotes")
        case _:
            raise ValueError(f"{shown(written)} is not a {spec.kind}")


def _in_range(key: Key, value: T) -> T:
    minimum, maximum = key.spec.minimum, key.spec.maximum
    assert minimum is not None
    assert maximum is not None
    if minimum <= value <= maximum:
        return value
    side, limit = ("at least", minimum) if value < minimum else ("at most", maximum)
    raise ValueError(f"{show(key, value)} is outside its range: {side} {show(key, limit)}")


def _clean(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError(f"{shown(text)} has a line break or another control character in it")
    return str(text)


def _url(text: str) -> str:
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or " " in text:
        raise ValueError(f"{shown(text)} is not a URL with http:// or https:// and a host")
    if parts.port == 0:  # reading the port also refuses one that is not a number or too large, with a ValueError
        raise ValueError(f"{shown(text)} names port 0")
    return text


def _address(text: str) -> Address:
    match = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>[0-9]{1,5})", text, re.ASCII)
    if match is None:
        raise ValueError(f"{shown(text)} is not host:port, as 127.0.0.1:8081 or [::1]:8081")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"port {port} is outside its range: at most 65535")
    return Address(match["six"] or match["host"], port)


def _texts(path: str, written: object) -> tuple[str, ...]:
    if not isinstance(written, list):
        raise ConfigError([Problem(path, f"{shown(written)} is not a list; write [a, b]")])
    _all_texts((f"{path}[{index}]", item) for index, item in enumerate(written))
    return tuple(str(item) for item in written)


def _map(path: str, written: object) -> dict[str, str]:
    if not isinstance(written, dict):
        raise ConfigError([Problem(path, f"{shown(written)} is not a map; write {{name: text}}")])
    _all_texts((f"{path}.{name}", item) for name, item in written.items())
    return {name: str(item) for name, item in written.items()}


def _all_texts(items: Iterable[tuple[str, object]]) -> None:
    problems = []
    for path, item in items:
        if not isinstance(item, str) or not item:
            problems.append(Problem(path, f"{shown(item)} is not text; put it in quotes"))
        elif _CONTROL.search(item):
            problems.append(Problem(path, f"{shown(item)} has a line break or another control character in it"))
    if problems:
        raise ConfigError(problems)


def _secrets(path: str, written: object) -> tuple[SecretRef, ...]:
    if not isinstance(written, list):
        raise ConfigError([Problem(path, "is not a list; write [{file: PATH}], one entry per secret")])
    problems: list[Problem] = []
    references = []
    for index, item in enumerate(written):
        here = f"{path}[{index}]"
        if not isinstance(item, dict):
            # what stands here may be the secret itself: it must not be shown
            message = "is not a reference; secrets do not stand in the file: write {file: PATH} or {env: NAME}"
            problems.append(Problem(here, message))
            continue
        sources = [name for name in item if name in _SECRET_SOURCES]
        unknown = [name for name in item if name not in (*_SECRET_SOURCES, "kid")]
        if unknown or len(sources) != 1:
            message = f"has the keys {', '.join(item) or 'none'}; write exactly one of {', '.join(_SECRET_SOURCES)}"
            problems.append(Problem(here, f"{message}, and kid if there are several secrets"))
            continue
        if not all(isinstance(value, str) and value and not _CONTROL.search(value) for value in item.values()):
            problems.append(Problem(here, "has a value that is not plain text; put it in quotes"))
            continue
        source = cast('Literal["file", "env", "credential"]', sources[0])
        references.append(SecretRef(source, str(item[source]), str(item.get("kid", ""))))
    if problems:
        raise ConfigError(problems)
    return tuple(references)


def show(key: Key, value: object) -> str:
    """Write a value for people: units back on, secrets masked, on one line."""
    match value:
        case bool():
            return str(value).lower()
        case int() if key.spec.kind is Kind.DURATION:
            return format_duration(value)
        case int() if key.spec.kind is Kind.SIZE:
            return _size_text(value)
        case dict():
            items = (f"{name}: {MASK if key.spec.masked else masked(one)}" for name, one in value.items())
            return "{" + ", ".join(items) + "}"
        case tuple() if key.spec.kind is Kind.SECRETS:
            return "[" + ", ".join(f"{{{reference}}}" for reference in value) + "]"
        case tuple():
            return "[" + ", ".join(map(masked, value)) + "]"
        case _:
            return masked(str(value))


def _size_text(size_bytes: int) -> str:
    for unit, unit_bytes in _UNITS:
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return f"{size_bytes}B"


def masked(text: str) -> str:
    """Hide user and password inside a URL."""
    return _USER_INFO.sub(MASK, text)


def shown(written: object) -> str:
    """What was written, for a message: short, on one line, without a password."""
    match written:
        case dict():
            return "a map"
        case list():
            return "a list"
        case bool():
            return str(written).lower()
        case str():
            text = ascii(masked(written)) if _CONTROL.search(written) else repr(masked(str(written)))
            return text if len(text) <= 120 else text[:117] + "..."
        case _:
            return str(written)
