"""A failure every second is not a line every second."""

from __future__ import annotations

import logging

import pytest

from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    return [(record.getMessage(), vars(record)["tpfd_fields"].get("repeated")) for record in caplog.records]


def test_a25_a_failure_every_second_for_a_day_is_a_handful_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    repeating = Repeating(get_logger("tpfd.test"), clock=clock)
    for second in range(86_400):
        clock.now_s = second
        repeating.failed("disk_full", path="/x")
    lines = told(caplog)
    assert lines[:4] == [("disk_full", None), ("disk_full", 11), ("disk_full", 31), ("disk_full", 71)]
    assert len(lines) < 40
    assert all(record.levelno == logging.ERROR for record in caplog.records)
    gaps = [float(vars(record)["tpfd_fields"]["failing_for_s"]) for record in caplog.records[1:]]
    assert gaps[-1] - gaps[-2] == 3_600


def test_the_end_is_told_once_with_how_long_it_was(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    repeating = Repeating(get_logger("tpfd.test"), clock=clock)
    repeating.worked("works_again")
    assert told(caplog) == []
    for clock.now_s in (0.0, 1.0, 2.0):
        repeating.failed("no_answer")
    clock.now_s = 5.0
    repeating.worked("works_again")
    repeating.worked("works_again")
    assert told(caplog) == [("no_answer", None), ("works_again", 3)]
    assert vars(caplog.records[1])["tpfd_fields"] == {"after": "no_answer", "repeated": 3, "failing_for_s": 5}
    repeating.failed("no_answer")
    assert told(caplog)[2:] == [("no_answer", None)]


def test_another_kind_of_failure_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    repeating = Repeating(get_logger("tpfd.test"), clock=Clock())
    for event in ("a", "a", "b", "a", "b"):
        repeating.failed(event)
    assert told(caplog) == [("a", None), ("b", None)]
