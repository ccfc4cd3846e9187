"""What this process believes about records, so that the next decision about them needs no read.

It believes what it wrote last; and that a record which it has not written is not there, as long as those of its kind
which it looked for were not there: whoever opens interactions or takes submits in asks for one new key after another.

A belief may be wrong, because other processes write too. That is for the condition of the next write to find out.
Nothing else may be decided by it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tpfd.core.transact import Key, Kind
from tpfd.stores.dynamodb_items import ABSENT, Seen


class Beliefs:
    """Own writes, bounded by count and bytes, the longest unused going first; and kinds whose new keys are absent.

    Args:
        count_max: records.
        bytes_max: bytes of their bodies.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[Key[Any], tuple[Seen, int]] = OrderedDict()
        self._absent_kinds: set[Kind[Any]] = set()

    def get(self, key: Key[Any]) -> Seen | None:
        """What we believe; None: it has to be read."""
        found = self._kept.get(key)
        if found is None:
            return ABSENT if key.kind in self._absent_kinds else None
        self._kept.move_to_end(key)
        return found[0]

    def learn(self, read: Mapping[Key[Any], Seen]) -> None:
        """Takes note of what was there and what was not."""
        for key, seen in read.items():
            if seen.version is None:
                self._absent_kinds.add(key.kind)
        for key, seen in read.items():
            if seen.version is not None:
                self._absent_kinds.discard(key.kind)

    def keep(self, key: Key[Any], seen: Seen, size_bytes: int) -> None:
        """Remembers what was written."""
        self.drop(key)
        self._kept[key] = (seen, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._bytes_max or len(self._kept) > self._count_max:
            _, (_, gone_bytes) = self._kept.popitem(last=False)
            self._bytes -= gone_bytes

    def drop(self, key: Key[Any]) -> None:
        """Forgets what turned out to be wrong."""
        if (found := self._kept.pop(key, None)) is not None:
            self._bytes -= found[1]

    @property
    def count(self) -> int:
        """Records kept."""
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes
