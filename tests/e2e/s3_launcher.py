"""``tpfd`` in a process that kills or stops itself once, at a chosen point of publishing to S3.

Started as ``python s3_launcher.py KILL|STOP POINT MARKER ARGUMENTS…``; the marker file says that it has happened.
Points, in their order:

* ``opening``: nothing of the upload is there yet;
* ``begun``: the upload is made, its marker not written;
* ``marked``: its marker is written, no part sent;
* ``prepared``: all parts are there, the publication is recorded, the object is not completed;
* ``completed``: it is, and this process has not been told;
* ``placed``: it was told, and has not recorded it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tpfd.cli.main import main
from tpfd.core.publication import Staged
from tpfd.daemon import object_providers
from tpfd.objects.protocol import PlaceOutcome
from tpfd.objects.s3_bucket import ReadingClient
from tpfd.objects.s3_target import S3Target

POINTS = ("opening", "begun", "marked", "prepared", "completed", "placed")


def install(number: signal.Signals, wanted: str, marker: Path) -> None:
    """Puts the points between the effects of a publication."""

    def at(point: str) -> None:
        if point == wanted and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), number)
            time.sleep(0.1)  # the signal may be taken by another thread, a moment later; this one goes no further

    class Client(ReadingClient):
        def create_multipart_upload(self, **params: Any) -> Any:
            at("opening")
            answer = self._client.create_multipart_upload(**params)
            at("begun")
            return answer

        def upload_part(self, **params: Any) -> Any:
            at("marked")
            return self._client.upload_part(**params)

        def complete_multipart_upload(self, **params: Any) -> Any:
            answer = self._client.complete_multipart_upload(**params)
            at("completed")
            return answer

    class Target(S3Target):
        async def place(self, staged: Staged, key: str, *, replace: bool) -> PlaceOutcome:
            at("prepared")
            outcome = await super().place(staged, key, replace=replace)
            at("placed")
            return outcome

    vars(object_providers).update(ReadingClient=Client, S3Target=Target)


if __name__ == "__main__":
    action, point, marker, *arguments = sys.argv[1:]
    if point not in POINTS:
        sys.exit(f"{point} is none of {', '.join(POINTS)}")
    install(signal.Signals[f"SIG{action}"], point, Path(marker))
    sys.argv[1:] = arguments
    main()
