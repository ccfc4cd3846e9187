from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.errors import NonRetryableError
from tpfd.objects.keys import (
    MAX_KEY_BYTES,
    check_key,
    key_problem,
    next_version,
    render_key,
    template_problem,
    temporary_fence,
    temporary_name,
)

UNSAFE = [
    "../x.csv",
    "/abs/x.csv",
    "a/../../x.csv",
    "a/..",
    "..\\x.csv",
    "a\\b.csv",
    "C:/x.csv",
    "c:x.csv",
    "x\0.csv",
    "x\n.csv",
    "x\u2028.csv",
    "x\u202egpj.csv",
    "x\x85.csv",
    "",
    ".",
    "./x",
    "a//b",
    "a/",
    "a/b.",
    "a./b",
    "a/b ",
    "nul",
    "NUL.csv",
    "a/Con.tar.gz",
    "COM1",
    "lpt¹.txt",
    "aux .csv",
    "conin$",
    "x" * 256,
    "/".join(["x" * 200] * 6),
    "x\ud800",
    ".out.01ABC.7.tmp",
    "a/.out.01ABC.7.tmp",
]


@pytest.mark.parametrize("key", UNSAFE)
def test_a32_unsafe_keys_are_refused(key: str) -> None:
    with pytest.raises(NonRetryableError) as caught:
        check_key(key)
    assert caught.value.code == "object_key_refused"
    assert caught.value.message.isprintable(), "fit for one log line"
    assert len(caught.value.message) < 350


@pytest.mark.parametrize(
    "key", ["2026/07/out.csv", "payments.csv.out", "a b.csv", "Zoë/日本.csv", "...x", "console.csv", "com10", ".hidden"]
)
def test_ordinary_keys_are_taken(key: str) -> None:
    check_key(key)


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "a", "", "C:", "\\"])).map("/".join))
def test_no_accepted_key_leaves_its_root(key: str) -> None:
    if key_problem(key) is None:
        assert posixpath.normpath(posixpath.join("/root", key)) == "/root/" + key
        assert len(key.encode()) <= MAX_KEY_BYTES


def test_templates_are_rendered() -> None:
    values = {"inputName": "p.csv", "executionId": "01E", "date": "2026-07-01", "groupKey": "g", "pipelineId": "csv"}
    assert render_key("{inputName}.out", values) == "p.csv.out"
    assert render_key("{pipelineId}/{date}/{groupKey}-{executionId}.csv", values) == "csv/2026-07-01/g-01E.csv"


def test_a_value_cannot_lead_outside() -> None:
    with pytest.raises(NonRetryableError, match="object key"):
        render_key("{inputName}.out", {"inputName": "../p.csv"})


def test_a_value_with_braces_is_not_rendered_again() -> None:
    assert render_key("{inputName}", {"inputName": "{date}"}) == "{date}"


def test_a_missing_value_is_named() -> None:
    with pytest.raises(NonRetryableError, match=r"\{groupKey\}"):
        render_key("{groupKey}.out", {})


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{input}.out", "known are {groupKey}"),
        ("{inputName.out", "unpaired brace"),
        ("{}.out", "known are"),
        ("../{inputName}", "'..'"),
        ("/{inputName}", "absolute"),
        ("", "empty"),
    ],
)
def test_bad_templates_are_found_before_any_run(template: str, problem: str) -> None:
    assert problem in (template_problem(template) or "")


def test_good_templates_have_no_problem() -> None:
    assert template_problem("{pipelineId}/{date}/{inputName}.out") is None


def test_versions_count_up() -> None:
    key, keys = "a/p.csv.out", []
    for _ in range(3):
        key = next_version(key)
        keys.append(key)
    assert keys == ["a/p.csv.v2.out", "a/p.csv.v3.out", "a/p.csv.v4.out"]
    assert next_version("plain") == "plain.v2"
    assert next_version("plain.v2") == "plain.v3"
    assert next_version(".hidden") == ".hidden.v2"


def test_temporary_names_carry_their_owner() -> None:
    name = temporary_name("a/b/Ünsafe name.csv", "01ABC", 12)
    assert name == ".a_b_Ünsafe_name.csv.01ABC.12.tmp"
    assert temporary_fence(name, "01ABC") == 12
    assert temporary_fence(name, "1ABC") is None
    assert temporary_fence("." + name, "01ABC") == 12
    assert temporary_fence("x" + name, "01ABC") is None
    assert len(temporary_name("é" * 500, "0" * 100, 10**18).encode()) <= 255


@pytest.mark.parametrize("execution_id", ["", "a.b", "a/b", "../x", "a\n"])
def test_temporary_names_refuse_strange_executions(execution_id: str) -> None:
    with pytest.raises(ValueError, match="temporary"):
        temporary_name("x", execution_id, 1)
