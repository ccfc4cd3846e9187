"""Wake-ups between tasks. A ring is a hint that something may have changed; it carries nothing and is not counted."""

from __future__ import annotations

import trio


class Bell:
    """Wakes everybody who waits.

    To miss no ring, take the `ticket` first, then look, then wait on it::

        ticket = bell.ticket()
        if not something_to_do():
            await ticket.wait()
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: trio.Event | None = None  # only while somebody may wait: most rings are for nobody

    def ticket(self) -> trio.Event:
        """An event that the next ring sets."""
        if self._event is None:
            self._event = trio.Event()
        return self._event

    def ring(self) -> None:
        """Wakes all who hold a ticket."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, timeout_s: float) -> bool:
        """Waits for the next ring.

        Args:
            timeout_s: longest wait, in seconds.

        Returns:
            False when the time ran out first.
        """
        return await wait_for(self.ticket(), timeout_s)


async def wait_for(ticket: trio.Event, timeout_s: float) -> bool:
    """Waits on a ticket for at most `timeout_s` seconds; False when the time ran out first."""
    with trio.move_on_after(timeout_s):
        await ticket.wait()
    return ticket.is_set()
