"""JSON as it should be: exact, and nothing else."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.codec.strict_json import ExponentNumber, json_text, parse_json
from tpfd.errors import MalformedError


def test_numbers_are_exact() -> None:
    value = parse_json(b'{"a": 9.70, "b": 0.1, "c": 12345678901234567890, "d": -0.0, "e": 1e3}')
    assert value == {"a": Decimal("9.70"), "b": Decimal("0.1"), "c": 12345678901234567890, "d": 0, "e": 1000}
    assert isinstance(value, dict)
    assert [str(value[key]) for key in "abde"] == ["9.70", "0.1", "-0.0", "1E+3"]
    assert isinstance(value["e"], ExponentNumber)
    assert not isinstance(value["a"], ExponentNumber)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "there is nothing"),
        (b"  \n", "there is nothing"),
        (b"{not json", "line 1, column 2"),
        (b'{"a": 1}\n x', "extra data at line 2, column 2"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' stands twice"),
        (b"NaN", "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": "\xff"}', "not UTF-8: byte 0xff at position 7"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\uDC00": 1}', "surrogate"),
        (b'"a\nb"', "invalid control character"),
        (b"1e99999999999999999999", "out of range"),
        (b"9" * 5000, "not usable JSON"),
        (b"{'a': 1}", "line 1, column 2"),
        (b'{"a": 1,}', "not JSON"),
        (b"[1, 2", "not JSON"),
    ],
)
def test_what_is_not_json_is_refused_with_what_and_where(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_json(data)
    assert message in caught.value.message


def test_a_surrogate_in_a_python_text_is_refused() -> None:
    with pytest.raises(MalformedError, match="surrogate"):
        parse_json('"\ud800"')


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"


def test_depth_is_bounded_and_brackets_in_texts_do_not_count() -> None:
    assert parse_json("[" * 64 + "]" * 64)
    with pytest.raises(MalformedError, match="more than 64"):
        parse_json("[" * 65 + "]" * 65)
    with pytest.raises(MalformedError, match="more than 64"):
        parse_json('{"a":' * 65 + "1" + "}" * 65)
    assert parse_json(json.dumps({"a": "[" * 1000, "b": [{}] * 100})) is not None
    assert parse_json("[[1]]", max_depth=2) == [[1]]
    with pytest.raises(MalformedError, match="more than 2"):
        parse_json("[[[1]]]", max_depth=2)


def test_a_hundred_thousand_brackets_do_not_end_the_process() -> None:
    with pytest.raises(MalformedError, match="more than 64"):
        parse_json("[" * 100_000)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_it_reads_what_python_writes(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(JSON)
def test_what_was_read_can_be_written_again(value: object) -> None:
    assert parse_json(json_text(value)) == value


@pytest.mark.parametrize("text", ['{"a":9.70,"b":[1E+3,-0.0,null,true,"ß\\n"],"":{}}', "12345678901234567890", '""'])
def test_numbers_are_written_with_the_digits_that_were_read(text: str) -> None:
    assert json_text(parse_json(text)) == text


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\ud8', max_size=40).map(str.encode))
def test_any_bytes_are_json_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedError):
        parse_json(data)
