"""What the provider answers is a pure function of the payment."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpfd.codec.payloads import PayloadCodec
from tpfd.examples import pipeline_text
from tpfd.examples.provider.decision import (
    Manners,
    Mishap,
    Request,
    UnknownRequest,
    answer,
    fingerprint,
    is_rejected,
)
from tpfd.pipeline.loader import load_pipeline


def record(csv_id: str = "1", **over: Any) -> dict[str, Any]:
    return {
        "id": "0b6e2f0a-5d0e-5b6b-8a5e-3f2f3a3a3a3a",
        "csvId": csv_id,
        "recipient": "Zoë",
        "amount": "38.07",
        "currency": "EUR",
        "csvPaymentsInputFilePath": "/in/payments.csv",
        **over,
    }


def message(**over: Any) -> dict[str, Any]:
    return {
        "type": "request",
        "tenantId": "default",
        "executionId": "e-1",
        "interactionId": "e-1.1.0000001",
        "correlationId": "c-1",
        "stepId": "await-payment-provider",
        "deadlineEpochMs": 1_700_000_300_000,
        "inputType": "PaymentRecord",
        "outputType": "PaymentStatus",
        "resumeToken": None,
        "requestPayload": record(),
        "transportMetadata": {},
        **over,
    }


def request(**over: Any) -> Request:
    return Request.from_message(message(requestPayload=record(**over)))


def test_the_answer_fits_the_type_that_the_pipeline_declares() -> None:
    pipeline = load_pipeline(pipeline_text("csv-payments"), "pipeline.yaml", {})
    codec = PayloadCodec(pipeline.types)
    for probability in (0.0, 1.0):
        payload = answer(request(), probability).message["responsePayload"]
        text = orjson.dumps(payload).decode()
        assert orjson.loads(codec.encode("PaymentStatus", codec.decode_json("PaymentStatus", text))) == payload


def test_the_same_payment_gets_the_same_answer_whatever_carries_it() -> None:
    one = answer(Request.from_message(message()), 0.5)
    two = answer(Request.from_message(message(interactionId="e-2.1.0000009", deadlineEpochMs=1)), 0.5)
    assert one.message["responsePayload"] == two.message["responsePayload"]
    assert (one.message["interactionId"], two.message["interactionId"]) == ("e-1.1.0000001", "e-2.1.0000009")


@pytest.mark.parametrize("changed", [{"csvId": "2"}, {"recipient": "Zoe"}, {"amount": "38.070"}, {"currency": "USD"}])
def test_every_field_of_the_payment_counts(changed: dict[str, str]) -> None:
    assert fingerprint(record(**changed)) != fingerprint(record())


def test_where_the_payment_stands_does_not_count() -> None:
    assert fingerprint(record(id="x", csvPaymentsInputFilePath="/elsewhere.csv")) == fingerprint(record())


def test_the_rejected_share_is_the_probability() -> None:
    digests = [fingerprint(record(str(number))) for number in range(20_000)]
    rejected = sum(is_rejected(digest, 0.08) for digest in digests)
    assert 1_450 < rejected < 1_750  # 1,600 give or take four standard deviations


@given(st.binary(min_size=32, max_size=32), st.floats(0, 1), st.floats(0, 1))
def test_what_is_rejected_at_a_small_share_is_rejected_at_a_greater_one(digest: bytes, p: float, q: float) -> None:
    assert not is_rejected(digest, 0.0)
    assert is_rejected(digest, 1.0)
    assert is_rejected(digest, max(p, q)) or not is_rejected(digest, min(p, q))


@pytest.mark.parametrize(
    ("amount", "approved_fee", "refused_fee"),
    [("38.07", "0.38", "0.00"), ("1000", "10", "0"), ("1.250", "0.012", "0.000"), ("543.93", "5.44", "0.00")],
)
def test_the_fee_has_the_decimals_of_the_amount(amount: str, approved_fee: str, refused_fee: str) -> None:
    approved = answer(request(amount=amount), 0.0).message["responsePayload"]["approved"]
    refused = answer(request(amount=amount), 1.0).message["responsePayload"]["unapproved"]
    assert (approved["fee"], refused["fee"]) == (approved_fee, refused_fee)
    assert approved["paymentRecord"]["amount"] == amount


@given(st.decimals(min_value="0.01", max_value="9999999.99", places=2))
def test_the_fee_is_never_written_with_an_exponent(amount: Decimal) -> None:
    fee = answer(request(amount=str(amount)), 0.0).message["responsePayload"]["approved"]["fee"]
    assert "E" not in fee
    assert len(fee.partition(".")[2]) == 2


def test_the_log_line_says_what_was_decided() -> None:
    line = answer(request(), 1.0).log_line(1_700_000_000_123)
    assert line.endswith(b"\n")
    assert orjson.loads(line) == {
        "interactionId": "e-1.1.0000001",
        "csvId": "1",
        "outcome": "unapproved",
        "atEpochMs": 1_700_000_000_123,
    }


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"inputType": "PendingRestaurantApproval"}, "asks about PendingRestaurantApproval"),
        ({"inputType": ""}, "something without a type"),
        ({"requestPayload": None}, "asks about PaymentRecord"),
        ({"requestPayload": {"id": "x"}}, "has no csvId, recipient, amount, currency"),
    ],
)
def test_another_request_is_refused_by_name(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UnknownRequest, match=complaint):
        Request.from_message(message(**changed))


def test_a_qualified_type_name_is_known_too() -> None:
    assert Request.from_message(message(inputType="org.example.PaymentRecord")).interaction_id == "e-1.1.0000001"


@pytest.mark.parametrize("amount", ["much", "", "1,5", "NaN"])
def test_an_amount_that_is_no_number_is_refused(amount: str) -> None:
    with pytest.raises(UnknownRequest, match="not a number"):
        answer(request(amount=amount), 0.0)


def test_a_mishap_happens_as_often_as_it_should_and_never_two_at_once() -> None:
    manners = Manners(drop_probability=0.1, late_probability=0.2, duplicate_probability=0.3)
    dice = random.Random(7)
    seen = [manners.mishap(dice) for _ in range(10_000)]
    shares = {mishap: seen.count(mishap) / len(seen) for mishap in Mishap}
    wanted = {Mishap.DROP: 0.1, Mishap.LATE: 0.2, Mishap.DUPLICATE: 0.3, Mishap.NONE: 0.4}
    assert shares == pytest.approx(wanted, abs=0.02)


def test_a_well_mannered_provider_has_no_mishaps() -> None:
    assert {Manners().mishap(random.Random(seed)) for seed in range(100)} == {Mishap.NONE}
