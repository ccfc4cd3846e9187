"""The one mapping from errors to exit codes."""

from __future__ import annotations

import pytest

from tpfd.cli.demo.children import DemoFailed
from tpfd.cli.exits import Exit, NotYet, exit_code
from tpfd.client import ExecutionFailed, ProblemDetail, ServerRefused, Unreachable
from tpfd.errors import (
    ConfigError,
    Conflict,
    InternalError,
    NonRetryableError,
    NotFound,
    PayloadError,
    Problem,
    StoreError,
    TimedOut,
    TpfdError,
    TransportError,
)

ONE = [Problem("$", "wrong")]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(ONE), Exit.CONFIGURATION),
        (NotYet("later"), Exit.TRY_AGAIN),
        (ExecutionFailed(ProblemDetail(409, "Conflict")), Exit.FAILED),
        (ServerRefused(ProblemDetail(400, "Bad")), Exit.REFUSED),
        (ServerRefused(ProblemDetail(410, "Gone")), Exit.REFUSED),
        (ServerRefused(ProblemDetail(429, "Many")), Exit.TRY_AGAIN),
        (ServerRefused(ProblemDetail(503, "Down")), Exit.TRY_AGAIN),
        (ServerRefused(ProblemDetail(504, "Proxy")), Exit.TRY_AGAIN),
        (ServerRefused(ProblemDetail(500, "Broken")), Exit.FAILED),
        (Unreachable("gone"), Exit.UNREACHABLE),
        (StoreError("gone"), Exit.UNREACHABLE),
        (TransportError("gone"), Exit.UNREACHABLE),
        (PayloadError(ONE), Exit.REFUSED),
        (TimedOut("late"), Exit.REFUSED),
        (NotFound("none"), Exit.REFUSED),
        (Conflict("state"), Exit.REFUSED),
        (NonRetryableError("bad file"), Exit.FAILED),
        (InternalError("invariant"), Exit.FAILED),
        (DemoFailed("numbers"), Exit.FAILED),
    ],
)
def test_each_error_has_its_exit_code(error: TpfdError, code: Exit) -> None:
    assert exit_code(error) is code


def test_the_numbers_are_those_of_the_documentation() -> None:
    assert [int(code) for code in Exit] == [0, 1, 2, 64, 69, 75, 78, 130]
