"""The reference file ``etc/tpfd.yaml`` and the JSON schema for editors, both made from the declarations."""

from __future__ import annotations

import textwrap
from typing import Any, Final

from tpfd.config.fields import MAX_COUNT, Kind
from tpfd.config.keys import ENTRIES, KEYS, SECTIONS, Key, children
from tpfd.config.support import MISSING_PARTS
from tpfd.config.values import show
from tpfd.durations import MAX_DURATION_MS

_WIDTH: Final = 110

_HEAD: Final = """\
## tpfd: every key with its default. Made from the program (python -m tpfd.config.render etc); a test compares them.
##
## Lines with two # explain, lines with one # are settings: to change one, take the # from its line and from the
## section lines above it. `tpfd check` prints what is in effect and where it came from.
##
## Stronger than this file: the environment (TPFD_LEASE__DURATION=PT1M: the path in capitals, __ between levels) and
## the command line. ${NAME} and ${NAME:-default} are replaced from the environment; inside [ ] and { } put quotes
## around them.
##
## A duration is ISO 8601 (PT30S, PT1H30M, P7D) or short (30s, 500ms); a size is 512B, 256KiB, 16MiB. Neither is ever
## a bare number.
"""

_ANY_REFERENCE: Final = r"\$\{"


def reference_text() -> str:
    """Text of ``etc/tpfd.yaml``: all comments, every key with default, unit, range and the framework's name."""
    lines = [_HEAD]
    for entry in ENTRIES:
        path = entry.path if isinstance(entry, Key) else entry[0]
        indent = "  " * path.count(".")
        doc = _documentation(entry) if isinstance(entry, Key) else f"{SECTIONS[path]}{_missing_note(path)}"
        if not indent:
            lines.append("")
        lines.extend(textwrap.wrap(doc, _WIDTH, initial_indent=f"## {indent}", subsequent_indent=f"## {indent}"))
        if isinstance(entry, Key) and entry.spec.framework:
            lines.append(f"## {indent}In the framework: {entry.spec.framework}")
        default = f" {entry.spec.default_text}" if isinstance(entry, Key) else ""
        lines.append(f"#{indent}{path.rpartition('.')[2]}:{default}")
    return "\n".join(lines) + "\n"


def _documentation(key: Key) -> str:
    range_text = _range(key)
    kind = f"{key.spec.kind} {', '.join(key.choices)}" if key.choices else str(key.spec.kind)
    facts = [kind + (f", {range_text}" if range_text else ""), *(["taken on reload"] if key.spec.reloadable else [])]
    # a missing section says so once, at its head
    return f"{key.spec.doc} ({'; '.join(facts)}){_missing_note(key.path)}"


def _missing_note(path: str) -> str:
    return " NOT IN THIS BUILD YET." if path in MISSING_PARTS else ""


def _range(key: Key) -> str:
    """The range in words, without limits nobody runs into."""
    low, high = key.spec.minimum, key.spec.maximum
    if low is None or high is None:
        return ""
    open_below = low == {Kind.DURATION: 1, Kind.SIZE: 1}.get(key.spec.kind)
    open_above = high == {Kind.DURATION: MAX_DURATION_MS, Kind.INTEGER: MAX_COUNT, Kind.SIZE: 2**40}.get(key.spec.kind)
    match open_below, open_above:
        case True, True:
            return ""
        case True, False:
            return f"at most {show(key, high)}"
        case False, True:
            return f"{show(key, low)} or more"
        case _:
            return f"{show(key, low)} to {show(key, high)}"


def schema() -> dict[str, Any]:
    """The JSON schema of ``tpfd.yaml``. A place for a number or word also takes text with ``${NAME}`` in it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tpfd configuration",
        **_section_schema(""),
    }


def _section_schema(section: str) -> dict[str, Any]:
    properties = {}
    for name in children(section):
        path = f"{section}.{name}" if section else name
        properties[name] = _key_schema(KEYS[path]) if path in KEYS else _section_schema(path)
    described = {"description": SECTIONS[section]} if section else {}
    return {**described, "type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _key_schema(key: Key) -> dict[str, Any]:
    return {"description": _documentation(key), **_value_schema(key)}


def _value_schema(key: Key) -> dict[str, Any]:
    spec = key.spec
    match spec.kind:
        case Kind.DURATION:
            pattern = rf"^(P[0-9DTHMSW.]+|[0-9]+(ms|s|m|h))$|{_ANY_REFERENCE}"
            return {"type": "string", "pattern": pattern, "default": spec.default_text}
        case Kind.SIZE:
            pattern = rf"^[0-9]+(B|KiB|MiB|GiB|TiB)$|{_ANY_REFERENCE}"
            return {"type": "string", "pattern": pattern, "default": spec.default_text}
        case Kind.INTEGER | Kind.NUMBER:
            kind = "integer" if spec.kind is Kind.INTEGER else "number"
            limits = {"minimum": spec.minimum, "maximum": spec.maximum}
            return {"type": [kind, "string"], **limits, "pattern": _ANY_REFERENCE, "default": key.default}
        case Kind.SWITCH:
            return {"type": ["boolean", "string"], "pattern": _ANY_REFERENCE, "default": key.default}
        case Kind.CHOICE:
            words: list[dict[str, Any]] = [{"enum": list(key.choices)}, {"type": "string", "pattern": _ANY_REFERENCE}]
            return {"anyOf": words, "default": key.default}
        case Kind.TEXTS:
            return {"type": ["array", "string"], "items": {"type": "string", "minLength": 1}, "default": []}
        case Kind.MAP:
            return {"type": ["object", "string"], "additionalProperties": {"type": "string"}, "default": {}}
        case Kind.SECRETS:
            return {"type": ["array", "string"], "items": _secret_schema(), "default": []}
        case Kind.TEXT | Kind.URL | Kind.ADDRESS:
            return {"type": "string", "default": str(key.default)}


def _secret_schema() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "properties": {"file": text, "env": text, "credential": text, "kid": text},
        "additionalProperties": False,
        "oneOf": [{"required": [source]} for source in ("file", "env", "credential")],
    }
