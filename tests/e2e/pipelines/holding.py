"""Steps that hold an execution until the test lets it go, in the ways that steps can be well and badly behaved.

Each notes that it was called as a line of ``started`` in the work's folder, and goes on when ``open`` is there.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import trio
from attrs import frozen

LOOK_AGAIN_S = 0.02


@frozen
class Work:
    name: str
    folder: str


@frozen
class Finished:
    name: str


def note_start(work: Work) -> None:
    with Path(work.folder, "started").open("a", encoding="utf-8") as file:
        file.write(f"{work.name}\n")


def is_open(work: Work) -> bool:
    return Path(work.folder, "open").exists()


async def hold(work: Work) -> Finished:
    """Can be cancelled at any time."""
    note_start(work)
    while not is_open(work):
        await trio.sleep(LOOK_AGAIN_S)
    return Finished(name=work.name)


def hold_in_thread(work: Work) -> Finished:
    """Never hears of a cancel."""
    note_start(work)
    while not is_open(work):
        time.sleep(LOOK_AGAIN_S)
    return Finished(name=work.name)


async def swallow_cancels(work: Work) -> Finished:
    """Catches everything and goes on as if nothing had happened."""
    note_start(work)
    while not is_open(work):
        with suppress(trio.Cancelled):
            await trio.sleep(LOOK_AGAIN_S)
    return Finished(name=work.name)


def kill_process(work: Work) -> Finished:
    """Ends its process when ``armed`` is there, as the kernel does when memory runs out."""
    note_start(work)
    while not Path(work.folder, "armed").exists():
        time.sleep(LOOK_AGAIN_S)
    os.kill(os.getpid(), signal.SIGKILL)
    return Finished(name=work.name)
