"""Ids and keys: pure functions, so that the same thing always gets the same name.

An execution id is made once from time and randomness; every id below it is derived. That is what makes a second run
of the same attempt find its units, interactions and children again instead of making new ones, and what keeps rows
that belong together next to each other in a sorted store.
"""

from __future__ import annotations

from tpfd.core.records import ExecutionId, InteractionId, TenantId, UnitId

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
MAX_ITEMS = 10**9
"""Items that one unit can hold: the width of the zero-padded index in the ids."""


def execution_id(now_epoch_ms: int, random_bits: int) -> ExecutionId:
    """26 characters that sort by time of creation.

    Args:
        now_epoch_ms: 0 up to 48 bits.
        random_bits: 80 random bits.

    Source: the layout is that of ULID (time first, Crockford's base 32).
    """
    value = (now_epoch_ms & ((1 << 48) - 1)) << 80 | random_bits & ((1 << 80) - 1)
    return ExecutionId("".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5)))


def unit_id(execution: ExecutionId, step_index: int) -> UnitId:
    """The unit of one await step in one execution (also in a child's)."""
    return UnitId(f"{execution}.s{step_index:03d}")


def step_index_of(unit: UnitId) -> int:
    """The await step that a unit belongs to."""
    return int(unit.rpartition(".s")[2])


def interaction_id(unit: UnitId, item_index: int) -> InteractionId:
    """The interaction of one item; item 0 for a scalar await."""
    return InteractionId(f"{unit}.{item_index:09d}")


def child_id(unit: UnitId, item_index: int) -> ExecutionId:
    """The child execution that continues one item."""
    return ExecutionId(f"{unit}.c{item_index:09d}")


def transition_key(execution: ExecutionId, step_index: int, redrive_count: int, fence: int) -> str:
    """Names one attempt, in logs and envelopes."""
    return f"{execution}:{step_index}:{redrive_count}:{fence}"


def idempotency_key(tenant: TenantId, execution: ExecutionId, step_id: str, item_index: int) -> str:
    """Names one piece of work for the outside; the same over retries, takeovers and re-drives."""
    return f"{tenant}:{execution}:{step_id}:{item_index}"
