"""Completion envelopes as brokers carry them: read, or refused with a reason, whatever the bytes."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from tpfd.errors import AdmissionError, MalformedError, PayloadError, TooLarge
from tpfd.transports.broker_envelope import ENVELOPE_BYTES, BrokerAnswer, read_answer

GOOD = {"tenantId": "t1", "interactionId": "i-1", "responsePayload": {"ok": True}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
)
MEMBERS = ("tenantId", "interactionId", "correlationId", "resumeToken", "idempotencyKey", "responsePayload", "actor")


def read(**members: Any) -> BrokerAnswer:
    return read_answer(json.dumps({**GOOD, **members}).encode(), 1_000_000)


def test_blank_is_absent_and_unknown_is_ignored() -> None:
    answer = read(interactionId=" ", correlationId=" c-1 ", actor="", idempotencyKey=None, more=[1])
    assert (answer.interaction_id, answer.correlation_id, answer.actor, answer.key) == (None, "c-1", None, None)
    assert answer.payload == {"ok": True}


def test_null_is_a_payload() -> None:
    assert read(responsePayload=None).payload is None


@pytest.mark.parametrize(
    ("members", "paths"),
    [
        ({"tenantId": ""}, ["$.tenantId"]),
        ({"interactionId": None}, ["$.interactionId"]),
        ({"interactionId": 7}, ["$.interactionId"]),
        ({"resumeToken": "x" * 4_097}, ["$.resumeToken"]),
        ({"tenantId": "a/b", "actor": []}, ["$.tenantId", "$.actor"]),
    ],
)
def test_every_problem_is_named(members: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(PayloadError) as caught:
        read(**members)
    assert [problem.path for problem in caught.value.problems] == paths


def test_a_payload_has_to_be_there() -> None:
    with pytest.raises(PayloadError, match=r"is required @ \$\.responsePayload"):
        read_answer(b'{"tenantId": "t1", "interactionId": "i-1"}', 1_000)


@pytest.mark.parametrize("body", [None, b"", b"[1", b"\xff", b'{"tenantId":"a","tenantId":"b"}', b"[" * 500])
def test_what_is_no_json_is_malformed(body: bytes | None) -> None:
    with pytest.raises(MalformedError):
        read_answer(body, 1_000)


def test_a_message_may_be_larger_than_its_payload_but_not_by_any_amount() -> None:
    body = json.dumps(GOOD).encode()
    assert read_answer(body.ljust(1_000 + ENVELOPE_BYTES), 1_000)
    with pytest.raises(TooLarge):
        read_answer(body.ljust(1_001 + ENVELOPE_BYTES), 1_000)


ENVELOPES = st.dictionaries(st.sampled_from(MEMBERS), JSON).map(lambda one: json.dumps(one).encode())


@hypothesis.given(st.binary() | ENVELOPES)
def test_whatever_comes_is_read_or_refused(body: bytes) -> None:
    try:
        answer = read_answer(body, 1_000_000)
    except AdmissionError:
        return
    assert answer.tenant_id
    assert answer.interaction_id or answer.correlation_id
