"""Durations and sizes: what is read, what is refused and why."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.durations import MAX_DURATION_MS, format_duration, parse_duration_ms, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("PT10M", 600), ("PT90S", 90), ("PT1H30M", 5400), ("P1D", 86400), ("P1W", 604800)]
)
def test_a35_iso_durations_have_their_fixed_length(text: str, seconds: int) -> None:
    assert parse_duration_ms(text) == seconds * 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("P", "names no amount"),
        ("PT", "names no amount"),
        ("P1DT", "names no amount"),
        ("", "a duration is needed"),
        ("-PT5M", "cannot be negative"),
        ("PT-5M", "cannot be negative"),
        ("P1M", "years and months have no fixed length"),
        ("P1Y", "years and months have no fixed length"),
        ("P1Y2M3DT4H", "years and months have no fixed length"),
        ("PT1M1H", "is not a duration"),
        ("30", "has no unit"),
        ("10m", "write PT10M"),
        ("10min", "write PT10M"),
        ("1h", "write PT1H"),
        ("1.5s", "is not a duration"),
        (" 5s", "is not a duration"),
        ("PT0.0001S", "finer than a millisecond"),
        ("P1W1D", "is not a duration"),
        ("P36501D", "longer than"),
        ("٣s", "is not a duration"),
    ],
)
def test_a35_what_has_no_fixed_length_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_duration_ms(text)


@pytest.mark.parametrize("value", [30, 1.5, None, True, [1]])
def test_a_value_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"unit|duration"):
        parse_duration_ms(value)


def test_a35_zero_passes_only_where_it_makes_sense() -> None:
    assert parse_duration_ms("PT0S", zero_ok=True) == 0
    with pytest.raises(ValueError, match="no time at all"):
        parse_duration_ms("PT0S")


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("30s", 30_000), ("500ms", 500), ("PT0.25S", 250), ("P1DT0.5S", 86_400_500)],
)
def test_short_forms_and_fractions(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@given(st.integers(0, MAX_DURATION_MS))
def test_what_is_formatted_reads_back_as_the_same_number(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms), zero_ok=True) == duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "PT0S"), (500, "500ms"), (1500, "PT1.5S"), (300_000, "PT5M"), (93_600_000, "P1DT2H"), (86_400_000, "P1D")],
)
def test_formatted_durations_are_short(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 < parse_duration_ms(text) <= MAX_DURATION_MS


@pytest.mark.parametrize(
    ("text", "size"), [("512B", 512), ("256KiB", 262_144), ("17MiB", 17 * 2**20), ("1GiB", 2**30), ("0B", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("5", "has no unit"),
        (5, "has no unit"),
        ("5MB", "1000 or 1024"),
        ("5k", "1000 or 1024"),
        ("1.5MiB", "not a size"),
        ("-1B", "not a size"),
        (None, "a size is needed"),
        (True, "a size is needed"),
    ],
)
def test_a_size_without_a_clear_unit_is_refused(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_size_bytes(value)
