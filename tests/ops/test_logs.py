"""Log lines: their two forms, and that no field can forge one."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.config.secrets import Secret
from tpfd.ops.logs import MAX_TEXT_CHARS, LineFormatter, configure, get_logger, set_level

EVIL = 'a\nlevel=info b\r\x1b[2J\x9b1m\u2028\u202e\ud800"\\'


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards: `configure` takes it over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def record(event: str, fields: dict[str, object] | None = None, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("tpfd.x", level, "x.py", 1, "%s", (event,), None)
    made.created = 1_700_000_000.1234
    made.tpfd_fields = fields or {}
    return made


def as_json(event: str, fields: dict[str, object] | None = None, *, in_journal: bool = False) -> str:
    return LineFormatter("json", in_journal=in_journal).format(record(event, fields))


def as_text(event: str, fields: dict[str, object] | None = None, *, in_journal: bool = False) -> str:
    return LineFormatter("text", in_journal=in_journal).format(record(event, fields))


def test_the_json_form() -> None:
    assert as_json("run_started", {"execution_id": "e-1", "attempt": 2, "amount": Decimal("9.70"), "who": None}) == (
        '{"ts":"2023-11-14T22:13:20.123Z","level":"info","logger":"tpfd.x","event":"run_started",'
        '"execution_id":"e-1","attempt":2,"amount":"9.70","who":null}'
    )


def test_the_text_form() -> None:
    assert as_text("run_started", {"execution_id": "e-1", "note": "two words", "steps": [1, "a"]}) == (
        '2023-11-14T22:13:20.123Z INFO    tpfd.x run_started execution_id=e-1 note="two words" steps=[1,"a"]'
    )


def test_in_the_journal_a_line_has_its_priority_and_text_no_time() -> None:
    assert as_text("e", in_journal=True) == "<6>INFO    tpfd.x e"
    assert as_json("e", in_journal=True).startswith('<6>{"ts":')
    for level, priority in ((logging.DEBUG, 7), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 3)):
        assert LineFormatter("text", in_journal=True).format(record("e", None, level)).startswith(f"<{priority}>")


@pytest.mark.parametrize("form", [as_json, as_text])
def test_no_field_can_forge_a_line_or_move_the_cursor(form: Any) -> None:
    line = form(EVIL, {EVIL: EVIL, "list": [EVIL], "map": {EVIL: EVIL}})
    assert not set(line) & set("\n\r\x1b\x9b\u2028\u202e\ud800")
    if form is as_json:
        decoded = json.loads(line)
        assert decoded["event"] == EVIL
        assert decoded[EVIL] == EVIL


@given(st.text(), st.dictionaries(st.text(), st.text() | st.floats() | st.integers() | st.lists(st.text())))
def test_any_field_gives_one_line_that_json_reads_back(event: str, fields: dict[str, object]) -> None:
    line = as_json(event, fields)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["event"] == event
    assert len(as_text(event, fields).splitlines()) == 1


def test_a_field_cannot_replace_what_the_line_itself_says() -> None:
    decoded = json.loads(as_json("real", {"event": "forged", "level": "debug", "ts": 0}))
    assert (decoded["event"], decoded["level"]) == ("real", "info")
    assert (decoded["event_"], decoded["level_"], decoded["ts_"]) == ("forged", "debug", 0)


def test_odd_values_are_written_all_the_same() -> None:
    loop: list[object] = []
    loop.append(loop)
    odd = {"nan": float("nan"), "bytes": b"x", "error": ValueError("bad"), "secret": Secret(b"hunter2"), "loop": loop}
    decoded = json.loads(as_json("e", odd))
    assert (decoded["nan"], decoded["error"], decoded["secret"]) == ("nan", "ValueError: bad", "Secret(********)")
    assert "hunter2" not in as_text("e", odd)


def test_a_long_value_is_cut_and_counted() -> None:
    decoded = json.loads(as_json("e", {"body": "x" * (MAX_TEXT_CHARS + 5)}))
    assert decoded["body"].endswith("x... (5 more characters)")


def test_levels_and_bound_fields(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure("json", "info", stream=stream, environ={})
    log = get_logger("tpfd.y").bind(tenant_id="t", attempt=1)
    log.debug("not_written")
    log.info("one", attempt=2)
    log.warning("two")
    set_level("error")
    log.warning("not_written")
    log.error("three")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["tenant_id"], line["attempt"]) for line in lines] == [
        ("one", "info", "t", 2),
        ("two", "warning", "t", 1),
        ("three", "error", "t", 1),
    ]


def test_configuring_again_replaces_and_does_not_double(root_logger: logging.Logger) -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("json", "info", stream=first, environ={})
    configure("text", "info", stream=second, environ={})
    get_logger("tpfd.z").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_messages_of_libraries_take_the_same_form(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure("json", "info", stream=stream, environ={})
    logging.getLogger("some.library").warning("port %d\nis taken", 80)
    decoded = json.loads(stream.getvalue())
    assert (decoded["logger"], decoded["event"]) == ("some.library", "port 80\nis taken")


def test_the_sdk_writes_down_no_headers_and_no_payloads_at_any_level(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure("json", "debug", stream=stream, environ={})
    logging.getLogger("botocore.endpoint").debug("sending X-Amz-Security-Token")
    logging.getLogger("botocore.credentials").info("found")
    assert stream.getvalue() == ""
    logging.getLogger("botocore.hooks").warning("trouble")
    assert "trouble" in stream.getvalue()


def test_a_traceback_cannot_forge_a_line_either(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure("text", "info", stream=stream, environ={})
    try:
        raise ValueError("bad\n2026-11-30T00:00:00.000Z INFO    tpfd forged")
    except ValueError as error:
        get_logger("tpfd.z").exception("it_broke", error, step="s")
    head, *rest = stream.getvalue().splitlines()
    assert head.endswith("it_broke step=s")
    assert rest
    assert all(line.startswith("    | ") for line in rest)


def test_the_journal_is_recognised_by_its_stream_not_by_the_variable_alone(root_logger: logging.Logger) -> None:
    with tempfile.TemporaryFile("w+") as journal, tempfile.TemporaryFile("w+") as other:
        status = os.fstat(journal.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        for stream, prefix in ((journal, "<6>INFO"), (other, "20")):
            configure("text", "info", stream=stream, environ=environ)
            get_logger("tpfd.z").info("e")
            stream.seek(0)
            assert stream.read().startswith(prefix)


def test_standard_error_is_the_default(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure("text", "info", environ={})
    get_logger("tpfd.z").info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("tpfd.z here\n")
