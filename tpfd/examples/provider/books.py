"""What the provider answers to what is due, noted before it is sent, whichever way it is sent."""

from __future__ import annotations

import time
from collections.abc import Iterable

from attrs import define, field

from tpfd.examples.provider.decision import Answer, Manners, Mishap, answer
from tpfd.examples.provider.desk import Due
from tpfd.examples.provider.log import RequestLog


@define
class Tally:
    """What happened so far, over all connections."""

    asked_count: int = 0
    approved_count: int = 0
    unapproved_count: int = 0
    duplicate_count: int = 0
    refused_count: int = 0
    repeated_count: int = 0


@define
class Books:
    """Decides and notes.

    Attributes:
        manners: how to behave.
        log: where each request is noted; None notes nothing.
    """

    manners: Manners
    log: RequestLog | None
    tally: Tally = field(factory=Tally)

    async def answers(self, due: Iterable[Due]) -> list[Answer]:
        """The answers to send: none for what is dropped, two for what is doubled.

        Raises:
            UnknownRequest: the amount or the id of a payment cannot be read.
            OutsideError: the log cannot be written; nothing may be answered then.
        """
        answers: list[Answer] = []
        lines: list[bytes] = []
        at_epoch_ms = now_epoch_ms()
        for entry in due:
            given = answer(entry.request, self.manners.reject_probability)
            if not entry.repeats:
                self.tally.approved_count += given.outcome == "approved"
                self.tally.unapproved_count += given.outcome == "unapproved"
                lines.append(given.log_line(at_epoch_ms))
            if entry.mishap is not Mishap.DROP:
                answers += [given] * (2 if entry.mishap is Mishap.DUPLICATE else 1)
        if self.log is not None and lines:
            await self.log.write(lines)
        return answers


def now_epoch_ms() -> int:
    """Wall-clock epoch milliseconds."""
    return time.time_ns() // 1_000_000
