"""What is written for people: harmless, aligned, complete."""

from __future__ import annotations

import pytest

from tpfd.cli.output import cell, print_fields, print_table, printable, tell_error, utc
from tpfd.client import ExecutionFailed, ProblemDetail, ServerRefused
from tpfd.errors import ConfigError, Problem, TpfdError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202e\u2028", r"\u202e\u2028"),
        ("\x9b", r"\x9b"),
        ("Zoë 寿司", "Zoë 寿司"),
    ],
)
def test_text_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert cell("name", text) == shown


@pytest.mark.parametrize(
    ("member", "value", "shown"),
    [
        ("updatedAtEpochMs", 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ("stepIndex", 1_700_000_000_123, "1700000000123"),
        ("error", None, "-"),
        ("duplicate", False, "false"),
        ("search", {"a": ["ü"]}, '{"a":["ü"]}'),
    ],
)
def test_a_cell_shows_its_value(member: str, value: object, shown: str) -> None:
    assert cell(member, value) == shown


def test_a_time_has_its_zone() -> None:
    assert utc(0) == "1970-01-01T00:00:00.000Z"


def test_a_table_that_is_not_on_a_terminal_is_never_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    print_table([("A", "a"), ("B", "b")], [{"a": long, "b": 1}, {"a": "short", "b": 22}])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["A" + " " * 501 + "B", f"{long}  1", "short" + " " * 497 + "22"]


def test_fields_that_are_null_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"status": "FAILED", "errorCode": None, "attempt": 3})
    assert capsys.readouterr().out == "status   FAILED\nattempt  3\n"


def test_every_problem_of_a_configuration_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell_error(ConfigError([Problem("$.a", "is wrong"), Problem("$.b", "too\nlong")]))
    assert capsys.readouterr().err == "is wrong @ $.a\ntoo\\nlong @ $.b\n"


def test_a_refusal_shows_all_that_the_daemon_said(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ProblemDetail(429, "Too Many Requests", extra={"executionId": "e-1"})
    tell_error(ServerRefused(problem, retry_after_s=2))
    assert capsys.readouterr().err == "refused (429): Too Many Requests\n  executionId: e-1\n  try again in 2 s\n"


def test_a_failed_execution_is_not_told_as_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ProblemDetail(409, "Conflict", "execution_failed", "the file is refused", extra={"errorCode": "bad"})
    tell_error(ExecutionFailed(problem))
    assert capsys.readouterr().err == "failed: the file is refused\n  errorCode: bad\n"


def test_the_lines_of_a_message_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    tell_error(TpfdError("it ended:\nTraceback \x1b[31m"))
    assert capsys.readouterr().err == "error: it ended:\n  Traceback \\x1b[31m\n"
