"""Tells the connections that the daemon drains, and ends what only waits."""

from __future__ import annotations

import trio


class Drain:
    """Begins once. Scopes that enclose nothing but waiting are cancelled by it, so that nobody has to poll.

    An idle keep-alive connection, a long poll and a WebSocket wait inside such a scope; a request that is being
    carried out does not, and has the grace.
    """

    def __init__(self) -> None:
        self._begun = trio.Event()
        self._waiting: set[trio.CancelScope] = set()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    def begin(self) -> None:
        """Starts the drain; once is enough."""
        self._begun.set()
        for scope in self._waiting:
            scope.cancel("the daemon drains")

    async def wait(self) -> None:
        await self._begun.wait()

    def cuts(self, scope: trio.CancelScope) -> None:
        """From now on the drain cancels this scope. `spares` ends that."""
        if self.begun:
            scope.cancel("the daemon drains")
        self._waiting.add(scope)

    def spares(self, scope: trio.CancelScope) -> None:
        self._waiting.discard(scope)
