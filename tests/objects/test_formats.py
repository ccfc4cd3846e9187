from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.errors import NonRetryableError
from tpfd.objects.formats import CsvEncoder, Encoder, JsonArrayEncoder, JsonLinesEncoder, Row, make_encoder


def _text(encoder: Encoder, *batches: list[Row]) -> str:
    return encoder.header() + "".join(map(encoder.rows, batches)) + encoder.footer()


def test_csv_has_one_header_over_all_batches() -> None:
    encoder = CsvEncoder(["id", "name"])
    assert _text(encoder, [{"id": "1", "name": "a"}], [], [{"name": "b", "id": "2"}]) == "id,name\n1,a\n2,b\n"
    assert _text(encoder) == "id,name\n"


def test_csv_quotes_by_rfc_4180() -> None:
    row: Row = {"a": 'say "x"', "b": "1,2", "c": "two\nlines", "d": "cr\ronly", "e": " kept ", "f": ""}
    assert _text(CsvEncoder(list(row), newline="\r\n"), [row]) == (
        'a,b,c,d,e,f\r\n"say ""x""","1,2","two\nlines","cr\ronly", kept ,\r\n'
    )


def test_csv_values_that_are_not_text() -> None:
    row: Row = {"a": None, "b": True, "c": False, "d": 12, "e": {"x": ["1"]}, "f": 1.5}
    assert _text(CsvEncoder(list(row)), [row]) == 'a,b,c,d,e,f\n,true,false,12,"{""x"":[""1""]}",1.5\n'


def test_csv_single_empty_field_is_still_a_row() -> None:
    assert _text(CsvEncoder(["a"]), [{"a": ""}]) == 'a\n""\n'


@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=3, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
)
def test_csv_round_trip(rows: list[list[str]], newline: str) -> None:
    text = _text(CsvEncoder("abc", newline=newline), [dict(zip("abc", row, strict=True)) for row in rows])
    assert list(csv.reader(io.StringIO(text, newline=""), strict=True)) == [["a", "b", "c"], *rows]


@pytest.mark.parametrize("cell", ["=1+1", "+SUM(A1)", "-2+3", "@x", "\t=1", "\r=1", "\uff1d1", "+49 30 1"])
def test_formula_safe_mode_disarms(cell: str) -> None:
    text = _text(CsvEncoder(["a", "b"], formula_safe=True), [{"a": cell, "b": ""}])
    assert list(csv.reader(io.StringIO(text, newline="")))[1][0] == "'" + cell
    plain = _text(CsvEncoder(["a", "b"]), [{"a": cell, "b": ""}])
    assert list(csv.reader(io.StringIO(plain, newline="")))[1][0] == cell


@pytest.mark.parametrize("cell", ["-12.50", "+1", "12", "text", "a=b", ""])
def test_formula_safe_mode_leaves_the_rest_alone(cell: str) -> None:
    assert _text(CsvEncoder(["a", "b"], formula_safe=True), [{"a": cell, "b": "x"}]) == f"a,b\n{cell},x\n"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"a": "1"}, "missing ['b']"),
        ({"a": "1", "c": "2"}, "not known ['c']"),
        ({"a": "1", "b": "2", "c": "3"}, "not known ['c']"),
    ],
)
def test_csv_refuses_rows_that_do_not_fit(row: Row, words: str) -> None:
    with pytest.raises(NonRetryableError) as caught:
        CsvEncoder(["a", "b"]).rows([row])
    assert words in caught.value.message
    assert caught.value.code == "output_row_refused"


@pytest.mark.parametrize("encoder", [CsvEncoder(["a"]), JsonLinesEncoder(), JsonArrayEncoder()])
@pytest.mark.parametrize("value", [float("nan"), object()])
def test_values_without_a_text_form_are_refused(encoder: Encoder, value: object) -> None:
    with pytest.raises(NonRetryableError):
        encoder.rows([{"a": value}])  # type: ignore[dict-item]


def test_json_lines() -> None:
    assert _text(JsonLinesEncoder(), [{"a": "é"}], [{"a": None}]) == '{"a":"é"}\n{"a":null}\n'


@pytest.mark.parametrize("batches", [[], [[]], [[{"a": 1}]], [[{"a": 1}], [], [{"a": 2}, {"a": 3}]]])
def test_json_array_is_one_document(batches: list[list[Row]]) -> None:
    assert json.loads(_text(JsonArrayEncoder(), *batches)) == [row for batch in batches for row in batch]


def test_formats_by_name() -> None:
    assert isinstance(make_encoder("csv", ["a"]), CsvEncoder)
    assert isinstance(make_encoder("jsonl", ["a"]), JsonLinesEncoder)
    assert isinstance(make_encoder("json", ["a"]), JsonArrayEncoder)
    with pytest.raises(ValueError, match="xlsx"):
        make_encoder("xlsx", ["a"])


@pytest.mark.parametrize("columns", [[], ["a", "a"]])
def test_csv_needs_distinct_columns(columns: list[str]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        CsvEncoder(columns)
