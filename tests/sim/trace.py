"""What happened in one run, line by line, and its digest: one seed always gives the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import trio
from attrs import define, field


@define(eq=False)
class Trace:
    """The story of a run.

    Attributes:
        tell: told each line as it happens; None: nobody reads it.
    """

    tell: Callable[[str], None] | None = None
    line_count: int = 0
    _hash: hashlib.blake2b = field(factory=lambda: hashlib.blake2b(digest_size=16))

    def note(self, text: str) -> None:
        """Adds a line."""
        line = f"{trio.current_time():10.3f} {text}"
        self._hash.update(line.encode() + b"\n")
        self.line_count += 1
        if self.tell is not None:
            self.tell(line)

    @property
    def digest(self) -> str:
        """Of all lines so far, hex."""
        return self._hash.hexdigest()
