"""What a changed configuration means for a daemon that is running."""

from __future__ import annotations

import attrs

from tpfd.config.keys import KEYS, Key
from tpfd.config.model import Config


@attrs.frozen
class Changes:
    """Keys whose values differ.

    Attributes:
        reloadable: those a running daemon can take.
        restart: those that need a new process.
    """

    reloadable: tuple[Key, ...]
    restart: tuple[Key, ...]


def changes(old: Config, new: Config) -> Changes:
    """Compare two configurations. The content of secret files is not looked at: re-read them whatever this says."""
    differing = [key for key in KEYS.values() if key.value_in(old) != key.value_in(new)]
    return Changes(
        tuple(key for key in differing if key.spec.reloadable),
        tuple(key for key in differing if not key.spec.reloadable),
    )
