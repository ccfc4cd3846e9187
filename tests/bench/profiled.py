"""Runs the ``tpfd`` command with a sampler inside: ``python -m tests.bench.profiled serve …``.

A timer that runs with the processor time of the process interrupts it every four milliseconds of work; the handler
counts where the event loop stands or, when that waits, where another thread does. The counts are written as JSON to
the file that BENCH_PROFILE names. The product itself knows nothing of this. Only ``serve`` is sampled; a ``demo`` has
the daemon that it starts sampled.

A timer of processor time, not a sampling thread: a thread has to wait for the interpreter lock and gets it where it is
given up, so it sees system calls far too often and the code between them hardly ever.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from tests.bench.processes import PROFILE_VARIABLE
from tpfd.cli import main as cli
from tpfd.cli.demo import children

SAMPLE_S = 0.004
"""What a kernel with 250 ticks per second can do."""
IDLE = {
    ("trio/_core/_io_epoll.py", "get_events"),
    ("trio/_core/_thread_cache.py", "_work"),
    ("tpfd/stores/sqlite_writer.py", "_take"),
    ("tpfd/stores/sqlite_readers.py", "_take"),
    ("threading.py", "wait"),
}
"""Innermost places where a thread has nothing to do."""
LOOP = ("trio/_core/_run.py", "run")

Place = tuple[str, str]


class Sampler:
    """Counts where the threads of this process stand, once its event loop runs."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()  # thread, place of ours, innermost place

    def start(self) -> None:
        """Starts the timer. Call it in the main thread."""
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def finish(self, file: Path) -> None:
        """Stops and writes the counts."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        rows = [[*place, count] for place, count in self._counts.most_common()]
        file.write_text(json.dumps(rows), encoding="utf-8")

    def _look(self, _signal: int, interrupted: FrameType | None) -> None:
        places = _stack(interrupted)
        if LOOP not in places:
            return
        if places[0] not in IDLE:
            self._count("event loop", places)
            return
        main = threading.main_thread().ident
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            places = _stack(frame)
            if ident != main and places[0] not in IDLE:
                self._count("writer" if names.get(ident) == "tpfd-sqlite-writer" else "other threads", places)
                return
        self._counts["event loop", "waiting", "waiting"] += 1

    def _count(self, thread: str, places: list[Place]) -> None:
        ours = next((place for place in places if place[0].startswith(("tpfd/", "tests/bench/steps"))), ("trio", "run"))
        self._counts[thread, ":".join(ours), ":".join(places[0])] += 1


def _stack(frame: FrameType | None) -> list[Place]:
    """The places of a stack, innermost first: path from its package on, and function."""
    places = []
    while frame is not None:
        path = frame.f_code.co_filename
        for root in ("/site-packages/", f"/python{sys.version_info.major}.{sys.version_info.minor}/"):
            path = path.rpartition(root)[2]
        for package in ("/tpfd/", "/tests/bench/"):
            if package in path:
                path = package[1:] + path.rpartition(package)[2]
        places.append((path, frame.f_code.co_name))
        frame = frame.f_back
    return places


def main() -> int:
    """Runs the command line of ``tpfd``."""
    if "serve" not in sys.argv:
        children.COMMAND = (sys.executable, "-m", "tests.bench.profiled")
        return cli.run()
    sampler = Sampler()
    sampler.start()
    try:
        return cli.run()
    finally:
        sampler.finish(Path(os.environ[PROFILE_VARIABLE]))


if __name__ == "__main__":
    sys.exit(main())
