"""Awaits over a message broker: what such a transport has to bring, and nothing of how any broker works.

Two halves that know nothing of each other. A *wire* carries requests out: ``tpfd.transports.broker_link`` gives it
messages and hears what became of each. An *answer source* brings messages in: ``tpfd.transports.broker_answers`` reads
them, has them admitted, and says when one is dealt with for good. Both sides deliver at least once; ids that never
change make a repeat harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from attrs import frozen

from tpfd.transports.envelopes import Outgoing

__all__ = ["AnswerSource", "Confirmed", "Inbound", "Outcome", "Outgoing", "Postponed", "Unsendable", "Wire"]


@frozen
class Confirmed:
    """The broker has it for good."""


@frozen
class Postponed:
    """It was not sent, or nobody can say: try again.

    Attributes:
        message: why, for a person.
    """

    message: str


@frozen
class Unsendable:
    """It can never be sent: too large, refused for what it is.

    Attributes:
        message: why, for a person.
    """

    message: str


Outcome = Confirmed | Postponed | Unsendable


class Wire(Protocol):
    """Carries the requests of one await step."""

    @property
    def batch_count(self) -> int:
        """Most requests of one call."""

    @property
    def parallel_count(self) -> int:
        """Calls that may be under way at once."""

    async def send(self, requests: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Sends some requests and waits, for a bounded time, until the broker has said what became of them.

        Returns:
            The outcome of each, in the order of the requests.

        Raises:
            TransportError: none was sent, as far as can be known; to be taken as `Postponed` for all of them.

        **Cancellation**: some may have been sent.
        """


@frozen
class Inbound:
    """One message as it came.

    Attributes:
        body: its bytes; None: the broker delivered a message without any.
        position: where it stood, for people and dead letters: ``payments.out[3]@1742``, or a message id.
        mark: what the source needs to know it again.
    """

    body: bytes | None
    position: str
    mark: object


class AnswerSource(Protocol):
    """Brings the answers of one place: a topic, a queue."""

    @property
    def name(self) -> str:
        """For logs, readiness and dead letters: ``kafka:payments.out``."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Receives for as long as the block lasts; at its end says to the broker what is dealt with.

        What was received and is not dealt with by then comes again, here or elsewhere.
        """

    async def receive(self, limit: int) -> Sequence[Inbound]:
        """Waits for messages.

        Args:
            limit: most messages to take.

        Returns:
            Some, or none when there was nothing for a while.

        Raises:
            TransportError: the broker does not answer; to be called again after a while.

        **Cancellation**: nothing is lost.
        """

    def done(self, inbound: Inbound) -> None:
        """This message is dealt with, durably; it need not come again. In any order."""
