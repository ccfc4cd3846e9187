"""What this machine can do without us: the limits to compare with."""

from __future__ import annotations

import os
import time
from pathlib import Path

SYNC_S = 0.5
BLOCK = b"\0" * 4096


def syncs_per_s(folder: Path) -> float:
    """How often a file in the folder can be written and synced per second, one after the other."""
    file = os.open(folder / "sync.probe", os.O_CREAT | os.O_WRONLY)
    try:
        count = 0
        began_s = time.monotonic()
        while (took_s := time.monotonic() - began_s) < SYNC_S:
            os.pwrite(file, BLOCK, 4096 * count)
            os.fdatasync(file)
            count += 1
        return count / took_s
    finally:
        os.close(file)


def load_average() -> float:
    """Processes that wanted to run during the last minute, on average."""
    return os.getloadavg()[0]
