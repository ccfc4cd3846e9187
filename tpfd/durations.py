"""Durations and sizes as people write them.

A duration is ISO 8601 (``PT30S``, ``P1DT12H``, ``P1W``, ``PT0.5S``) or a number with a unit (``30s``, ``500ms``);
``10m`` is refused, because it reads as minutes to one and as months to another. A size is a number with a binary unit
(``256KiB``, ``1MiB``) or bytes (``512B``). A bare number is refused in both: nobody can tell seconds from milliseconds
by looking at it.
"""

from __future__ import annotations

import re

MS_PER_S = 1_000
MS_PER_MINUTE = 60 * MS_PER_S
MS_PER_HOUR = 60 * MS_PER_MINUTE
MS_PER_DAY = 24 * MS_PER_HOUR
MS_PER_WEEK = 7 * MS_PER_DAY

MAX_DURATION_MS = 36_500 * MS_PER_DAY
"""A hundred years: longer is a slip of the pen, and keeps every epoch sum far inside 64 bits."""

_ISO_WEEKS = re.compile(r"P(?P<weeks>\d{1,9})W", re.ASCII)
_ISO = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.ASCII,
)
_SHORT = re.compile(r"(?P<number>\d{1,15})(?P<unit>ms|s)", re.ASCII)
_SHORT_MS = {"ms": 1, "s": MS_PER_S}

_SIZE = re.compile(r"(?P<number>\d{1,15})(?P<unit>B|KiB|MiB|GiB|TiB)", re.ASCII)
_SIZE_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse_duration_ms(text: object, *, zero_ok: bool = False) -> int:
    """Read a duration.

    Args:
        text: what was written; anything but text is refused.
        zero_ok: whether a duration of nothing makes sense here.

    Returns:
        Milliseconds, at most a hundred years.

    Raises:
        ValueError: it is not a duration; the message says why and what to write instead.

    Source:
        ISO 8601-1:2019, 5.5.2 (durations); years and months are left out on purpose, they have no fixed length.
    """
    match text:
        case str():
            duration_ms = _duration_ms(text)
        case bool() | None:
            raise ValueError("a duration is needed, as PT30S or 30s")
        case int():
            raise ValueError(f"{text} has no unit: write PT{text}S for seconds or {text}ms for milliseconds")
        case _:
            raise ValueError(f"{text} is not a duration: write it as PT30S or 30s")
    if duration_ms > MAX_DURATION_MS:
        raise ValueError(f"{text} is longer than 36500 days")
    if duration_ms == 0 and not zero_ok:
        raise ValueError(f"{text} is no time at all; more than zero is needed here")
    return duration_ms


def _duration_ms(text: str) -> int:
    if match := _SHORT.fullmatch(text):
        return int(match["number"]) * _SHORT_MS[match["unit"]]
    if match := _ISO_WEEKS.fullmatch(text):
        return int(match["weeks"]) * MS_PER_WEEK
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(_why_not(text))
    days, hours, minutes, seconds, fraction = match.group("days", "hours", "minutes", "seconds", "fraction")
    if match["time"] == "T" or (days is None and match["time"] is None):
        raise ValueError(f"{text!r} names no amount: write PT30S for 30 seconds")
    if fraction is not None and fraction[3:].strip("0"):
        raise ValueError(f"{text!r} is finer than a millisecond")
    return (
        int(days or 0) * MS_PER_DAY
        + int(hours or 0) * MS_PER_HOUR
        + int(minutes or 0) * MS_PER_MINUTE
        + int(seconds or 0) * MS_PER_S
        + int((fraction or "0").ljust(3, "0")[:3])
    )


def _why_not(text: str) -> str:
    """The reason why a text that no pattern took is not a duration."""
    if not text.strip():
        return "a duration is needed, as PT30S or 30s"
    if "-" in text:
        return f"{text!r}: a duration cannot be negative"
    if re.fullmatch(r"\d+", text, re.ASCII):
        return f"{text!r} has no unit: write PT{text}S for seconds or {text}ms for milliseconds"
    if re.fullmatch(r"P(?:[\d.]+[YMWD])+(?:T.*)?", text) and re.search(r"[YM]", text.partition("T")[0]):
        return f"{text!r}: years and months have no fixed length; write days (P30D) or weeks (P4W)"
    if match := re.fullmatch(r"(\d+)\s*(m|min|h)", text, re.ASCII):
        unit = match[2][0].upper()
        return f"{text!r}: only s and ms stand behind a bare number; write PT{match[1]}{unit}"
    return f"{text!r} is not a duration: write ISO 8601 (PT30S, PT1H30M, P1D, P1W) or 30s, 500ms"


def format_duration(duration_ms: int) -> str:
    """Write a duration so that `parse_duration_ms` reads the same number back.

    Args:
        duration_ms: milliseconds, 0 or more.

    Returns:
        ``500ms`` below a second, ISO 8601 from there on: ``PT1.5S``, ``PT5M``, ``P1DT2H``; zero is ``PT0S``.
    """
    if 0 < duration_ms < MS_PER_S:
        return f"{duration_ms}ms"
    days, rest_ms = divmod(duration_ms, MS_PER_DAY)
    hours, rest_ms = divmod(rest_ms, MS_PER_HOUR)
    minutes, rest_ms = divmod(rest_ms, MS_PER_MINUTE)
    seconds, rest_ms = divmod(rest_ms, MS_PER_S)
    second_text = f"{seconds}.{rest_ms:03d}".rstrip("0") if rest_ms else str(seconds)
    clock = "".join(
        f"{amount}{unit}" for amount, unit in ((hours, "H"), (minutes, "M")) if amount
    ) + (f"{second_text}S" if seconds or rest_ms or duration_ms == 0 else "")
    return "P" + (f"{days}D" if days else "") + (f"T{clock}" if clock else "")


def parse_size_bytes(text: object) -> int:
    """Read a size.

    Args:
        text: as ``256KiB``, ``1MiB`` or ``512B``; anything but text is refused.

    Returns:
        Bytes, 0 or more.

    Raises:
        ValueError: it is not a size; the message says why.
    """
    match text:
        case str():
            found = _SIZE.fullmatch(text)
        case bool() | None:
            raise ValueError("a size is needed, as 1MiB")
        case int():
            raise ValueError(f"{text} has no unit: write {text}B for bytes, or 256KiB, 1MiB")
        case _:
            raise ValueError(f"{text} is not a size: write it as 512B, 256KiB, 1MiB")
    if found is not None:
        return int(found["number"]) * _SIZE_BYTES[found["unit"]]
    if re.fullmatch(r"\d+", text, re.ASCII):
        raise ValueError(f"{text!r} has no unit: write {text}B for bytes, or 256KiB, 1MiB")
    if re.fullmatch(r"\d+ ?[kKmMgGtT][bB]?", text, re.ASCII):
        raise ValueError(f"{text!r}: 1000 or 1024? Write KiB, MiB or GiB, which are powers of 1024")
    raise ValueError(f"{text!r} is not a size: write a whole number with its unit, as 512B, 256KiB, 1MiB")
