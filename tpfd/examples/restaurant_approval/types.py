"""The types of restaurant-approval, field by field as the contract in ``pipeline.yaml`` has them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from attrs import frozen


@frozen
class PlaceRestaurantOrderRequest:
    """What a customer submits."""

    request_id: UUID
    customer_name: str
    restaurant_name: str
    items: str
    total_amount: Decimal  # in `currency`
    currency: str  # ISO 4217


@frozen
class ValidatedRestaurantOrderRequest:
    """An order that makes sense."""

    request_id: UUID
    customer_name: str
    restaurant_name: str
    items: str
    total_amount: Decimal
    currency: str
    validated_at: datetime  # UTC


@frozen
class PendingRestaurantApproval:
    """What the restaurant is asked."""

    order_id: UUID  # a function of the execution: the same in every attempt
    request_id: UUID
    customer_name: str
    restaurant_name: str
    items: str
    total_amount: Decimal
    currency: str
    created_at: datetime  # UTC


@frozen
class RestaurantOrderAccepted:
    """The restaurant takes the order."""

    order_id: UUID
    decided_at: datetime
    note: str


@frozen
class RestaurantOrderDeclined:
    """The restaurant does not take the order."""

    order_id: UUID
    decided_at: datetime
    note: str
    decline_reason: str


@frozen
class TerminalOrderState:
    """How the order ended."""

    order_id: UUID
    outcome: str  # APPROVED | DECLINED
    resolved_at: datetime  # when the restaurant decided
    restaurant_status: str  # ACCEPTED | DECLINED
    summary: str  # a sentence for a person
