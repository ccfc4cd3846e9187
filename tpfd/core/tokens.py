"""Resume tokens: signed claims that name one interaction.

``base64url(payload) "." base64url(HMAC-SHA256(secret, first part))`` without padding. A token says *for what* it was
made; whether it is still in time is decided by the record, never by the token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence

from attrs import frozen

from tpfd.core.records import InteractionRecord
from tpfd.errors import TokenRejected

MIN_SECRET_BYTES = 16


@frozen(repr=False)
class SigningKey:
    """A secret with the name that tokens carry where several are configured.

    Attributes:
        kid: key id; None when only one secret is configured (the token then names none).
        secret: at least MIN_SECRET_BYTES.
    """

    kid: str | None
    secret: bytes

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r}, secret=***)"


@frozen
class Claims:
    """What a token says. Names and order are those of the wire."""

    tenant_id: str
    interaction_id: str
    correlation_id: str
    execution_id: str
    step_id: str
    deadline_epoch_ms: int
    issued_at_epoch_ms: int


def claims_of(record: InteractionRecord, issued_at_epoch_ms: int) -> Claims:
    """The claims of a token for this interaction."""
    return Claims(
        record.tenant_id,
        record.interaction_id,
        record.correlation_id,
        record.execution_id,
        record.step_id,
        record.deadline_epoch_ms,
        issued_at_epoch_ms,
    )


def sign(claims: Claims, key: SigningKey) -> str:
    """The token for these claims."""
    payload: dict[str, str | int] = {
        "tenantId": claims.tenant_id,
        "interactionId": claims.interaction_id,
        "correlationId": claims.correlation_id,
        "executionId": claims.execution_id,
        "stepId": claims.step_id,
        "deadlineEpochMs": claims.deadline_epoch_ms,
        "issuedAtEpochMs": claims.issued_at_epoch_ms,
    }
    if key.kid is not None:
        payload["kid"] = key.kid
    first = _encode(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())
    return f"{first}.{_signature(first, key)}"


def verify(token: str, keys: Sequence[SigningKey]) -> Claims:
    """The claims of a token that one of the keys signed.

    Raises:
        TokenRejected: no key signed it, or it is not a token at all. The message does not tell which.
    """
    first, dot, signature = token.partition(".")
    if not dot or not token.isascii():
        raise _rejected()
    matches = [key for key in keys if hmac.compare_digest(_signature(first, key), signature)]
    if not matches:
        raise _rejected()
    try:
        body = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
        # The signature proves who signed. A name must not contradict it, but either side may have none: a token from
        # when one secret was configured stays good when a second one is added, and the other way round.
        kid = body.get("kid")
        if kid is not None and all(key.kid is not None and key.kid != kid for key in matches):
            raise _rejected()
        return Claims(
            _text(body, "tenantId"),
            _text(body, "interactionId"),
            _text(body, "correlationId"),
            _text(body, "executionId"),
            _text(body, "stepId"),
            _whole(body, "deadlineEpochMs"),
            _whole(body, "issuedAtEpochMs"),
        )
    except (binascii.Error, ValueError, KeyError, AttributeError, TypeError):
        raise _rejected() from None


def check_identity(claims: Claims, record: InteractionRecord) -> None:
    """Raises TokenRejected unless the claims name exactly this interaction."""
    expected = claims_of(record, claims.issued_at_epoch_ms)
    pairs = (
        (claims.tenant_id, expected.tenant_id),
        (claims.interaction_id, expected.interaction_id),
        (claims.correlation_id, expected.correlation_id),
        (claims.execution_id, expected.execution_id),
        (claims.step_id, expected.step_id),
    )
    # All pairs are compared, whichever differs, so that the time taken tells nothing.
    same = [hmac.compare_digest(mine.encode(), theirs.encode()) for mine, theirs in pairs]
    if not all(same):
        raise _rejected()


def _rejected() -> TokenRejected:
    return TokenRejected("the resume token is not valid for this interaction")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _signature(first: str, key: SigningKey) -> str:
    return _encode(hmac.digest(key.secret, first.encode(), hashlib.sha256().name))


def _text(body: dict[str, object], name: str) -> str:
    value = body[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _whole(body: dict[str, object], name: str) -> int:
    value = body[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(name)
    return value
