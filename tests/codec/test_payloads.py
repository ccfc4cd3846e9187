"""Whole payloads: canonical text, unions, optional fields, and every problem with its path."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.codec.digests import digest
from tpfd.codec.payloads import PayloadCodec
from tpfd.errors import InternalError, MalformedError, PayloadError
from tpfd.pipeline.contract import bind_types
from tpfd.pipeline.loader import load_pipeline

CodecOf = Callable[[str], PayloadCodec]

ORDER = """
  Line: {fields: [[sku, string], [count, int32]]}
  Order:
    fields:
      - [orderId, uuid]
      - [totalAmount, decimal]
      - {name: lines, repeated: Line, maxItems: 3}
      - [note?, string]
      - [code, "string?"]
      - [extra?, "string?"]
  Cash: {fields: [[amount, decimal]]}
  Card: {fields: [[amount, decimal], [last4?, string]]}
  Payment: {variants: {cash: Cash, card: Card}}
  Settled: {fields: [[payment, Payment], {name: refunds, repeated: Payment}]}
  Empty: {fields: []}
  Flags: {fields: [[a?, bool], [b?, bool]]}
"""
FULL = (
    '{"orderId":"00000000-0000-0000-0000-000000000001","totalAmount":"9.70","lines":[{"sku":"a","count":2}],'
    '"note":"Zoë","code":null,"extra":"x"}'
)


@pytest.fixture
def codec(codec_of: CodecOf) -> PayloadCodec:
    return codec_of(ORDER)


def problems(codec: PayloadCodec, type_name: str, data: object) -> list[str]:
    with pytest.raises(PayloadError) as caught:
        codec.decode(type_name, data)
    return [str(problem) for problem in caught.value.problems]


def test_canonical_text_is_what_was_written(codec: PayloadCodec) -> None:
    value = codec.decode_json("Order", FULL)
    assert codec.encode("Order", value) == FULL
    assert (value.order_id, value.total_amount, value.note, value.code) == (UUID(int=1), Decimal("9.70"), "Zoë", None)
    assert value.lines[0].count == 2


def test_order_of_keys_spaces_and_unknown_fields_do_not_matter(codec: PayloadCodec) -> None:
    data = json.loads(FULL)
    shuffled = json.dumps({"unknown": {"a": [1]}, **dict(reversed(data.items()))}, indent=3)
    assert codec.encode("Order", codec.decode_json("Order", shuffled)) == FULL


def test_absent_null_and_empty(codec: PayloadCodec) -> None:
    least = '{"orderId":"00000000-0000-0000-0000-000000000001","totalAmount":"1","code":null}'
    value = codec.decode_json("Order", least)
    assert (value.lines, value.note, value.extra) == ((), None, None)
    assert codec.encode("Order", value) == least.replace('"code"', '"lines":[],"code"')
    with_null = codec.decode_json("Order", least[:-1] + ',"lines":null,"extra":null}')
    assert with_null == value


def test_every_problem_has_its_path(codec: PayloadCodec) -> None:
    lines = [{"sku": 5}, "x", {"sku": "a", "count": True}]
    found = problems(codec, "Order", {"totalAmount": "1e3", "lines": lines, "note": None})
    assert found == [
        "is missing @ $.orderId",
        "'1e3' is not a decimal: plain digits with an optional sign and point, as '1355.90' @ $.totalAmount",
        "text is needed, not the number 5 @ $.lines[0].sku",
        "is missing @ $.lines[0].count",
        "an object with the fields of Line is needed, not the text 'x' @ $.lines[1]",
        "a whole number is needed, not true @ $.lines[2].count",
        "text is needed, not null @ $.note",
        "is missing @ $.code",
    ]


@pytest.mark.parametrize("data", [[], "text", 5, None, True, Decimal("1.5")])
@pytest.mark.parametrize("type_name", ["Order", "Empty", "Flags", "Payment"])
def test_what_is_no_object_is_refused(codec: PayloadCodec, type_name: str, data: object) -> None:
    assert problems(codec, type_name, data)[0].endswith("@ $")


def test_lists_have_bounds(codec: PayloadCodec) -> None:
    data = {**json.loads(FULL), "lines": [{"sku": "a", "count": 1}] * 4}
    assert problems(codec, "Order", data) == ["must have 3 items or less, not 4 @ $.lines"]
    assert "a list is needed, not an object @ $.lines" in problems(codec, "Order", {**json.loads(FULL), "lines": {}})


def test_a_required_list_must_be_there(codec_of: CodecOf) -> None:
    codec = codec_of("  T: {fields: [{name: v, repeated: string, minItems: 1}]}")
    assert problems(codec, "T", {}) == ["is missing @ $.v"]
    assert problems(codec, "T", {"v": None}) == ["must have 1 items or more, not 0 @ $.v"]


def test_unions_are_named_by_their_discriminator(codec: PayloadCodec) -> None:
    value = codec.decode_json("Payment", '{"card":{"amount":"5"}}')
    assert type(value).__name__ == "Card"
    assert codec.encode("Payment", value) == '{"card":{"amount":"5"}}'
    nested = '{"payment":{"cash":{"amount":"1.00"}},"refunds":[{"card":{"amount":"0.50","last4":"1234"}}]}'
    assert codec.encode("Settled", codec.decode_json("Settled", nested)) == nested


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"maybe":{}}', "Payment has no variant 'maybe'; it has cash, card @ $"),
        ("{}", "an object with exactly one of the keys cash, card is needed, not one with 0 keys @ $"),
        ('{"cash":{"amount":"1"},"card":{"amount":"1"}}', "not one with 2 keys @ $"),
        ('{"cash":{}}', "is missing @ $.cash.amount"),
        ('{"cash":null}', "an object with the fields of Cash is needed, not null @ $.cash"),
    ],
)
def test_unions_that_do_not_fit(codec: PayloadCodec, text: str, expected: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.decode_json("Payment", text)
    assert expected in str(caught.value)


def test_a_type_that_nobody_declared_is_an_invariant(codec: PayloadCodec) -> None:
    with pytest.raises(InternalError, match="'Nothing' is not declared"):
        codec.decode("Nothing", {})


def test_text_that_is_not_json_is_another_error(codec: PayloadCodec) -> None:
    with pytest.raises(MalformedError):
        codec.decode_json("Order", "{not json")


def changed(codec: PayloadCodec, **changes: Any) -> Any:
    return attrs.evolve(codec.decode_json("Order", FULL), **changes)


def test_what_a_step_returns_is_checked_as_strictly(codec: PayloadCodec) -> None:
    line = codec.decode_json("Line", '{"sku":"a","count":1}')
    value = changed(
        codec, order_id="1", total_amount=9.7, lines=[line, attrs.evolve(line, count=None), 5], code=7, note=8
    )
    with pytest.raises(PayloadError) as caught:
        codec.encode("Order", value)
    assert [str(problem) for problem in caught.value.problems] == [
        "a UUID is needed, not the text '1' @ $.orderId",
        "a Decimal is needed, not the number 9.7 @ $.totalAmount",
        "a whole number is needed, not null @ $.lines[1].count",
        "a Line is needed, not the number 5 @ $.lines[2]",
        "text is needed, not the number 8 @ $.note",
        "text is needed, not the number 7 @ $.code",
    ]


def test_a_required_field_cannot_be_none(codec: PayloadCodec) -> None:
    with pytest.raises(PayloadError, match=r"a UUID is needed, not null @ \$\.orderId"):
        codec.encode("Order", changed(codec, order_id=None))
    with pytest.raises(PayloadError, match=r"a list is needed, not null @ \$\.lines"):
        codec.encode("Order", changed(codec, lines=None))


def test_another_class_with_the_same_attributes_is_not_taken(codec: PayloadCodec) -> None:
    @attrs.frozen
    class Cash:
        amount: Decimal

    with pytest.raises(PayloadError, match="one of Cash, Card is needed, not a Cash"):
        codec.encode("Payment", Cash(Decimal(1)))
    with pytest.raises(PayloadError, match="a Cash is needed"):
        codec.encode("Cash", Cash(Decimal(1)))


def test_lists_and_tuples_are_the_same_when_written(codec: PayloadCodec) -> None:
    value = codec.decode_json("Order", FULL)
    assert codec.encode("Order", attrs.evolve(value, lines=list(value.lines))) == FULL


def test_unstructured_data_is_plain_json_data(codec: PayloadCodec) -> None:
    assert codec.unstructure("Order", codec.decode_json("Order", FULL)) == json.loads(FULL)


@attrs.frozen
class Picky:
    value: int = attrs.field()

    @value.validator
    def _check(self, attribute: object, value: int) -> None:
        if value == 13:
            raise ValueError("not thirteen")


def test_a_users_class_may_refuse_too() -> None:
    text = """
version: 3
appName: x
types: {Picky: {fields: [[value, int32]]}}
python: {types: {Picky: "m:Picky"}}
steps: [{name: S, input: Picky, output: Picky, python: "m:f"}]
"""
    pipeline = bind_types(load_pipeline(text, "t", {}), lambda reference: Picky)
    codec = PayloadCodec(pipeline.types)
    assert codec.decode_json("Picky", '{"value":5}') == Picky(5)
    with pytest.raises(PayloadError, match=r"refused: not thirteen @ \$"):
        codec.decode_json("Picky", '{"value":13}')


def test_a17_amounts_stay_the_same_text(codec: PayloadCodec) -> None:
    amounts = ["9.70", "543.93", "1196.11", "160.20", "0.10", "0.20"]
    values = [codec.decode_json("Cash", json.dumps({"amount": amount})) for amount in amounts]
    assert [codec.unstructure("Cash", value)["amount"] for value in values] == amounts
    numbers = [codec.decode_json("Cash", f'{{"amount":{amount}}}') for amount in amounts]
    assert [codec.unstructure("Cash", value)["amount"] for value in numbers] == amounts
    assert sum(value.amount for value in values) == Decimal("1910.24")


def test_aliases_and_digests(codec_of: CodecOf) -> None:
    codec = codec_of("  A: {alias: B}\n  B: {fields: [[x, string]]}")
    value = codec.decode_json("A", '{"x":"é"}')
    assert codec.encode("A", value) == codec.encode("B", value) == '{"x":"é"}'
    assert digest(codec.encode("A", value)) == digest('{"x":"é"}')
    assert digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


FIELD_NAMES = ("orderId", "totalAmount", "lines", "sku", "count", "cash", "card", "amount", "payment", "a", "refunds")
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["1", "x", "1.50", "EUR"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELD_NAMES),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(data=DATA, type_name=st.sampled_from(["Order", "Payment", "Settled", "Cash", "Flags", "Line", "Empty"]))
def test_data_fits_and_comes_back_or_every_problem_has_a_path(data: object, type_name: str) -> None:
    refusal = None
    try:
        value = CODEC.decode(type_name, data)
    except PayloadError as error:
        refusal = error
    if refusal is not None:
        assert refusal.problems
        assert not any(problem.message.startswith("refused") for problem in refusal.problems)
        return
    text = CODEC.encode(type_name, value)
    assert CODEC.decode_json(type_name, text) == value
    assert CODEC.encode(type_name, CODEC.decode_json(type_name, text)) == text


CODEC = PayloadCodec(
    load_pipeline(
        f'version: 3\nappName: x\ntypes:\n{ORDER}\nsteps: [{{name: S, input: Order, output: Order, python: "m:f"}}]',
        "t",
        {},
    ).types
)
