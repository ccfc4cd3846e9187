"""The one door to blocking calls: a thread, under an explicit limit.

Whoever needs a driver that blocks is given a ``Blocking`` and does not care whether it is ``Threads`` or, in tests on
virtual time, ``Inline``: a virtual clock runs on while a thread works, so the two must not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Blocking(Protocol):
    """Runs blocking calls without stopping the event loop."""

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Calls `call(*args)` and returns what it returned, or raises what it raised.

        **Cancellation**: before the call starts it does not happen. Once it runs, its outcome is waited for and
        returned, and the cancel is delivered at the caller's next checkpoint.
        """


class Threads:
    """Runs calls in worker threads. One instance per provider, so that a slow one starves only itself.

    Args:
        limit: calls running at once; further ones wait in order.
        abandon_on_cancel: leave a running call behind on cancel. Only for calls whose outcome nobody needs, such as
            user code that does not end; never for a store.
    """

    def __init__(self, limit: int, *, abandon_on_cancel: bool = False) -> None:
        self._limiter = trio.CapacityLimiter(limit)
        self._abandon_on_cancel = abandon_on_cancel

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Blocking.run`."""
        return await trio.to_thread.run_sync(
            partial(call, *args), abandon_on_cancel=self._abandon_on_cancel, limiter=self._limiter
        )


class Inline:
    """Runs calls in place, for tests on virtual time."""

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Blocking.run`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            return call(*args)
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()
