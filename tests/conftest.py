"""Fixtures of all tests."""

from __future__ import annotations

from tests.aws.standin import aws, stop
from tests.faults.coverage import (
    pytest_addoption,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

__all__ = ["aws", "pytest_addoption", "pytest_sessionfinish", "pytest_terminal_summary", "pytest_testnodedown"]


def pytest_unconfigure() -> None:
    stop()
