"""One webhook request as bytes: the dispatch envelope, and headers that say who sends it and for what."""

from __future__ import annotations

import datetime as dt

from attrs import frozen

from tpfd.core import signing
from tpfd.core.records import InteractionRecord, JsonText
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.webhook_target import WebhookTarget

TIMESTAMP_HEADER = "x-tpf-webhook-timestamp"
NONCE_HEADER = "x-tpf-webhook-nonce"
SIGNATURE_HEADER = "x-tpf-webhook-signature"
INTERACTION_HEADER = "x-tpf-interaction-id"


@frozen(kw_only=True)
class WebhookMessage:
    """A request, ready to be sent once: a repeat has another nonce.

    Attributes:
        headers: without Content-Length, which follows from the body.
    """

    target: WebhookTarget
    headers: tuple[tuple[str, str], ...]
    body: bytes


def write_message(
    record: InteractionRecord,
    request: JsonText,
    target: WebhookTarget,
    envelopes: EnvelopeWriter,
    *,
    nonce: str,
    trace_parent: str | None,
    now_epoch_ms: int,
) -> WebhookMessage:
    """The request about one interaction.

    It is signed with the secret that signs resume tokens; without one it carries neither.

    Args:
        request: its payload, wherever that is stored.
        nonce: fresh, never used before.
        trace_parent: W3C trace context of the execution; None: it has none.
    """
    extra = None if target.callback is None else {"callback": target.callback}
    body = envelopes.request(record, request, now_epoch_ms, extra)
    headers = {
        "content-type": "application/json",
        "user-agent": "tpfd",
        **dict(target.headers),
        "host": target.authority,
        "idempotency-key": record.idempotency_key,
        INTERACTION_HEADER: record.interaction_id,
    }
    if trace_parent is not None:
        headers["traceparent"] = trace_parent
    if envelopes.key is not None:
        timestamp = _instant(now_epoch_ms)
        headers[TIMESTAMP_HEADER] = timestamp
        headers[NONCE_HEADER] = nonce
        headers[SIGNATURE_HEADER] = signing.signature(
            envelopes.key.secret, method=target.method, path=target.path, timestamp=timestamp, nonce=nonce, body=body
        )
    return WebhookMessage(target=target, headers=tuple(headers.items()), body=body)


def _instant(epoch_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as ``2026-11-30T12:00:00.000Z``."""
    at = dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
