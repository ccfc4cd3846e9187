"""Object keys: made from a template, and never able to leave their root.

A key is a relative path with ``/`` between its parts, the same on every provider. The rules are those of the strictest
place a key may travel to (a Linux folder, a Windows share, S3, a log line), so that a pipeline can change its provider.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from tpfd.errors import NonRetryableError

MAX_KEY_BYTES = 1024
MAX_PART_BYTES = 255

PLACEHOLDERS = ("groupKey", "executionId", "pipelineId", "date", "inputName")

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])", re.IGNORECASE)
_VERSION = re.compile(r"\.v([1-9][0-9]{0,8})$")
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def template_problem(template: str) -> str | None:
    """Says what is wrong with a key template; None if it can be used.

    Args:
        template: text with placeholders, as ``{inputName}.out``.
    """
    rest = _PLACEHOLDER.sub("", template)
    if "{" in rest or "}" in rest:
        return f"{template!r} has an unpaired brace"
    known = ", ".join("{" + name + "}" for name in PLACEHOLDERS)
    for name in _PLACEHOLDER.findall(template):
        if name not in PLACEHOLDERS:
            return f"{template!r} uses {{{name}}}; known are {known}"
    return key_problem(_PLACEHOLDER.sub("x", template))


def render_key(template: str, values: Mapping[str, str]) -> str:
    """Makes the key of one output object.

    Args:
        template: a template without problems (see `template_problem`).
        values: a text for every placeholder that the template uses; ``/`` in a value makes folders.

    Raises:
        NonRetryableError: ``object_key_refused``, for a placeholder without a value or an unsafe result.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise NonRetryableError(
                f"key template {template!r}: nothing is known here for {{{name}}}", code="object_key_refused"
            )
        return values[name]

    key = _PLACEHOLDER.sub(value, template)
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Refuses a key that could leave its root or cannot stand everywhere.

    Raises:
        NonRetryableError: ``object_key_refused``; the message quotes the key with escapes, fit for a log line.
    """
    problem = key_problem(key)
    if problem is not None:
        raise NonRetryableError(f"object key {_shown(key)}: {problem}", code="object_key_refused")


def key_problem(key: str) -> str | None:
    """Says why a key is refused; None if it is safe.

    Symbolic links are not seen here: whoever opens a key must not follow any below the root.
    """
    if not key:
        return "is empty"
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode text"
    if size_bytes > MAX_KEY_BYTES:
        return f"is {size_bytes} bytes long, more than {MAX_KEY_BYTES}"
    if any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} or char in _BIDI_CONTROLS for char in key):
        return "contains a control character"
    if "\\" in key:
        return "contains a backslash; parts are separated by /"
    if key.startswith("/"):
        return "is absolute; keys are relative to the root"
    for part in key.split("/"):
        problem = _part_problem(part)
        if problem is not None:
            return problem
    if is_temporary(key.rpartition("/")[2]):
        return "is the name of a temporary object"
    return None


def _part_problem(part: str) -> str | None:
    if not part:
        return "has an empty part"
    if part in {".", ".."}:
        return f"contains the part {part!r}"
    if len(part.encode()) > MAX_PART_BYTES:
        return f"has a part of more than {MAX_PART_BYTES} bytes"
    if part[1:2] == ":" and part[0].isalpha():
        return "names a drive"
    if part[-1] in ". ":
        return f"has a part that ends with {part[-1]!r}, which some systems drop"
    if _DEVICE.fullmatch(part.split(".", 1)[0].rstrip(" ")):
        return f"contains the device name {part!r}"
    return None


def next_version(key: str) -> str:
    """Gives the versioned key that follows: ``a/p.csv.out`` → ``a/p.csv.v2.out`` → ``a/p.csv.v3.out``."""
    folder, slash, name = key.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem or _VERSION.fullmatch(dot + suffix):
        stem, dot, suffix = name, "", ""
    match = _VERSION.search(stem)
    number = int(match.group(1)) + 1 if match else 2
    return f"{folder}{slash}{_VERSION.sub('', stem)}.v{number}{dot}{suffix}"


def temporary_name(name: str, execution_id: str, fence: int) -> str:
    """Names the temporary object of one attempt: hidden, marked, and carrying its owner.

    Args:
        name: for people: what is being written; shortened and freed of folders.
        execution_id: letters, digits, ``-`` and ``_``.
        fence: of the attempt that writes.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", execution_id):
        raise ValueError(f"execution id {execution_id!r} cannot stand in the name of a temporary object")
    shown = re.sub(r"[^\w.-]", "_", name)[:30]
    return f".{shown}.{execution_id}.{fence}.tmp"


def temporary_fence(name: str, execution_id: str) -> int | None:
    """Reads the fence from a temporary's name; None if it is not a temporary of that execution."""
    match = re.fullmatch(rf"\..*\.{re.escape(execution_id)}\.([0-9]+)\.tmp", name)
    return int(match.group(1)) if match else None


def is_temporary(name: str) -> bool:
    """Whether a file name is one that tpfd gives to its temporaries."""
    return name.startswith(".") and name.endswith(".tmp")


def _shown(key: str) -> str:
    shown = ascii(key)
    return shown if len(shown) <= 200 else shown[:200] + "…"
