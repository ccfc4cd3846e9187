"""What an answer to a webhook request means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.transports.webhook_replies import MAX_FLOOR_MS, Never, NotNow, Taken, floor_ms, judge

NOW = 1_800_000_000_000  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_taken(status: int) -> None:
    assert judge("h:1", status, "5", NOW) == Taken()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_some_refusals_pass(status: int) -> None:
    assert judge("h:1", status, None, NOW) == NotNow(f"h:1 answered {status}", 0)
    assert judge("h:1", status, "7", NOW) == NotNow(f"h:1 answered {status}", 7_000)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 451, 101, 600])
def test_the_others_do_not(status: int) -> None:
    reply = judge("h:1", status, "7", NOW)
    assert isinstance(reply, Never)
    assert f"h:1 answered {status}" in reply.message


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_says_so(status: int) -> None:
    reply = judge("h:1", status, None, NOW)
    assert isinstance(reply, Never)
    assert "redirects are not followed" in reply.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 0),
        ("", 0),
        ("0", 0),
        ("120", 120_000),
        (" 120 ", 120_000),
        ("999999999", MAX_FLOOR_MS),
        ("99999999999999999999", 0),
        ("Fri, 15 Jan 2027 08:01:00 GMT", 60_000),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        ("Fri, 15 Jan 2100 08:01:00 GMT", MAX_FLOOR_MS),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("²", 0),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(text: str | None, expected: int) -> None:
    assert floor_ms(text, NOW) == expected


@given(st.text(max_size=40))
def test_no_retry_after_does_harm(text: str) -> None:
    assert 0 <= floor_ms(text, NOW) <= MAX_FLOOR_MS
