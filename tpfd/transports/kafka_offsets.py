"""How far a consumer has come in each partition: what lies before that offset is dealt with, without a gap.

Messages are dealt with in any order, but a commit says "everything up to here". So only the contiguous prefix counts.
A partition that was taken away and given back is another turn: what was received before means nothing in it.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field, frozen


@frozen
class Partition:
    """A partition of a topic."""

    topic: str
    number: int


@frozen
class Mark:
    """One received message.

    Attributes:
        turn: of the partition, when it was received.
    """

    partition: Partition
    turn: int
    offset: int


@define(eq=False)
class _Turn:
    """One stay of a partition here.

    Attributes:
        open: offsets in hand, or dealt with behind one in hand, in order.
        done: those of them that are dealt with.
        next_offset: the first offset behind the prefix; None: nothing was dealt with.
    """

    number: int
    open: deque[int] = field(factory=deque)
    done: set[int] = field(factory=set)
    next_offset: int | None = None

    def deal_with(self, offset: int) -> None:
        self.done.add(offset)
        while self.open and self.open[0] in self.done:
            first = self.open.popleft()
            self.done.discard(first)
            self.next_offset = first + 1


@define(eq=False)
class Offsets:
    """The partitions that are here."""

    _turns: dict[Partition, _Turn] = field(factory=dict, init=False)
    _turn_count: int = field(default=0, init=False)

    def assigned(self, partition: Partition) -> None:
        """A partition was given to this consumer."""
        self._turn_count += 1
        self._turns[partition] = _Turn(self._turn_count)

    def taken_away(self, partition: Partition) -> int | None:
        """A partition belongs to somebody else now; how far it had come here, None: nowhere."""
        turn = self._turns.pop(partition, None)
        return None if turn is None else turn.next_offset

    def received(self, partition: Partition, offset: int) -> Mark | None:
        """A message is in hand; None: its partition is not here any more."""
        turn = self._turns.get(partition)
        if turn is None:
            return None
        turn.open.append(offset)
        return Mark(partition, turn.number, offset)

    def done(self, mark: Mark) -> None:
        """A message is dealt with."""
        turn = self._turns.get(mark.partition)
        if turn is not None and turn.number == mark.turn:
            turn.deal_with(mark.offset)

    def reached(self) -> dict[Partition, int]:
        """How far each partition has come: the offsets to commit."""
        return {
            partition: turn.next_offset for partition, turn in self._turns.items() if turn.next_offset is not None
        }
