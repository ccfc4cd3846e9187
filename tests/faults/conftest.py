from __future__ import annotations

import pytest

from tests.aws.standin import StandIn
from tests.faults.coverage import Coverage, coverage_of


@pytest.fixture(autouse=True, scope="session")
def _running(aws: StandIn) -> None:
    """One of the stores needs it."""


@pytest.fixture
def coverage(request: pytest.FixtureRequest) -> Coverage:
    """Where a scenario notes what it has cut."""
    return coverage_of(request.config)
