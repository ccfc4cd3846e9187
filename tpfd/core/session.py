"""The arithmetic of a live await session: places, duplicates, the expected count. No channels, no time.

A place is taken before an item is asked and freed when its answer was accepted downstream, so the number of items that
are anywhere between source and downstream never exceeds the window.
"""

from __future__ import annotations

from attrs import define, field

from tpfd.core.records import InteractionId


@define(eq=False)
class Window:
    """The items of one session that are not yet handed on.

    Attributes:
        size: places.
    """

    size: int
    _asked: set[InteractionId] = field(factory=set, init=False)
    _answered: set[InteractionId] = field(factory=set, init=False)
    _span: int = field(default=0, init=False)
    _expected_count: int | None = field(default=None, init=False)

    @property
    def free_count(self) -> int:
        """Items that may be asked now."""
        return self.size - len(self._asked) - len(self._answered)

    @property
    def asked(self) -> frozenset[InteractionId]:
        """Items without an answer."""
        return frozenset(self._asked)

    @property
    def source_ended(self) -> bool:
        return self._expected_count is not None

    @property
    def expected_count(self) -> int:
        """Items of the source, with those that were rejected before they could be asked; known when it has ended."""
        assert self._expected_count is not None
        return self._expected_count

    @property
    def finished(self) -> bool:
        """The source has ended and everything was handed on."""
        return self.source_ended and not self._asked and not self._answered

    def ask(self, interaction: InteractionId, item_index: int) -> None:
        """Takes a place for an item."""
        self._asked.add(interaction)
        self._span = max(self._span, item_index + 1)

    def answer(self, interaction: InteractionId) -> bool:
        """An answer came; False when it is a duplicate or none of ours."""
        if interaction not in self._asked:
            return False
        self._asked.discard(interaction)
        self._answered.add(interaction)
        return True

    def hand_on(self, interaction: InteractionId) -> None:
        """Downstream has accepted the item: its place is free."""
        self._answered.discard(interaction)

    def end_source(self) -> None:
        """No further item will come."""
        self._expected_count = self._span
