"""How each scalar is written in JSON, and read back exactly.

A reader takes parsed JSON and gives the Python value; a writer takes the Python value and gives what stands in the
JSON. Both raise `Unfit` with what is wrong, and both check: what a step returns is no more trusted than what the
outside sends. A value that was read and written is the same text again, except that equal instants, UUIDs and signs
have one spelling.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from attrs import frozen

from tpfd.codec.currencies import CODES
from tpfd.codec.kinds import Unfit, kind_of_data
from tpfd.codec.payload_refs import read_payload_ref, write_payload_ref
from tpfd.codec.strict_json import ExponentNumber
from tpfd.pipeline.scalars import Scalar

Reader = Callable[..., Any]
"""``(data, type)``: the converter's hooks pass a type, which is not used."""
Writer = Callable[[Any], Any]

MAX_DECIMAL_DIGITS = 100
"""Before and behind the point; longer is not an amount of anything."""

_DECIMAL = re.compile(rf"[-+]?[0-9]{{1,{MAX_DECIMAL_DIGITS}}}(?:\.[0-9]{{1,{MAX_DECIMAL_DIGITS}}})?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[-+]\d\d:\d\d)", re.ASCII)
_DATETIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DURATION = re.compile(
    r"[-+]?P(?=.)(?:\d+W|(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d{1,9})?S)?)?)", re.ASCII
)
_URI = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII)


@frozen
class ScalarCodec:
    """Reader and writer of one scalar."""

    read: Reader
    write: Writer


def _both(check: Reader) -> ScalarCodec:
    """A scalar that is the same in JSON and in Python."""
    return ScalarCodec(check, check)


def _text(value: Any, _type: Any = None) -> str:
    if not isinstance(value, str):
        raise Unfit(f"text is needed, not {kind_of_data(value)}")
    text = value if type(value) is str else str.__str__(value)  # of a str enum: its value
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unfit("the text holds half of a surrogate pair, which is no character") from None
    return text


def _bool(value: Any, _type: Any = None) -> bool:
    if value is True or value is False:
        return value
    raise Unfit(f"true or false is needed, not {kind_of_data(value)}")


def _int(bits: int) -> Reader:
    limit = 1 << (bits - 1)

    def integer(value: Any, _type: Any = None) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unfit(f"a whole number is needed, not {kind_of_data(value)}")
        if not -limit <= value < limit:
            raise Unfit(f"{value} does not fit into {bits} bits")
        return int(value)

    return integer


def _float(largest: float) -> Reader:
    def number(value: Any, _type: Any = None) -> float:
        if not isinstance(value, (int, float, Decimal)) or isinstance(value, bool):
            raise Unfit(f"a number is needed, not {kind_of_data(value)}")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not abs(found) <= largest:
            raise Unfit(f"{value} is out of range")
        return found

    return number


def _read_decimal(value: Any, _type: Any = None) -> Decimal:
    if type(value) is str:
        if _DECIMAL.fullmatch(value):
            return Decimal(value)
        raise Unfit(f"{value[:40]!r} is not a decimal: plain digits with an optional sign and point, as '1355.90'")
    if isinstance(value, Decimal):
        if isinstance(value, ExponentNumber):
            raise Unfit(f"{value} is written with an exponent; write plain digits")
        _write_decimal(value)
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        found = Decimal(value)
        _write_decimal(found)
        return found
    raise Unfit(f"a decimal is needed, not {kind_of_data(value)}")


def _write_decimal(value: Any) -> str:
    if not isinstance(value, Decimal):
        raise Unfit(f"a Decimal is needed, not {kind_of_data(value)}")
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise Unfit(f"{value} is not a finite number")
    if exponent < -MAX_DECIMAL_DIGITS or value.adjusted() >= MAX_DECIMAL_DIGITS:
        raise Unfit(f"a decimal has at most {MAX_DECIMAL_DIGITS} digits before and behind the point")
    return format(value, "f")


def _read_uuid(value: Any, _type: Any = None) -> UUID:
    if type(value) is str and _UUID.fullmatch(value):
        return UUID(value)
    raise Unfit(f"a UUID is needed, not {kind_of_data(value)}")


def _write_uuid(value: Any) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise Unfit(f"a UUID is needed, not {kind_of_data(value)}")


def _read_timestamp(value: Any, _type: Any = None) -> dt.datetime:
    match = _TIMESTAMP.fullmatch(value) if type(value) is str else None
    if match is None:
        raise Unfit(f"an instant with its offset is needed, as 2026-11-30T12:00:00Z, not {kind_of_data(value)}")
    date, time, fraction, offset = match.groups()
    zone = "+00:00" if offset in "Zz" else offset
    return _utc(dt.datetime.fromisoformat(f"{date}T{time}{_micros(fraction)}{zone}"))


def _write_timestamp(value: Any) -> str:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise Unfit(f"a datetime with a time zone is needed, not {kind_of_data(value)}")
    return _iso(_utc(value).replace(tzinfo=None)) + "Z"


def _utc(value: dt.datetime) -> dt.datetime:
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise Unfit(f"{value.isoformat()} is before the year 1 or after 9999 in UTC") from None


def _read_datetime(value: Any, _type: Any = None) -> dt.datetime:
    match = _DATETIME.fullmatch(value) if type(value) is str else None
    if match is None:
        raise Unfit(f"a local date and time is needed, as 2026-11-30T12:00:00, not {kind_of_data(value)}")
    date, time, fraction = match.groups()
    return dt.datetime.fromisoformat(f"{date}T{time}{_micros(fraction)}")


def _write_datetime(value: Any) -> str:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise Unfit(f"a datetime without a time zone is needed, not {kind_of_data(value)}")
    return _iso(value)


def _micros(fraction: str | None) -> str:
    """Java's instants have nanoseconds, Python's microseconds: what is finer is cut off."""
    return "" if fraction is None else f".{fraction[:6]:0<6}"


def _iso(value: dt.datetime) -> str:
    """Seconds always; milliseconds or microseconds only where there are some, as Java writes them."""
    if value.microsecond == 0:
        return value.isoformat(timespec="seconds")
    return value.isoformat(timespec="microseconds" if value.microsecond % 1_000 else "milliseconds")


def _read_date(value: Any, _type: Any = None) -> dt.date:
    if type(value) is str and _DATE.fullmatch(value):
        return dt.date.fromisoformat(value)
    raise Unfit(f"a date is needed, as 2026-11-30, not {kind_of_data(value)}")


def _write_date(value: Any) -> str:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.isoformat()
    raise Unfit(f"a date is needed, not {kind_of_data(value)}")


def _duration(value: Any, _type: Any = None) -> str:
    text = _text(value)
    if _DURATION.fullmatch(text):
        return text
    raise Unfit(f"{text[:40]!r} is not a duration: write it as PT30S or P1DT12H, without years and months")


def _uri(value: Any, _type: Any = None) -> str:
    text = _text(value)
    if _URI.fullmatch(text):
        return text
    raise Unfit(f"{text[:80]!r} is not a URI")


def _path(value: Any, _type: Any = None) -> str:
    text = _text(value)
    if "\0" in text:
        raise Unfit("a path cannot hold a NUL character")
    return text


def _currency(value: Any, _type: Any = None) -> str:
    text = _text(value)
    if text in CODES:
        return text
    raise Unfit(f"{text[:20]!r} is not an ISO 4217 currency code, as EUR")


def _read_bytes(value: Any, _type: Any = None) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise Unfit(f"not base64: {error}") from None


def _write_bytes(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise Unfit(f"bytes are needed, not {kind_of_data(value)}")


_FLOAT32_MAX = 3.4028235e38
_FLOAT64_MAX = math.nextafter(math.inf, 0)

SCALARS: Mapping[Scalar, ScalarCodec] = {
    Scalar.STRING: _both(_text),
    Scalar.BOOL: _both(_bool),
    Scalar.INT32: _both(_int(32)),
    Scalar.INT64: _both(_int(64)),
    Scalar.FLOAT32: _both(_float(_FLOAT32_MAX)),
    Scalar.FLOAT64: _both(_float(_FLOAT64_MAX)),
    Scalar.DECIMAL: ScalarCodec(_read_decimal, _write_decimal),
    Scalar.UUID: ScalarCodec(_read_uuid, _write_uuid),
    Scalar.TIMESTAMP: ScalarCodec(_read_timestamp, _write_timestamp),
    Scalar.DATE: ScalarCodec(_read_date, _write_date),
    Scalar.DATETIME: ScalarCodec(_read_datetime, _write_datetime),
    Scalar.DURATION: _both(_duration),
    Scalar.URI: _both(_uri),
    Scalar.PATH: _both(_path),
    Scalar.CURRENCY: _both(_currency),
    Scalar.BYTES: ScalarCodec(_read_bytes, _write_bytes),
    Scalar.PAYLOAD_REF: ScalarCodec(read_payload_ref, write_payload_ref),
}
