"""YAML without the traps of 1.1, doubled keys, substitution."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.errors import ConfigError
from tpfd.pipeline.yaml_text import Substituted, plain_scalar, read_located, read_yaml, substitute


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_only_numbers_switches_and_null_are_more_than_text() -> None:
    text = "{a: on, b: 1:30, c: 1.10, d: 012, e: 1_000, f: 2026-11-30, g: true, h: -5, i: ~, j: '5', k: yes, l: .5"
    assert read_yaml(text + ", m: 0x1F}", "f") == {
        "a": "on", "b": "1:30", "c": Decimal("1.10"), "d": "012", "e": "1_000", "f": "2026-11-30", "g": True, "h": -5,
        "i": None, "j": "5", "k": "yes", "l": Decimal("0.5"), "m": "0x1F",
    }  # fmt: skip


def test_a_decimal_keeps_its_zeros() -> None:
    assert str(plain_scalar("1.10")) == "1.10"


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read_yaml("on: 1\n5: 2\ntrue: 3", "f") == {"on": 1, "5": 2, "true": 3}


def test_every_doubled_key_is_named_with_both_lines() -> None:
    assert problems_of("a: 1\nb: {c: 1, c: 2}\nd:\n  - e: 1\n    e: 2\na: 3\n") == [
        "f.yaml:2: key 'c' stands here a second time, first in line 2 @ $.b.c",
        "f.yaml:5: key 'e' stands here a second time, first in line 4 @ $.d[0].e",
        "f.yaml:6: key 'a' stands here a second time, first in line 1 @ $.a",
    ]


def test_a_key_doubled_three_times_on_one_line() -> None:
    assert len(problems_of("{a: 1, a: 2, a: 3}")) == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [", "f.yaml:"),
        ("a: 1\n---\nb: 2", "one file holds one document"),
        ("? [1]\n: 2", "a key must be plain text"),
        ("a: !thing 1", "tag !thing"),
        ("a: !!python/object:os.system 1", "tag tag:yaml.org"),
        ("<<: {a: 1}", "merge keys"),
        ("a: &x [*x]", "alias *x names nothing"),
        ("a: *gone", "alias *gone"),
        ("[" * 100, "levels deep"),
        ("a: \x01", "not YAML"),
        ("\ta: b", "not YAML"),
    ],
)
def test_what_is_no_plain_document_is_refused_with_its_line(text: str, part: str) -> None:
    assert any(part in problem for problem in problems_of(text))


def test_an_alias_stands_for_its_value() -> None:
    assert read_yaml("a: &x {b: [1, 2]}\nc: *x", "f") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}


def test_a_document_that_unfolds_into_millions_is_refused() -> None:
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefg", "bcdefgh", strict=True)]
    assert any("aliases counted" in problem for problem in problems_of("\n".join(lines)))


def test_an_empty_document_is_nothing() -> None:
    assert read_yaml("# only a comment\n", "f") is None


def test_lines_are_known_by_path() -> None:
    located = read_located("a: 1\nb:\n  - c: 2\n  - d\n", "f")
    assert located.lines == {"$": 1, "$.a": 1, "$.b": 2, "$.b[0]": 3, "$.b[0].c": 3, "$.b[1]": 4}


@given(st.text(alphabet="ab:{}[],-&*!'\"#|>?%@\n 1.~<", max_size=40))
def test_any_text_is_a_tree_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        read_yaml(text, "f")


def test_names_come_from_the_environment() -> None:
    tree = {"a": "x${A}y", "b": ["${B:-none}", 5, True], "c": "${EMPTY:-d}"}
    assert substitute(tree, {"A": "1", "EMPTY": ""}) == {"a": "x1y", "b": ["none", 5, True], "c": ""}


def test_a_dollar_sign_can_be_written() -> None:
    assert substitute("$${NAME} costs $5", {}) == "${NAME} costs $5"


def test_what_came_from_the_environment_is_known_as_such() -> None:
    tree = substitute({"a": "${A}", "b": "plain"}, {"A": "8081"})
    assert isinstance(tree, dict)
    assert isinstance(tree["a"], Substituted)
    assert plain_scalar(tree["a"]) == 8081
    assert not isinstance(tree["b"], Substituted)


def test_every_unset_name_and_open_brace_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        substitute({"a": "${A}", "b": ["${B} ${C}"], "d": "${", "e": "${A:-${B:-1}}"}, {"B": "1"})
    assert [problem.path for problem in caught.value.problems] == ["$.a", "$.b[0]", "$.d", "$.e"]


def test_a_value_is_not_substituted_twice() -> None:
    assert substitute("${A}", {"A": "${B}", "B": "no"}) == "${B}"
