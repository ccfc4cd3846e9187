"""JSON given on the command line: from an argument, a file or stdin, sent on byte for byte.

The text is parsed once, to say at once what is wrong with it, and then sent as it was written: a number that went
through a binary float here would not be the amount that the person typed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import orjson


def read_payload(text: str | None, file: Path | None, *, option: str) -> orjson.Fragment:
    """Takes the JSON from exactly one place.

    Args:
        text: the JSON itself; ``-`` reads stdin.
        file: a file with the JSON; ``-`` reads stdin.
        option: the option's name, for messages.

    Returns:
        The text as a fragment that the HTTP client sends as it is.

    Raises:
        click.UsageError: both or none were given, the file cannot be read, or it is not JSON.
    """
    if (text is None) == (file is None):
        raise click.UsageError(f"give the JSON either with {option} or with --file ('-' reads stdin)")
    if text == "-" or (file is not None and str(file) == "-"):
        origin, raw = "stdin", sys.stdin.buffer.read()
    elif file is not None:
        origin = str(file)
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise click.UsageError(f"--file: {error}") from error
    else:
        assert text is not None
        origin, raw = option, text.encode()
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"{origin} is not JSON: {error}") from error
    return orjson.Fragment(raw)
