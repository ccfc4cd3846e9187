"""JSON in, strictly and exactly.

Python's own parser is lenient where money is at stake: of two equal keys the last one wins, ``NaN`` is a number, and
``0.1`` becomes the nearest binary float. Here a doubled key, ``NaN``, ``Infinity``, a lone surrogate and anything too
deep are refused, and a number with a point or an exponent becomes the `decimal.Decimal` that was written.

Source:
    RFC 8259, with the stricter readings of RFC 7493 (I-JSON) for doubled names and surrogates.
"""

from __future__ import annotations

import decimal
import json
from decimal import Decimal
from typing import NoReturn

from tpfd.errors import MalformedError

MAX_DEPTH = 64


class ExponentNumber(Decimal):
    """A number that was written with an exponent, as ``1e3``: exact, but not how an amount of money is written."""

    __slots__ = ()


def parse_json(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> object:
    """Parse one JSON document.

    Args:
        data: the whole document; bytes must be UTF-8 without a byte order mark.
        max_depth: objects and lists that may stand in each other.

    Returns:
        dict, list, str, int, bool, None, and `Decimal` for every number with a point or an exponent.

    Raises:
        MalformedError: it is not such a document; the message says what and where.
    """
    text = _decoded(data) if isinstance(data, bytes) else data
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise MalformedError("not JSON: there is nothing") from None
        what = error.msg[0].lower() + error.msg[1:]
        raise MalformedError(f"not JSON: {what} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError as error:  # an integer of thousands of digits
        raise MalformedError(f"not usable JSON: {error}") from None
    # A document with few brackets cannot be deep, and one without \ud cannot hold a surrogate: nearly all are neither.
    may_be_deep = text.count("{") + text.count("[") > max_depth
    may_be_split = "\\ud" in text or "\\uD" in text or not _encodable(text)
    if may_be_deep or may_be_split:
        _inspect(value, max_depth)
    return value


def json_text(value: object) -> str:
    """What `parse_json` gave, as compact JSON text again: every number with the digits that were written."""
    match value:
        case dict():
            return "{" + ",".join(f"{_quoted(name)}:{json_text(one)}" for name, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(json_text, value)) + "]"
        case Decimal():
            return str(value)
        case _:
            return _quoted(value)


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from None
    if text.startswith("\ufeff"):
        raise MalformedError("not JSON: a byte order mark stands before the document; send UTF-8 without it")
    return text


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise MalformedError(f"key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return found


def _number(text: str) -> Decimal:
    try:
        return ExponentNumber(text) if "e" in text or "E" in text else Decimal(text)
    except decimal.InvalidOperation:
        raise MalformedError(f"number {text[:40]} is out of range") from None


def _constant(name: str) -> NoReturn:
    raise MalformedError(f"{name} is not a JSON number")


_quoted = json.JSONEncoder(ensure_ascii=False).encode
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)


def _encodable(text: str) -> bool:
    """Whether a text has no lone surrogate; cheap for ASCII, which most payloads are."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _inspect(document: object, max_depth: int) -> None:
    """Walk without recursion: refuse what is too deep, and texts that UTF-8 cannot carry."""
    level: list[object] = [document]
    depth = 0
    while level:
        depth += 1
        below: list[object] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, (dict, list)):
                if depth > max_depth:
                    raise _too_deep(max_depth)
                if isinstance(value, dict):
                    below.extend(value.keys())
                    below.extend(value.values())
                else:
                    below.extend(value)
        level = below


def _check_text(text: str) -> None:
    if not _encodable(text):
        raise MalformedError("a text holds half of a surrogate pair, which is no character")


def _too_deep(max_depth: int) -> MalformedError:
    return MalformedError(f"more than {max_depth} objects or lists stand in each other")
