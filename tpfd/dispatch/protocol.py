"""What every provider of dead letters, item rejects and work hints does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from attrs import frozen

from tpfd.core.deadletter import DeadLetter, UnreadableAnswer
from tpfd.core.hinting import Hint

Letter = DeadLetter | UnreadableAnswer


class DeadLetters(Protocol):
    """Takes dead letters. At least once: a repeat has the same ``envelope_id``."""

    @property
    def durable(self) -> bool:
        """Whether a letter survives this process and its log."""

    async def publish(self, letter: Letter) -> None:
        """Hands one over. Raises DispatchError; whoever wanted it kept tries again."""


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


@frozen(eq=False)
class Delivery:
    """A hint that was received, in flight until it is settled.

    Attributes:
        handle: the queue's own.
    """

    hint: Hint
    handle: object


class WorkQueue(Protocol):
    """Carries hints between hosts, at least once, in any order."""

    @property
    def longest_delay_ms(self) -> int:
        """How long a hint can be held back."""

    async def send(self, hints: Sequence[tuple[Hint, int]]) -> Sequence[str]:
        """Sends hints, each with the milliseconds that it is held back.

        Returns:
            For each that was not sent, why.
        """

    async def receive(self, limit: int) -> list[Delivery]:
        """Waits for hints; none after a while. They stay in flight until `done` or `show`, as long as `run` runs.

        Raises:
            DispatchError: nothing was received.

        **Cancellation**: what is being received comes back later.
        """

    def done(self, delivery: Delivery) -> None:
        """The hint has had its effect, or needs none."""

    def show(self, delivery: Delivery, after_ms: int) -> None:
        """The hint is for somebody else, or for later."""

    async def run(self) -> NoReturn:
        """Keeps what is in flight; when it is cancelled, it gives that back."""
