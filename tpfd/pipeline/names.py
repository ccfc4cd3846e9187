"""How names are turned into each other: ids, generated names, attributes; and what a typo most likely meant."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ACRONYM_END = re.compile(r"(?<=[A-Z])(?=[A-Z][a-z])")
_TAKEN = frozenset({"self", "cl", "converter"})
"""Parameter names of the functions that attrs and cattrs generate for a class."""

_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")


def words(name: str) -> list[str]:
    """Split ``Await Payment Provider``, ``await-payment-provider`` or ``awaitPaymentProvider`` into its words."""
    return [word for part in _SEPARATORS.split(name) for word in _HUMP.split(part) if word]


def kebab(name: str) -> str:
    """``Await Payment Provider`` -> ``await-payment-provider``."""
    return "-".join(word.lower() for word in words(name))


def pascal(name: str) -> str:
    """``Await payment provider`` -> ``AwaitPaymentProvider``."""
    return "".join(word[0].upper() + word[1:] for word in words(name))


def service_names(step_name: str) -> frozenset[str]:
    """The framework's generated names of a step.

    ``Finalize Order`` -> ``ProcessFinalizeOrderService``; a name that begins with ``Process`` does not get it twice in
    the framework, but may in a client, so both forms are given.
    """
    stem = pascal(step_name)
    names = {f"Process{stem}Service"}
    if stem.startswith("Process"):
        names.add(f"{stem}Service")
    return frozenset(names)


def attribute(field_name: str) -> str:
    """Python attribute of a field: ``csvId`` -> ``csv_id``, ``from`` -> ``from_``."""
    snake = _HUMP.sub("_", _ACRONYM_END.sub("_", field_name)).lower()
    return f"{snake}_" if keyword.iskeyword(snake) or snake in _TAKEN else snake


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a typo most likely meant, or None where nothing is close."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'input'?``, or a list of what is known where nothing is close."""
    names = sorted(str(one) for one in known)
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near!r}?"
    return f"; known here: {', '.join(names)}" if names else ""
