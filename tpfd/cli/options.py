"""Kinds of option values that several commands share: give these functions as an option's ``type``."""

from __future__ import annotations

import getpass
import os

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


def host_and_port(text: str) -> tuple[str, int]:
    """A place to listen, as ``127.0.0.1:8090`` or ``[::1]:8090``; port 0 lets the system choose."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, as 127.0.0.1:8090")
    return host, int(port)


def person(actor: str | None) -> str:
    """Who acts, for the history: as given, else the login name, else the user id."""
    if actor:
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return f"uid {os.getuid()}"


actor_option = click.option("--actor", metavar="NAME", help="Who does it, for the history; your login name if absent.")
