"""The step functions of deliver-order.

A courier who is asked twice for one parcel must not send two: the idempotency key, which is the same in every attempt,
makes the tracking number.
"""

from __future__ import annotations

from uuid import NAMESPACE_URL, uuid5

import trio

from tpfd.errors import NonRetryableError, RetryableStepError
from tpfd.examples.deliver_order.types import (
    CheckedOrder,
    DeliveryConfirmation,
    DeliveryOrder,
    Parcel,
    ParcelOnItsWay,
)
from tpfd.steps import StepContext

COURIERS = ("swift", "busy", "gone")
MAX_PACKING_MS = 60_000


async def check_order(order: DeliveryOrder) -> CheckedOrder:
    """Takes an order that can be delivered.

    Raises:
        NonRetryableError: ``order_refused``, naming everything that is wrong.
    """
    texts = (("orderNumber", order.order_number), ("customer", order.customer), ("address", order.address))
    problems = [f"{name} is empty" for name, text in texts if not text.strip()]
    if order.courier not in COURIERS:
        problems.append(f"courier {order.courier!r} is none of {', '.join(COURIERS)}")
    if not 0 <= order.packing_ms <= MAX_PACKING_MS:
        problems.append(f"packingMs {order.packing_ms} is not between 0 and {MAX_PACKING_MS}")
    if problems:
        raise NonRetryableError(f"order {order.order_number!r}: {'; '.join(problems)}", code="order_refused")
    return CheckedOrder(
        order_number=order.order_number,
        customer=order.customer,
        address=order.address,
        courier=order.courier,
        packing_ms=order.packing_ms,
    )


async def pack_parcel(order: CheckedOrder) -> Parcel:
    """Packs, which takes its time."""
    await trio.sleep(order.packing_ms / 1000)
    return Parcel(
        order_number=order.order_number,
        label=f"{order.order_number} for {order.customer}",
        address=order.address,
        courier=order.courier,
    )


async def hand_to_courier(parcel: Parcel, context: StepContext) -> ParcelOnItsWay:
    """Gives the parcel to the courier.

    Raises:
        RetryableStepError: ``courier_busy`` or ``courier_gone``: the courier did not take it now.
    """
    if parcel.courier == "gone":
        raise RetryableStepError(f"nobody came for {parcel.label}", code="courier_gone")
    if parcel.courier == "busy" and context.attempt == 0:
        raise RetryableStepError(f"the courier had no room for {parcel.label}", code="courier_busy")
    tracking_number = uuid5(NAMESPACE_URL, f"parcel:{context.idempotency_key}")
    return ParcelOnItsWay(
        order_number=parcel.order_number, courier=parcel.courier, tracking_number=str(tracking_number)
    )


async def confirm_delivery(parcel: ParcelOnItsWay) -> DeliveryConfirmation:
    """Tells the customer."""
    return DeliveryConfirmation(
        order_number=parcel.order_number,
        tracking_number=parcel.tracking_number,
        summary=f"Your order is on its way with {parcel.courier}.",
    )
