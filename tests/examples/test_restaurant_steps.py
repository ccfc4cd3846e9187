from __future__ import annotations

import logging
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from attrs import evolve

from tpfd.core.ids import execution_id
from tpfd.core.records import TenantId
from tpfd.errors import NonRetryableError
from tpfd.examples.restaurant_approval.steps import create_pending, finalize_order, validate_order
from tpfd.examples.restaurant_approval.types import (
    PlaceRestaurantOrderRequest,
    RestaurantOrderAccepted,
    RestaurantOrderDeclined,
)
from tpfd.steps import StepContext

ORDER = UUID("00000000-0000-0000-0000-000000000001")
AT = datetime(2026, 11, 30, 12, 0, 0, 123_000, tzinfo=UTC)
REQUEST = PlaceRestaurantOrderRequest(
    request_id=UUID("00000000-0000-0000-0000-000000000002"),
    customer_name="Zoë",
    restaurant_name="Noodle Bar",
    items="2x udon",
    total_amount=Decimal("42.50"),
    currency="EUR",
)


def _context(random_bits: int = 7, attempt: int = 0) -> StepContext:
    return StepContext(
        execution_id=execution_id(int(AT.timestamp() * 1000), random_bits),
        tenant_id=TenantId("default"),
        pipeline_id="restaurant-approval",
        step_id="s",
        idempotency_key="k",
        transition_key=f"t{attempt}",
        attempt=attempt,
        item_index=None,
        deadline_epoch_ms=None,
        logger=logging.getLogger("test"),  # type: ignore[arg-type]
        reject_item=lambda item, error: None,
        reject_stream=lambda sample, count, error: None,
    )


def test_an_order_is_asked_as_it_was_placed() -> None:
    validated = validate_order(REQUEST, _context())
    assert validated.validated_at == AT
    pending = create_pending(validated, _context())
    assert (pending.request_id, pending.items, str(pending.total_amount)) == (REQUEST.request_id, "2x udon", "42.50")
    assert pending.created_at == AT


def test_every_attempt_asks_the_same_and_every_order_another() -> None:
    def asked(random_bits: int, attempt: int) -> object:
        context = _context(random_bits, attempt)
        return create_pending(validate_order(REQUEST, context), context)

    assert asked(1, 0) == asked(1, 3)
    assert asked(1, 0) != asked(2, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"customer_name": " "}, "customerName is empty"),
        ({"restaurant_name": ""}, "restaurantName is empty"),
        ({"items": ""}, "items is empty"),
        ({"total_amount": Decimal(0)}, "totalAmount 0 is not more than zero"),
        ({"total_amount": Decimal("-1.00")}, "not more than zero"),
        ({"total_amount": Decimal("1.005")}, "has 3 decimals, more than 2"),
        ({"currency": "XXX"}, "currency XXX"),
        ({"items": "", "total_amount": Decimal(0)}, "items is empty; totalAmount"),
    ],
)
def test_orders_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NonRetryableError) as caught:
        validate_order(evolve(REQUEST, **changes), _context())
    assert words in caught.value.message
    assert caught.value.code == "order_refused"


def test_decisions_settle_the_order() -> None:
    accepted = finalize_order(RestaurantOrderAccepted(order_id=ORDER, decided_at=AT, note=""))
    assert (accepted.order_id, accepted.outcome, accepted.restaurant_status) == (ORDER, "APPROVED", "ACCEPTED")
    assert (accepted.resolved_at, accepted.summary) == (AT, "The restaurant takes the order.")
    declined = finalize_order(
        RestaurantOrderDeclined(order_id=ORDER, decided_at=AT, note="sorry", decline_reason="closed")
    )
    assert (declined.outcome, declined.restaurant_status) == ("DECLINED", "DECLINED")
    assert declined.summary == "The restaurant does not take the order: closed (sorry)."
