"""Kinds of option values that several commands share: give these functions as an option's ``type``."""

from __future__ import annotations

import click

from tpfd.durations import parse_duration_ms

PROBABILITY = click.FloatRange(0.0, 1.0)


def duration(text: str) -> int:
    """A time such as ``PT30S``, ``30s`` or ``500ms``, more than zero, in milliseconds."""
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def duration_or_zero(text: str) -> int:
    """Like `duration`, and ``0s`` is fine too."""
    try:
        return parse_duration_ms(text, zero_ok=True)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
