"""The live sessions of this process, so that an admitted answer finds its waiting attempt. Hints only."""

from __future__ import annotations

from collections import deque
from typing import Any

from attrs import define, field

from tpfd.bell import Bell
from tpfd.core.records import InteractionId, InteractionRecord, InteractionStatus, UnitId
from tpfd.core.session import Window


@define(eq=False)
class LiveSession:
    """What a live session has in hand. Its memory is bounded by the window.

    Attributes:
        redrive_count: drive of the execution that the session belongs to.
        told: rings when an answer came, or when the unit ended.
    """

    unit_id: UnitId
    redrive_count: int
    window: Window
    records: dict[InteractionId, InteractionRecord] = field(factory=dict)
    answered: deque[tuple[InteractionRecord, Any]] = field(factory=deque)
    told: Bell = field(factory=Bell)
    freed: Bell = field(factory=Bell)
    ended: InteractionRecord | None = None

    def tell(self, record: InteractionRecord, value: Any = None) -> None:
        """An interaction as it was just committed or read.

        Args:
            value: the decoded answer, if the teller has it.
        """
        if record.status is InteractionStatus.COMPLETED:
            if self.window.answer(record.interaction_id):
                self.answered.append((record, value))
                self.told.ring()
        elif record.status.open or record.redrive_count < self.redrive_count:
            return  # a late answer may tell how it ended in a drive before; it is about to be asked again
        elif record.interaction_id in self.window.asked:
            self.ended = record
            self.told.ring()


@define(eq=False)
class Sessions:
    """All live sessions of this process."""

    _by_unit: dict[UnitId, LiveSession] = field(factory=dict, init=False)

    def open(self, session: LiveSession) -> None:
        """A newer session of the same unit replaces an older one that is about to end."""
        self._by_unit[session.unit_id] = session

    def close(self, session: LiveSession) -> None:
        """The session ended."""
        if self._by_unit.get(session.unit_id) is session:
            del self._by_unit[session.unit_id]

    def find(self, interaction: str) -> InteractionRecord | None:
        """An interaction that a session has in hand; its state may be old, its identity is not."""
        session = self._by_unit.get(UnitId(interaction.rpartition(".")[0]))
        return None if session is None else session.records.get(InteractionId(interaction))

    def tell(self, record: InteractionRecord, value: Any = None) -> None:
        """Passes an interaction to the session that waits for it, if there is one."""
        session = self._by_unit.get(record.unit_id)
        if session is not None:
            session.tell(record, value)

    @property
    def asked_count(self) -> int:
        """Items that live sessions wait for."""
        return sum(len(session.window.asked) for session in self._by_unit.values())
