"""What sources share: which names they take, what makes an object the same one, its bytes as text."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tpfd.errors import MalformedError, TooLarge

UNFINISHED = (".*", "~*", "*.tmp", "*.part")
"""Names that programs give to files that they have not finished."""


def name_filter(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Tells whether a name is to be taken: globs, case-sensitive; `exclude` and `UNFINISHED` win."""
    included, excluded = _matcher(include), _matcher((*exclude, *UNFINISHED))
    return lambda name: included(name) and not excluded(name)


def _matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    pattern = re.compile("|".join(fnmatch.translate(glob) for glob in globs) or r"(?!)")
    return lambda name: pattern.match(name) is not None


def checked_fields(fields: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The identity fields of a source.

    Raises:
        ValueError: there are none, or one is not among those that its provider knows.
    """
    unknown = [name for name in fields if name not in known]
    if unknown or not fields:
        raise ValueError(f"identity fields {list(fields)}: known here are {', '.join(known)}")
    return tuple(fields)


def identity_of(fields: Sequence[str], values: Mapping[str, object]) -> str:
    """Sha256 hex of the chosen fields of an object."""
    chosen = json.dumps([[name, values[name]] for name in fields])
    return hashlib.sha256(chosen.encode()).hexdigest()


def check_size(key: str, size_bytes: int, max_bytes: int) -> None:
    """Refuses to read an object that is too large to be held.

    Raises:
        TooLarge: it has more than `max_bytes`.
    """
    if size_bytes > max_bytes:
        raise TooLarge(
            f"{key} has {size_bytes} bytes, more than {max_bytes}; use payload mode reference",
            code="object_too_large",
        )


def text_of(key: str, data: bytes) -> str:
    """An object's bytes as UTF-8, without a byte order mark.

    Raises:
        MalformedError: they are not UTF-8; names the position.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError(
            f"{key}: line {line}, byte {error.start} of the file is not UTF-8; save it as UTF-8"
        ) from error
