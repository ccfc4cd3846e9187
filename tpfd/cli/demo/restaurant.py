"""The restaurant-approval demo: an order waits for a person, the person decides, the order is settled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import trio

from tpfd.cli.demo.children import daemon, sqlite_or_memory
from tpfd.cli.output import print_fields, tell
from tpfd.client import TpfdClient
from tpfd.client.answers import JsonObject
from tpfd.errors import TpfdError

PIPELINE = "restaurant-approval"
STEP = "await-restaurant-decision"
PENDING_POLL_S = 0.05
PENDING_WITHIN_S = 30.0
DECISIONS = ("accept", "decline")


async def run_restaurant_demo(folder: Path, *, store: str, decision: str | None) -> Any:
    """Runs the demo.

    Args:
        folder: everything the demo writes is in it.
        store: ``sqlite`` or ``memory``.
        decision: ``accept`` or ``decline``; None asks the person at the terminal.

    Returns:
        The terminal state of the order, as JSON data.

    Raises:
        DemoFailed: the daemon ended.
        ExecutionFailed: the order could not be settled.
    """
    sections: dict[str, Any] = {"store": sqlite_or_memory(store, folder)}
    async with daemon(folder, PIPELINE, environ={}, **sections) as (child, client), trio.open_nursery() as nursery:
        nursery.start_soon(child.must_live)
        submission = await client.submit(_order())
        tell(f"order submitted as execution {submission.execution_id}; it waits for the restaurant:")
        interaction = await _pending(client, submission.execution_id)
        print_fields(interaction["requestPayload"], err=True)
        decided = decision or await _ask(lambda: click.prompt("Your decision", type=click.Choice(DECISIONS), err=True))
        answer = decision_payload(decided, str(interaction["requestPayload"]["orderId"]), datetime.now(UTC))
        await client.complete(answer, interaction_id=interaction["interactionId"], actor="demo")
        state = await client.result(submission.execution_id)
        nursery.cancel_scope.cancel(reason="the order is settled")
    return state


def decision_payload(decision: str, order_id: str, now: datetime) -> JsonObject:
    """The answer to the restaurant's interaction: ``{"accepted": {…}}`` or ``{"declined": {…}}``."""
    decided_at = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    if decision == "accept":
        return {"accepted": {"orderId": order_id, "decidedAt": decided_at, "note": "ready in 20 minutes"}}
    return {
        "declined": {"orderId": order_id, "decidedAt": decided_at, "note": "", "declineReason": "the kitchen is closed"}
    }


def _order() -> JsonObject:
    return {
        "requestId": str(uuid4()),
        "customerName": "Ada Lovelace",
        "restaurantName": "Noodle Bar",
        "items": "2x udon, 1x green tea",
        "totalAmount": "42.50",
        "currency": "EUR",
    }


async def _pending(client: TpfdClient, execution_id: str) -> JsonObject:
    with trio.move_on_after(PENDING_WITHIN_S):
        while True:
            for interaction in (await client.pending(step=STEP)).items:
                if interaction["executionId"] == execution_id:
                    return interaction
            await client.peek_result(execution_id)  # says why, when the order was refused
            await trio.sleep(PENDING_POLL_S)
    raise TpfdError(f"execution {execution_id} did not reach {STEP} within {PENDING_WITHIN_S:.0f} s")


async def _ask(prompt: Callable[[], str]) -> str:
    """Asks in a thread: the daemon is watched meanwhile. Left behind when the demo is cancelled."""
    return await trio.to_thread.run_sync(prompt, abandon_on_cancel=True)
