"""What every provider of dead letters and item rejects does."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from tpfd.core.deadletter import DeadLetter


class DeadLetters(Protocol):
    """Takes dead letters. At least once: a repeat has the same ``envelope_id``."""

    @property
    def durable(self) -> bool:
        """Whether a letter survives this process and its log."""

    async def publish(self, letter: DeadLetter) -> None:
        """Hands one over. Raises DispatchError; the sweeper tries again."""


@frozen(kw_only=True)
class ItemReject:
    """One rejected item, or a rejected stream. Names on the wire are camelCase.

    Attributes:
        reject_scope: ITEM or STREAM.
        item_fingerprint: sha256 of the canonical item.
        payload: canonical JSON of the item (or a sample); None unless payloads are to be included.
    """

    tenant_id: str
    execution_id: str
    correlation_id: str
    idempotency_key: str
    step_class: str
    step_name: str
    reject_scope: str
    retries_observed: int
    retry_limit: int
    final_attempt: bool
    error_class: str
    error_message: str
    rejected_at_epoch_ms: int
    item_fingerprint: str
    item_count: int
    payload: str | None


class ItemRejects(Protocol):
    """Takes rejected items."""

    @property
    def durable(self) -> bool:
        """Whether a reject survives this process and its log."""

    async def publish(self, rejects: tuple[ItemReject, ...]) -> None:
        """Hands some over, together. Raises DispatchError."""
