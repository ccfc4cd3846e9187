"""Errors in the log that a test announces."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from attrs import define, field


@define(eq=False)
class Expected:
    """Whatever is logged as an error and was not announced fails the test."""

    caplog: pytest.LogCaptureFixture
    _events: set[str] = field(factory=set)

    def error(self, *events: str) -> None:
        """These may be logged as errors."""
        self._events.update(events)

    def surprises(self) -> list[str]:
        return [
            f"{record.getMessage()} {getattr(record, 'tpfd_fields', '')}"
            for record in self.caplog.records
            if record.levelno >= logging.ERROR and record.getMessage() not in self._events
        ]

    def logged(self, event: str) -> list[dict[str, object]]:
        """The fields of every record of an event."""
        return [
            dict(getattr(record, "tpfd_fields", {}))
            for record in self.caplog.records
            if record.getMessage() == event
        ]


@pytest.fixture
def expected(caplog: pytest.LogCaptureFixture) -> Iterator[Expected]:
    """Which errors the log may hold."""
    caplog.set_level(logging.INFO)
    announced = Expected(caplog)
    yield announced
    assert announced.surprises() == []
