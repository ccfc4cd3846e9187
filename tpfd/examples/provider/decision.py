"""What the provider answers: pure functions of the request.

Whether a payment is approved depends on the payment alone, never on when, how often or by which provider process it
is asked. So an answer that is asked for twice is the same answer, which is what makes repetitions harmless.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal, DecimalException
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

import orjson
from attrs import frozen

from tpfd.errors import TpfdError

KNOWN_TYPE = "PaymentRecord"
CANONICAL_FIELDS = ("csvId", "recipient", "amount", "currency")
RECORD_FIELDS = ("id", *CANONICAL_FIELDS)
CONVERSATIONS = UUID("5f0e9a52-6c1f-5b5c-9d0b-6f6e2d1c7a11")
FEE_RATE = Decimal("0.01")
STATUS_CODES = {"approved": 1000, "unapproved": 1001}
LATE_BY_MS = 1_000


class UnknownRequest(TpfdError):
    """The step asks for something else than the answer to a payment."""

    code = "unknown_request"


class Mishap(StrEnum):
    """What may go wrong with an answer on its way."""

    NONE = "none"
    DUPLICATE = "duplicate"
    LATE = "late"
    DROP = "drop"


@frozen
class Manners:
    """How the provider behaves.

    Attributes:
        latency_s: from request to answer, in seconds.
        permits_per_second: at most so many answers a second; 0 is without limit.
        reject_probability: share of payments that are not approved; decided by the payment itself.
        duplicate_probability: share of answers that are sent twice.
        late_probability: share of answers that are sent a second after the request's deadline.
        drop_probability: share of requests that are never answered.
    """

    latency_s: float = 0.0
    permits_per_second: float = 0.0
    reject_probability: float = 0.0
    duplicate_probability: float = 0.0
    late_probability: float = 0.0
    drop_probability: float = 0.0

    def mishap(self, dice: random.Random) -> Mishap:
        """What goes wrong with this delivery; each request may meet one mishap at most."""
        roll = dice.random()
        for mishap, probability in (
            (Mishap.DROP, self.drop_probability),
            (Mishap.LATE, self.late_probability),
            (Mishap.DUPLICATE, self.duplicate_probability),
        ):
            if roll < probability:
                return mishap
            roll -= probability
        return Mishap.NONE


@frozen
class Request:
    """One dispatch envelope, as far as the provider needs it.

    Attributes:
        tenant_id: goes back with the answer.
        interaction_id: goes back with the answer.
        correlation_id: goes back with the answer; None when the request had none.
        resume_token: goes back with the answer; None when the request had none.
        deadline_epoch_ms: after this the answer is too late.
        record: the payment, exactly as it came.
        completion_url: where a webhook wants its answer; None: it goes back the way the request came.
    """

    tenant_id: str
    interaction_id: str
    correlation_id: str | None
    resume_token: str | None
    deadline_epoch_ms: int
    record: Mapping[str, Any]
    completion_url: str | None = None

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Request:
        """Reads a ``request`` message.

        Raises:
            UnknownRequest: it asks about something else than a payment, or a field is missing.
        """
        asked = str(message.get("inputType", "")).rpartition(".")[2]
        record = message.get("requestPayload")
        if asked != KNOWN_TYPE or not isinstance(record, dict):
            raise UnknownRequest(
                f"step {message.get('stepId')!r} asks about {asked or 'something without a type'}; "
                f"this provider only knows {KNOWN_TYPE}"
            )
        missing = [name for name in RECORD_FIELDS if not isinstance(record.get(name), str)]
        missing += [name for name in ("tenantId", "interactionId", "deadlineEpochMs") if name not in message]
        if missing:
            raise UnknownRequest(f"a request of step {message.get('stepId')!r} has no {', '.join(missing)}")
        return cls(
            tenant_id=message["tenantId"],
            interaction_id=message["interactionId"],
            correlation_id=message.get("correlationId"),
            resume_token=message.get("resumeToken"),
            deadline_epoch_ms=message["deadlineEpochMs"],
            record=record,
            completion_url=_completion_url(message.get("callback")),
        )


def _completion_url(callback: object) -> str | None:
    url = callback.get("completionUrl") if isinstance(callback, Mapping) else None
    return url if isinstance(url, str) else None


@frozen
class Answer:
    """What the provider says to one request.

    Attributes:
        request: the request.
        outcome: ``approved`` or ``unapproved``.
        message: the ``complete`` message, as JSON data.
    """

    request: Request
    outcome: str
    message: dict[str, Any]

    def log_line(self, at_epoch_ms: int) -> bytes:
        """The provider's own record of it, with its line feed."""
        line = {
            "interactionId": self.request.interaction_id,
            "csvId": self.request.record["csvId"],
            "outcome": self.outcome,
            "atEpochMs": at_epoch_ms,
        }
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def fingerprint(record: Mapping[str, Any]) -> bytes:
    """SHA-256 over the payment's own fields: equal payments are equal, wherever they stand."""
    return hashlib.sha256(orjson.dumps([record[name] for name in CANONICAL_FIELDS])).digest()


def is_rejected(digest: bytes, probability: float) -> bool:
    """Whether the payment with this fingerprint falls into the rejected share.

    Args:
        digest: from `fingerprint`.
        probability: 0 rejects none, 1 all; what is rejected at 0.1 is also rejected at 0.2.
    """
    return int.from_bytes(digest[:8], "big") / 2**64 < probability


def answer(request: Request, reject_probability: float) -> Answer:
    """The answer to a request: the same for the same payment, always.

    Raises:
        UnknownRequest: the amount or the id of the payment cannot be read.
    """
    record = request.record
    digest = fingerprint(record)
    outcome = "unapproved" if is_rejected(digest, reject_probability) else "approved"
    status = {
        "reference": f"PAY-{digest[:6].hex().upper()}",
        "status": outcome,
        "message": "Payment approved" if outcome == "approved" else "Payment refused by the bank",
        "fee": _fee(record["amount"], charged=outcome == "approved"),
        "conversationId": str(uuid5(CONVERSATIONS, record["id"])),
        "statusCode": STATUS_CODES[outcome],
        "paymentRecordId": record["id"],
        "paymentRecord": record,
    }
    return Answer(
        request,
        outcome,
        {
            "type": "complete",
            "tenantId": request.tenant_id,
            "interactionId": request.interaction_id,
            "correlationId": request.correlation_id,
            "resumeToken": request.resume_token,
            "responsePayload": {outcome: status},
            "actor": "mock-payment-provider",
        },
    )


def _fee(amount: str, *, charged: bool) -> str:
    """One percent, with as many decimals as the amount has; nothing for a refused payment."""
    try:
        value = Decimal(amount)
        unit = Decimal(1).scaleb(min(0, int(value.as_tuple().exponent)))
        return str((value * FEE_RATE if charged else Decimal(0)).quantize(unit, ROUND_HALF_EVEN))
    except (DecimalException, ValueError) as error:
        raise UnknownRequest(f"the amount {amount!r} of a payment is not a number") from error
