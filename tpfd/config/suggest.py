"""What to say about a key that is not known: where it belongs, or which one was probably meant."""

from __future__ import annotations

import difflib
from typing import Final

from tpfd.config.keys import KEYS, SECTIONS, children

_FRAMEWORK: Final = {key.spec.framework: path for path, key in KEYS.items() if key.spec.framework}
_ALL: Final = (*SECTIONS, *KEYS)


def unknown_key(section: str, name: str) -> str:
    """The message for an unknown key.

    Args:
        section: path of the section it stands in; empty is the top level.
        name: as written.

    Returns:
        One sentence without the path.
    """
    path = f"{section}.{name}" if section else name
    if path in _ALL:
        return f"key {name!r} is written with dots; write {' and '.join(name.split('.'))} one level below the other"
    if path in _FRAMEWORK or name in _FRAMEWORK:
        here = _FRAMEWORK.get(path) or _FRAMEWORK[name]
        return f"unknown key {path!r}: the framework's property is {here} here"
    kebab = _kebab(name)
    homes = [home for home in _ALL if home.rpartition(".")[2] == kebab and home.rpartition(".")[0] != section]
    if name not in children(section) and kebab in children(section):
        return f"unknown key {path!r}: write {kebab}"
    if homes and not _nearest(kebab, children(section), 0.8):
        return f"unknown key {path!r}: it belongs to {' or '.join(homes[:3])}"
    siblings = children(section)
    prefix = f"{section}." if section else ""
    if meant := _nearest(kebab, siblings, 0.5):
        return f"unknown key {path!r}: nearest is {prefix}{meant}"
    if elsewhere := _nearest(kebab, tuple(one.rpartition(".")[2] for one in _ALL), 0.75):
        home = next(one for one in _ALL if one.rpartition(".")[2] == elsewhere)
        return f"unknown key {path!r}: nearest is {home}"
    anything = _nearest(kebab, siblings, 0.0)
    return f"unknown key {path!r}: nearest is {prefix}{anything}; known here are {', '.join(siblings)}"


def unknown_path(path: str) -> str:
    """The message for a dotted path that is no key, as a flag may give it."""
    if path in SECTIONS:
        return f"{path!r} is a section; name a key in it: {', '.join(f'{path}.{name}' for name in children(path))}"
    section, _, name = path.rpartition(".")
    while section and section not in SECTIONS:
        section, _, name = section.rpartition(".")
    return unknown_key(section, name)


def meant_variable(variable: str) -> str:
    """The variable that was probably meant by a name with ``TPFD_`` in front that is none of ours.

    Returns:
        Its name, or empty when nothing is near: the name is then somebody else's.
    """
    names = {key.environment: key.environment.replace("__", "_") for key in KEYS.values()}
    plain = variable.replace("__", "_")
    for name, its_plain in names.items():
        if its_plain == plain:
            return name
    return _nearest(variable, tuple(names), 0.4 if "__" in variable else 0.9)


def _kebab(name: str) -> str:
    """``maxRetries`` and ``max_retries`` -> ``max-retries``."""
    spaced = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return spaced.replace("_", "-").strip("-")


def _nearest(word: str, words: tuple[str, ...], at_least: float) -> str:
    return next(iter(difflib.get_close_matches(word, words, 1, at_least)), "")
