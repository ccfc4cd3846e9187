"""What a value is, in words, and the exception that says it does not fit."""

from __future__ import annotations

from decimal import Decimal

_SHOWN = 40
"""Characters of a text that a message repeats."""


class Unfit(ValueError):
    """A single value that does not fit its type. Inside the codec only: callers see a `PayloadError` with paths."""


def kind_of_data(value: object) -> str:
    """A JSON kind with its value where that is short, or the class of a Python value."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float() | Decimal():
            return f"the number {str(value)[:_SHOWN]}"
        case str():
            return f"the text {value[:_SHOWN]!r}"
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
