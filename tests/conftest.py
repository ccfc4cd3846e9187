"""Fixtures of all tests."""

from __future__ import annotations

from tests.aws.standin import aws, stop

__all__ = ["aws"]


def pytest_unconfigure() -> None:
    stop()
