from __future__ import annotations

from typing import NoReturn

import pytest
import trio

from tests.aws.standin import StandIn
from tests.faults.coverage import Coverage, coverage_of


@pytest.fixture(autouse=True, scope="session")
def _running(aws: StandIn) -> None:
    """One of the stores needs it."""


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time runs on while a thread works, by more or less, and the cuts fall elsewhere each time."""

    async def refuse(function: object, *_args: object, **_named: object) -> NoReturn:
        raise AssertionError(f"{function} goes to a thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)


@pytest.fixture
def coverage(request: pytest.FixtureRequest) -> Coverage:
    """Where a scenario notes what it has cut."""
    return coverage_of(request.config)
