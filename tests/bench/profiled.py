"""Runs the ``tpfd`` command with a sampler beside it: ``python -m tests.bench.profiled serve …``.

A thread looks at all stacks every few milliseconds and counts where they stand; the counts are written as JSON to the
file that BENCH_PROFILE names. The product itself knows nothing of this. Only ``serve`` is sampled; a ``demo`` has the
daemon that it starts sampled.

A sample is taken when the sampler gets the interpreter lock, so places that give it up (system calls) are seen a little
more often than they last. Good enough to find where the time goes, not to compare two builds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from tests.bench.processes import PROFILE_VARIABLE
from tpfd.cli import main as cli
from tpfd.cli.demo import children

SAMPLE_S = 0.003
IDLE = {
    ("trio/_core/_io_epoll.py", "get_events"),
    ("trio/_core/_thread_cache.py", "_work"),
    ("tpfd/stores/sqlite_writer.py", "_take"),
    ("threading.py", "wait"),
}
"""Innermost places where a thread has nothing to do."""


class Sampler(threading.Thread):
    """Counts where the threads of this process stand."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self._stop = threading.Event()
        self._places: Counter[tuple[str, str, str]] = Counter()  # thread, place of ours, innermost place

    def run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                if ident != self.ident:
                    self._look(names.get(ident, "other"), frame)

    def _look(self, thread: str, frame: FrameType) -> None:
        inner = _place(frame)
        if inner in IDLE:
            self._places[thread, "idle", ""] += 1
            return
        ours: tuple[str, str] | None = None
        outer: FrameType | None = frame
        while outer is not None and ours is None:
            place = _place(outer)
            ours = place if place[0].startswith(("tpfd/", "tests/bench/")) else None
            outer = outer.f_back
        name = thread if thread in ("MainThread", "tpfd-sqlite-writer") else "worker threads"
        self._places[name, ":".join(ours or ("trio", "run")), ":".join(inner)] += 1

    def finish(self, file: Path) -> None:
        """Stops and writes the counts."""
        self._stop.set()
        self.join()
        rows = [[*place, count] for place, count in self._places.most_common()]
        file.write_text(json.dumps(rows), encoding="utf-8")


def _place(frame: FrameType) -> tuple[str, str]:
    path = frame.f_code.co_filename
    for root in ("/site-packages/", f"/python{sys.version_info.major}.{sys.version_info.minor}/"):
        path = path.rpartition(root)[2]
    for package in ("/tpfd/", "/tests/bench/"):
        if package in path:
            path = package[1:] + path.rpartition(package)[2]
    return path, frame.f_code.co_name


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
