"""Log lines: an event's name and its fields, as JSON or as text, on standard error.

The stdlib's `logging` carries them, so that libraries' own messages come out in the same form. Every record becomes
lines that nobody can forge: whatever a field holds, control characters and line breaks are escaped.

Writing is a plain write to standard error, in the event loop. A queue and a thread would lose the last lines of a
process that is being killed, which are the ones that matter, or would have to block when full anyway. The price is
small: per-item events are below the default level, what repeats goes through `Repeating`, and journald or a file takes
a line in microseconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import attrs

Format = Literal["json", "text"]
Level = Literal["debug", "info", "warning", "error"]

MAX_TEXT_CHARS: Final = 8_192
"""Longest field or message; the rest is cut and counted."""

_MAX_DEPTH = 6
_FIELDS = "tpfd_fields"
_OURS = frozenset({"ts", "level", "logger", "event", "exception"})
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG_PRIORITY = 7

# C0 and C1 controls (ESC among them), line separators, the marks that turn the direction of writing round, and halves
# of a surrogate pair, which no encoding takes
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BARE_WORD = re.compile(r"[^\s\"'=\\]+")


@attrs.frozen
class Log:
    """A named source of events. Fields are given as ``execution_id=…``; the names are the keys in the output.

    Attributes:
        name: dotted, as the module's.
        fields: added to every event.
    """

    name: str
    fields: Mapping[str, object] = attrs.field(factory=dict)

    def bind(self, **fields: object) -> Log:
        """The same with more fields in every event."""
        return attrs.evolve(self, fields={**self.fields, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        self.write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self.write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self.write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Something an operator should look at."""
        self.write(logging.ERROR, event, fields)

    def exception(self, event: str, cause: BaseException, /, **fields: object) -> None:
        """As `error`, with the traceback: for faults of the program, not for failures that explain themselves."""
        self.write(logging.ERROR, event, fields, cause)

    def write(
        self, level: int, event: str, fields: Mapping[str, object], cause: BaseException | None = None
    ) -> None:
        """Write an event at a level of the `logging` module."""
        logger = logging.getLogger(self.name)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, exc_info=cause, extra={_FIELDS: {**self.fields, **fields}})


def get_logger(name: str) -> Log:
    """The log of a module: ``_log = get_logger(__name__)``."""
    return Log(name)


TALKATIVE = ("boto3", "botocore", "s3transfer", "urllib3")
"""Libraries that tell of each client at info, and at debug write down payloads and signed headers."""


def configure(log_format: Format, level: Level, *, stream: TextIO | None = None, environ: Mapping[str, str]) -> None:
    """Send all logging of the process to one place. Calling it again replaces what was set.

    Args:
        log_format: ``json`` or ``text``.
        level: least level written.
        stream: None is standard error.
        environ: ``JOURNAL_STREAM`` tells whether the stream ends in journald.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(log_format, in_journal=_ends_in_journal(stream, environ)))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    for library in TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    set_level(level)


def set_level(level: Level) -> None:
    """Change the least level that is written."""
    logging.getLogger().setLevel(level.upper())


def _ends_in_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is the one journald reads; children inherit the variable but may have another stream."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # no file behind it, as in tests (io.UnsupportedOperation is one too)
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class LineFormatter(logging.Formatter):
    """Makes one line per record (and, for a traceback in text, further lines that begin with ``    | ``).

    In the journal each line begins with ``<priority>`` and text has no time of its own, because journald keeps both.
    """

    def __init__(self, log_format: Format, *, in_journal: bool) -> None:
        super().__init__()
        self._json = log_format == "json"
        self._in_journal = in_journal

    def format(self, record: logging.LogRecord) -> str:
        lines = [self._json_line(record)] if self._json else self._text_lines(record)
        prefix = f"<{_priority(record.levelno)}>" if self._in_journal else ""
        return "\n".join(prefix + line for line in lines)

    def _json_line(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _shortened(record.getMessage()),
        }
        for name, value in _fields(record).items():
            line[f"{name}_" if name in _OURS else name] = _plain(value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape(json.dumps(line, ensure_ascii=False, separators=(",", ":")))

    def _text_lines(self, record: logging.LogRecord) -> list[str]:
        parts = [] if self._in_journal else [_timestamp(record)]
        parts += [f"{record.levelname:<7}", record.name, escape(_shortened(record.getMessage()))]
        parts += [f"{escape(name)}={_text_value(value)}" for name, value in _fields(record).items()]
        lines = [" ".join(parts)]
        if record.exc_info:
            lines += [f"    | {escape(line)}" for line in self.formatException(record.exc_info).split("\n")]
        return lines


def escape(text: str) -> str:
    r"""Write what could move a cursor or begin a line as ``\uXXXX``; in a JSON text that is the same value."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, _FIELDS, {})
    return fields


def _timestamp(record: logging.LogRecord) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _priority(level: int) -> int:
    """The syslog priority, as sd-daemon(3) numbers them."""
    return next((priority for at_least, priority in _PRIORITIES if level >= at_least), _DEBUG_PRIORITY)


def _plain(value: object, depth: int = 0) -> object:
    """A value that JSON has: numbers, text, lists and maps; everything else as its text."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return _shortened(value)
        case Mapping() if depth < _MAX_DEPTH:
            return {str(name): _plain(one, depth + 1) for name, one in value.items()}
        case list() | tuple() if depth < _MAX_DEPTH:
            return [_plain(one, depth + 1) for one in value]
        case BaseException():
            return _shortened(f"{type(value).__name__}: {value}")
        case _:
            return _shortened(str(value))


def _text_value(value: object) -> str:
    plain = _plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    if isinstance(plain, str) and not _BARE_WORD.fullmatch(text):
        text = json.dumps(text, ensure_ascii=False)
    return escape(text)


def _shortened(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]}... ({len(text) - MAX_TEXT_CHARS} more characters)"
