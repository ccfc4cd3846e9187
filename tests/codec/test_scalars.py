"""Each scalar: what is read, what stands in the canonical text, what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.codec.currencies import CODES, MINOR_UNITS
from tpfd.codec.payloads import PayloadCodec
from tpfd.codec.scalars import SCALARS
from tpfd.errors import PayloadError
from tpfd.pipeline.scalars import PayloadRef, Scalar

RoundTrip = Callable[[str, str], str]


@pytest.mark.parametrize(
    ("scalar", "json_text", "written"),
    [
        ("string", '"Zoë \\u00e9"', '"Zoë é"'),
        ("string", '""', '""'),
        ("bool", "true", "true"),
        ("int32", "-2147483648", "-2147483648"),
        ("int64", "9223372036854775807", "9223372036854775807"),
        ("float64", "1e3", "1000.0"),
        ("float64", "0.1", "0.1"),
        ("float64", "5", "5.0"),
        ("float32", "1.5", "1.5"),
        ("decimal", '"9.70"', '"9.70"'),
        ("decimal", "9.70", '"9.70"'),
        ("decimal", "12", '"12"'),
        ("decimal", '"-0.00"', '"-0.00"'),
        ("decimal", '"+5"', '"5"'),
        ("decimal", '"0.0000000001"', '"0.0000000001"'),
        ("decimal", '"123456789012345678901234567890.12"', '"123456789012345678901234567890.12"'),
        ("uuid", '"7F1B1D6E-7D5A-4F8E-9C1A-0B3A0E7F4D11"', '"7f1b1d6e-7d5a-4f8e-9c1a-0b3a0e7f4d11"'),
        ("timestamp", '"2026-11-30T12:00:00Z"', '"2026-11-30T12:00:00Z"'),
        ("timestamp", '"2026-11-30T13:30:00.250+01:30"', '"2026-11-30T12:00:00.250Z"'),
        ("timestamp", '"2026-11-30t12:00:00.123456789z"', '"2026-11-30T12:00:00.123456Z"'),
        ("date", '"2026-02-28"', '"2026-02-28"'),
        ("datetime", '"2026-11-30T12:00"', '"2026-11-30T12:00:00"'),
        ("datetime", '"2026-11-30T12:00:00.5"', '"2026-11-30T12:00:00.500"'),
        ("duration", '"P1DT2H0.5S"', '"P1DT2H0.5S"'),
        ("duration", '"PT1H30M"', '"PT1H30M"'),
        ("duration", '"-PT5M"', '"-PT5M"'),
        ("uri", '"https://example.org/a?b=%20#c"', '"https://example.org/a?b=%20#c"'),
        ("path", '"/data/a b.csv"', '"/data/a b.csv"'),
        ("currency", '"EUR"', '"EUR"'),
        ("bytes", '"AAE="', '"AAE="'),
        ("payload_ref", '{"key": "k", "metadata": {"a": "b"}}', '{"key":"k","sizeBytes":0,"metadata":{"a":"b"}}'),
        ("payload_ref", '{"key": "k", "codec": null, "version": "1"}', '{"key":"k","version":"1","sizeBytes":0}'),
    ],
)
def test_values_that_are_read(one_field: RoundTrip, scalar: str, json_text: str, written: str) -> None:
    assert one_field(scalar, json_text) == written


@pytest.mark.parametrize(
    ("scalar", "json_text", "message"),
    [
        ("string", "5", "text is needed, not the number 5"),
        ("string", "null", "text is needed, not null"),
        ("bool", "1", "true or false is needed"),
        ("int32", "2147483648", "does not fit into 32 bits"),
        ("int64", "9223372036854775808", "does not fit into 64 bits"),
        ("int64", "true", "a whole number is needed, not true"),
        ("int64", "5.0", "a whole number is needed"),
        ("int64", "1e3", "a whole number is needed"),
        ("int64", '"5"', "a whole number is needed"),
        ("float64", "1e999", "out of range"),
        ("float32", "1e39", "out of range"),
        ("float64", '"1"', "a number is needed"),
        ("decimal", '"a lot"', "'a lot' is not a decimal"),
        ("decimal", '"1e3"', "is not a decimal"),
        ("decimal", "1e3", "written with an exponent"),
        ("decimal", "1.5e1", "written with an exponent"),
        ("decimal", '"1.355,90"', "is not a decimal"),
        ("decimal", '"1,355.90"', "is not a decimal"),
        ("decimal", '"NaN"', "is not a decimal"),
        ("decimal", '" 1"', "is not a decimal"),
        ("decimal", '"\\u0661"', "is not a decimal"),
        ("decimal", '".5"', "is not a decimal"),
        ("decimal", '"5."', "is not a decimal"),
        ("decimal", '""', "is not a decimal"),
        ("decimal", "true", "a decimal is needed, not true"),
        ("decimal", "1" * 101, "at most 100 digits"),
        ("decimal", f'"{"1" * 101}"', "is not a decimal"),
        ("uuid", '"7f1b1d6e"', "a UUID is needed"),
        ("uuid", '"{7f1b1d6e-7d5a-4f8e-9c1a-0b3a0e7f4d11}"', "a UUID is needed"),
        ("timestamp", '"2026-11-30T12:00:00"', "an instant with its offset is needed"),
        ("timestamp", '"2026-13-30T12:00:00Z"', "month must be in 1..12"),
        ("timestamp", "1700000000000", "an instant with its offset is needed"),
        ("timestamp", '"0001-01-01T00:00:00+05:00"', "before the year 1"),
        ("date", '"30.11.2026"', "a date is needed"),
        ("date", '"2026-02-30"', "day"),
        ("datetime", '"2026-11-30T12:00:00Z"', "a local date and time is needed"),
        ("duration", '"P"', "is not a duration"),
        ("duration", '"PT"', "is not a duration"),
        ("duration", '"P1M"', "is not a duration"),
        ("duration", '"30s"', "is not a duration"),
        ("uri", '"has space"', "is not a URI"),
        ("uri", '""', "is not a URI"),
        ("path", '"a\\u0000b"', "NUL"),
        ("currency", '"eur"', "not an ISO 4217"),
        ("currency", '"ABC"', "not an ISO 4217"),
        ("bytes", '"AAE"', "not base64"),
        ("bytes", '"A*E="', "not base64"),
        ("payload_ref", '"k"', "a payload reference"),
        ("payload_ref", '{"sizeBytes": 1}', "needs its 'key'"),
        ("payload_ref", '{"key": "k", "sizeBytes": -1}', "sizeBytes must be"),
        ("payload_ref", '{"key": "k", "codec": 5}', "codec must be text"),
        ("payload_ref", '{"key": "k", "metadata": {"a": 1}}', "metadata must be"),
    ],
)
def test_values_that_are_refused(one_field: RoundTrip, scalar: str, json_text: str, message: str) -> None:
    found = one_field(scalar, json_text)
    assert message in found
    assert found.endswith(" @ $.v")


@given(st.decimals(min_value=-(10**40), max_value=10**40) | st.decimals(-(10**40), 10**40, places=4))
def test_a_decimal_that_was_written_reads_back_as_itself(value: Decimal) -> None:
    scalar = SCALARS[Scalar.DECIMAL]
    text = scalar.write(value)
    assert "E" not in text
    assert scalar.read(text) == value
    assert scalar.write(scalar.read(text)) == text


EARLIEST, LATEST = dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1)  # noqa: DTZ001


@given(st.datetimes(min_value=EARLIEST, max_value=LATEST, timezones=st.timezones()))
def test_an_instant_reads_back_as_itself(value: dt.datetime) -> None:
    scalar = SCALARS[Scalar.TIMESTAMP]
    text = scalar.write(value)
    assert text.endswith("Z")
    assert scalar.read(text) == value.astimezone(dt.UTC)  # in one zone: a local time in a gap equals nothing


@given(st.binary())
def test_bytes_read_back(value: bytes) -> None:
    scalar = SCALARS[Scalar.BYTES]
    assert scalar.read(scalar.write(value)) == value


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("scalar", "value", "written"),
    [
        (Scalar.STRING, Colour.RED, "red"),
        (Scalar.DECIMAL, Decimal("1E+2"), "100"),
        (Scalar.DECIMAL, Decimal("1E-7"), "0.0000001"),
        (Scalar.UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Scalar.FLOAT64, 5, 5.0),
    ],
)
def test_what_steps_may_return(scalar: Scalar, value: object, written: object) -> None:
    found = SCALARS[scalar].write(value)
    assert found == written
    assert type(found) is type(written)


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        (Scalar.STRING, b"bytes"),
        (Scalar.STRING, "\ud800"),
        (Scalar.INT64, True),
        (Scalar.INT64, 1.0),
        (Scalar.DECIMAL, 9.7),
        (Scalar.DECIMAL, 9),
        (Scalar.DECIMAL, Decimal("NaN")),
        (Scalar.DECIMAL, Decimal("Infinity")),
        (Scalar.DECIMAL, Decimal("1E+1000000")),
        (Scalar.DECIMAL, Decimal("1E-1000000")),
        (Scalar.FLOAT64, float("nan")),
        (Scalar.FLOAT64, float("inf")),
        (Scalar.UUID, "7f1b1d6e-7d5a-4f8e-9c1a-0b3a0e7f4d11"),
        (Scalar.TIMESTAMP, dt.datetime(2026, 11, 30)),  # noqa: DTZ001
        (Scalar.DATETIME, dt.datetime(2026, 11, 30, tzinfo=dt.UTC)),
        (Scalar.DATE, dt.datetime(2026, 11, 30, tzinfo=dt.UTC)),
        (Scalar.BYTES, "AAE="),
        (Scalar.CURRENCY, "XYZ"),
        (Scalar.PAYLOAD_REF, {"key": "k"}),
        (Scalar.PAYLOAD_REF, PayloadRef(key="")),
    ],
)
def test_what_steps_may_not_return(scalar: Scalar, value: object) -> None:
    with pytest.raises(ValueError, match=r"needed|number|currency|digits|surrogate|range|key"):
        SCALARS[scalar].write(value)


def test_currencies_have_their_decimals() -> None:
    assert [MINOR_UNITS[code] for code in ("EUR", "JPY", "KWD", "CLF")] == [2, 0, 3, 4]
    assert "XAU" in CODES
    assert "XAU" not in MINOR_UNITS
    assert all(len(code) == 3 and code.isupper() for code in CODES)


WRAPPERS = """
  Code: {wraps: string, minLength: 2, maxLength: 3, pattern: "[A-Z]*"}
  Mail: {wraps: string, format: email}
  Amount: {wraps: decimal, minimumExclusive: 0, maximum: 10.5}
  Small: {wraps: int32, minimum: 1, maximumExclusive: 5}
  Kind: {wraps: string, allowedValues: [a, b]}
  Rate: {wraps: decimal, allowedValues: [1, 2.50]}
"""


@pytest.mark.parametrize(
    ("type_name", "json_text", "refusal"),
    [
        ("Code", '"AB"', None),
        ("Code", '"A"', "must have 2 characters or more"),
        ("Code", '"ABCD"', "must have 3 characters or less"),
        ("Code", '"Ab"', "must match"),
        ("Code", '"ÄÖ"', "must match"),
        ("Mail", '"a@b.org"', None),
        ("Mail", '"a@b"', "must be an e-mail address"),
        ("Mail", '"a b@c.org"', "must be an e-mail address"),
        ("Amount", '"0.01"', None),
        ("Amount", '"10.50"', None),
        ("Amount", '"0.00"', "must be more than 0"),
        ("Amount", '"10.51"', "must be 10.5 or less"),
        ("Small", "1", None),
        ("Small", "0", "must be 1 or more"),
        ("Small", "5", "must be less than 5"),
        ("Kind", '"a"', None),
        ("Kind", '"c"', "must be one of a, b"),
        ("Rate", '"2.5"', None),
        ("Rate", '"3"', "must be one of 1, 2.50"),
    ],
)
def test_constraints_of_wrappers(
    codec_of: Callable[[str], PayloadCodec], type_name: str, json_text: str, refusal: str | None
) -> None:
    codec = codec_of(WRAPPERS + f"  T: {{fields: [[v, {type_name}]]}}")
    if refusal is None:
        assert codec.encode("T", codec.decode_json("T", f'{{"v":{json_text}}}'))
        return
    with pytest.raises(PayloadError, match=refusal):
        codec.decode_json("T", f'{{"v":{json_text}}}')


def test_constraints_hold_for_what_steps_return(codec_of: Callable[[str], PayloadCodec]) -> None:
    codec = codec_of(WRAPPERS + "  T: {fields: [[v, Amount]]}")
    value = type(codec.decode_json("T", '{"v":"1"}'))(Decimal(11))
    with pytest.raises(PayloadError, match=r"must be 10.5 or less @ \$\.v"):
        codec.encode("T", value)


def test_a_long_text_never_meets_the_pattern(codec_of: Callable[[str], PayloadCodec]) -> None:
    codec = codec_of('  Evil: {wraps: string, maxLength: 20, pattern: "(a+)+b"}\n  T: {fields: [[v, Evil]]}')
    with pytest.raises(PayloadError, match="20 characters or less"):
        codec.decode_json("T", '{"v":"%s"}' % ("a" * 1000))


def test_an_allowed_value_that_cannot_be_one_is_refused_at_once(codec_of: Callable[[str], PayloadCodec]) -> None:
    with pytest.raises(Exception, match=r"allowedValues\[1\]"):
        codec_of("  Bad: {wraps: int32, allowedValues: [1, x]}")
