"""The step functions of restaurant-approval.

A step must give the same output in every attempt of one execution: the restaurant may have been asked already. So the
order id is derived from the execution, and the times are that of the submit, which the execution id carries.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from tpfd.codec.currencies import MINOR_UNITS
from tpfd.errors import NonRetryableError
from tpfd.examples.restaurant_approval.types import (
    PendingRestaurantApproval,
    PlaceRestaurantOrderRequest,
    RestaurantOrderAccepted,
    RestaurantOrderDeclined,
    TerminalOrderState,
    ValidatedRestaurantOrderRequest,
)
from tpfd.steps import StepContext

_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARS = 10


def validate_order(request: PlaceRestaurantOrderRequest, context: StepContext) -> ValidatedRestaurantOrderRequest:
    """Takes an order that a restaurant can make sense of.

    Raises:
        NonRetryableError: ``order_refused``, naming everything that is wrong.
    """
    problems = [
        f"{name} is empty"
        for name, text in (
            ("customerName", request.customer_name),
            ("restaurantName", request.restaurant_name),
            ("items", request.items),
        )
        if not text.strip()
    ]
    if request.total_amount <= 0:
        problems.append(f"totalAmount {request.total_amount} is not more than zero")
    allowed = MINOR_UNITS.get(request.currency)
    exponent = request.total_amount.as_tuple().exponent
    if allowed is None:
        problems.append(f"currency {request.currency} is none that people pay in")
    elif isinstance(exponent, int) and -exponent > allowed:
        problems.append(f"totalAmount {request.total_amount} has {-exponent} decimals, more than {allowed}")
    if problems:
        raise NonRetryableError(f"order {request.request_id}: {'; '.join(problems)}", code="order_refused")
    return ValidatedRestaurantOrderRequest(
        request_id=request.request_id,
        customer_name=request.customer_name,
        restaurant_name=request.restaurant_name,
        items=request.items,
        total_amount=request.total_amount,
        currency=request.currency,
        validated_at=_submitted_at(context.execution_id),
    )


def create_pending(order: ValidatedRestaurantOrderRequest, context: StepContext) -> PendingRestaurantApproval:
    """Makes the question to the restaurant."""
    return PendingRestaurantApproval(
        order_id=uuid5(NAMESPACE_URL, f"restaurant-order:{context.execution_id}"),
        request_id=order.request_id,
        customer_name=order.customer_name,
        restaurant_name=order.restaurant_name,
        items=order.items,
        total_amount=order.total_amount,
        currency=order.currency,
        created_at=order.validated_at,
    )


def finalize_order(decision: RestaurantOrderAccepted | RestaurantOrderDeclined) -> TerminalOrderState:
    """Settles the order by the restaurant's decision."""
    note = f" ({decision.note})" if decision.note else ""
    if isinstance(decision, RestaurantOrderAccepted):
        outcome, status, summary = "APPROVED", "ACCEPTED", f"The restaurant takes the order{note}."
    else:
        outcome = status = "DECLINED"
        summary = f"The restaurant does not take the order: {decision.decline_reason}{note}."
    return TerminalOrderState(
        order_id=decision.order_id,
        outcome=outcome,
        resolved_at=decision.decided_at,
        restaurant_status=status,
        summary=summary,
    )


def _submitted_at(execution_id: str) -> datetime:
    """Reads the time of the submit, to the millisecond, from the head of an execution id."""
    epoch_ms = 0
    for char in execution_id[:_TIME_CHARS]:
        epoch_ms = epoch_ms * len(_BASE32) + _BASE32.index(char)
    return datetime.fromtimestamp(epoch_ms / 1_000, UTC)
