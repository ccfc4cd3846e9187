"""Starts a daemon that is killed or stopped at a named point of its first publication.

    python launcher.py KILL|STOP POINT MARKER serve --config FILE

The process makes MARKER when it gets to the point, and sends the signal to itself; nothing happens when MARKER is there
already. POINT is one of `POINTS`, in the order in which they come.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpfd.cli.main import main
from tpfd.core.publication import Staged
from tpfd.core.records import Publication
from tpfd.daemon import object_providers
from tpfd.engine.attempts import Attempts
from tpfd.engine.leases import Lease
from tpfd.objects import filesystem_target
from tpfd.objects.protocol import FoundObject, PlaceOutcome
from tpfd.stores.sqlite_writer import Writer

POINTS = ("opening", "staging", "staged", "preparing", "prepared", "linked", "placed", "committing", "committed")


class Interruption:
    """Kills or stops this process once."""

    def __init__(self, number: signal.Signals, point: str, marker: Path) -> None:
        self._number = number
        self._point = point
        self._marker = marker

    def at(self, point: str) -> None:
        if point == self._point and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), self._number)
            time.sleep(0.1)  # the signal may be taken by another thread, a moment later; this one goes no further


def install(interruption: Interruption) -> None:
    """Puts the points between the effects of a publication."""

    class Target(filesystem_target.FilesystemTarget):
        def _create(self, temporary: str) -> int:
            interruption.at("opening")
            descriptor = super()._create(temporary)
            interruption.at("staging")
            return descriptor

        async def inspect(self, key: str) -> FoundObject | None:
            interruption.at("staged")
            return await super().inspect(key)

        async def place(self, staged: Staged, key: str, *, replace: bool) -> PlaceOutcome:
            interruption.at("prepared")
            outcome = await super().place(staged, key, replace=replace)
            interruption.at("placed")
            return outcome

    def then(call: Callable[..., None], point: str) -> Callable[..., None]:
        @functools.wraps(call)
        def wrapped(*args: Any, **named: Any) -> None:
            call(*args, **named)
            interruption.at(point)

        return wrapped

    commit, prepare, transaction = Attempts._commit, Attempts._prepare, Writer._transaction
    writing = ""

    async def preparing(self: Attempts, lease: Lease, publication: Publication) -> None:
        nonlocal writing
        writing = "preparing"
        await prepare(self, lease, publication)

    async def committing(self: Attempts, lease: Lease, event: Any) -> None:
        nonlocal writing
        writing = "committing"
        await commit(self, lease, event)
        interruption.at("committed")

    def at_transaction(self: Writer, members: Any) -> Any:
        # In the writer's thread, before it takes the lock: nothing can call this write back any more.
        interruption.at(writing)
        return transaction(self, members)

    vars(object_providers)["FilesystemTarget"] = Target
    os.link, os.replace = then(os.link, "linked"), then(os.replace, "linked")
    Attempts._commit, Attempts._prepare = committing, preparing  # type: ignore[method-assign]
    Writer._transaction = at_transaction  # type: ignore[method-assign]


if __name__ == "__main__":
    action, point, marker, *arguments = sys.argv[1:]
    if point not in POINTS:
        sys.exit(f"{point} is none of {', '.join(POINTS)}")
    install(Interruption(signal.Signals[f"SIG{action}"], point, Path(marker)))
    sys.argv[1:] = arguments
    main()
