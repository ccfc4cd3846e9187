"""What the other side's answer to a webhook request means: taken, not now, or never. Pure."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

from attrs import frozen

PASSING = frozenset({408, 425, 429})
"""Refusals that say "not now"; every 5xx says so too."""
MAX_FLOOR_MS = 86_400_000
_SECONDS = re.compile(r"[0-9]{1,9}")


@frozen
class Taken:
    """The other side has the request."""


@frozen
class NotNow:
    """It may work later.

    Attributes:
        message: for the record of the interaction, which callers may see: no inner address, nothing of the answer.
        floor_ms: not sooner than in so many milliseconds (the other side's Retry-After).
    """

    message: str
    floor_ms: int = 0


@frozen
class Never:
    """Another try cannot help.

    Attributes:
        message: as with `NotNow`; it ends the execution.
    """

    message: str


Reply = Taken | NotNow | Never


def judge(place: str, status: int, retry_after: str | None, now_epoch_ms: int) -> Reply:
    """What a status means.

    Args:
        place: host and port that answered.
        retry_after: the header of that name; None: there is none.
    """
    if 200 <= status < 300:
        return Taken()
    if status in PASSING or 500 <= status < 600:
        return NotNow(f"{place} answered {status}", floor_ms(retry_after, now_epoch_ms))
    if 300 <= status < 400:
        return Never(f"{place} answered {status}: redirects are not followed; give the final address in the pipeline")
    if status == 410:
        return Never(f"{place} answered 410: what the pipeline calls is gone for good")
    return Never(f"{place} answered {status}: it refuses this request, and would again")


def floor_ms(retry_after: str | None, now_epoch_ms: int) -> int:
    """The wait that a Retry-After asks for, at most a day; 0 for none, for the past, and for what is neither form.

    Source: RFC 9110, section 10.2.3.
    """
    text = (retry_after or "").strip()
    if _SECONDS.fullmatch(text):
        return min(int(text) * 1000, MAX_FLOOR_MS)
    try:
        at_epoch_ms = int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
    return min(max(at_epoch_ms - now_epoch_ms, 0), MAX_FLOOR_MS)
