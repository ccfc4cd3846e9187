"""The steps of deliver-order, and how they fail."""

from __future__ import annotations

import logging

import pytest
import trio.testing
from attrs import evolve

from tpfd.core.ids import execution_id
from tpfd.core.records import TenantId
from tpfd.errors import NonRetryableError, RetryableStepError
from tpfd.examples.deliver_order.steps import check_order, confirm_delivery, hand_to_courier, pack_parcel
from tpfd.examples.deliver_order.types import DeliveryOrder
from tpfd.steps import StepContext

ORDER = DeliveryOrder(order_number="A-1", customer="Zoë", address="1 High Street", courier="swift", packing_ms=30_000)


def context(attempt: int = 0) -> StepContext:
    return StepContext(
        execution_id=execution_id(1_700_000_000_000, 7),
        tenant_id=TenantId("default"),
        pipeline_id="deliver-order",
        step_id="hand-to-courier",
        idempotency_key="k",
        transition_key=f"t{attempt}",
        attempt=attempt,
        item_index=None,
        deadline_epoch_ms=None,
        logger=logging.getLogger("test"),  # type: ignore[arg-type]
        reject_item=lambda item, error: None,
        reject_stream=lambda sample, count, error: None,
    )


async def test_an_order_is_delivered_under_one_tracking_number(autojump_clock: trio.testing.MockClock) -> None:
    parcel = await pack_parcel(await check_order(ORDER))
    assert trio.current_time() == 30
    first, again = await hand_to_courier(parcel, context()), await hand_to_courier(parcel, context(attempt=2))
    assert first == again
    confirmed = await confirm_delivery(first)
    assert (confirmed.order_number, confirmed.tracking_number) == ("A-1", first.tracking_number)
    assert "swift" in confirmed.summary


async def test_couriers_fail_in_ways_that_may_pass(autojump_clock: trio.testing.MockClock) -> None:
    busy = await pack_parcel(await check_order(evolve(ORDER, courier="busy")))
    with pytest.raises(RetryableStepError, match="no room"):
        await hand_to_courier(busy, context())
    assert (await hand_to_courier(busy, context(attempt=1))).courier == "busy"
    gone = await pack_parcel(await check_order(evolve(ORDER, courier="gone")))
    for attempt in range(5):
        with pytest.raises(RetryableStepError, match="nobody came"):
            await hand_to_courier(gone, context(attempt))


async def test_an_order_that_makes_no_sense_names_everything_and_is_not_tried_again() -> None:
    with pytest.raises(NonRetryableError) as refused:
        await check_order(
            DeliveryOrder(order_number="A-2", customer=" ", address="", courier="pigeon", packing_ms=60_001)
        )
    assert refused.value.code == "order_refused"
    for what in ("customer is empty", "address is empty", "pigeon", "60001"):
        assert what in refused.value.message
