"""The dispatch envelope: what the outside gets, the same on every transport."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from attrs import define, frozen

from tpfd.core import tokens
from tpfd.core.records import InteractionRecord, JsonText
from tpfd.core.tokens import SigningKey

_encode = msgspec.json.Encoder().encode


@frozen
class Outgoing:
    """One request on its way.

    Attributes:
        record: the interaction as it was handed out.
        body: its dispatch envelope, JSON in UTF-8.
    """

    record: InteractionRecord
    body: bytes


@define(eq=False)
class EnvelopeWriter:
    """Writes envelopes. One for all transports of a process, so that a new key reaches them all.

    Attributes:
        key: signs resume tokens; None: none are made.
    """

    key: SigningKey | None

    def token(self, record: InteractionRecord, now_epoch_ms: int) -> str | None:
        """The resume token of an interaction."""
        return None if self.key is None else tokens.sign(tokens.claims_of(record, now_epoch_ms), self.key)

    def request(
        self,
        record: InteractionRecord,
        request: JsonText,
        now_epoch_ms: int,
        extra: Mapping[str, object] | None = None,
    ) -> bytes:
        """A dispatch envelope as JSON.

        Args:
            request: the request payload, wherever it is stored.
            extra: keys to put first: the frame type of a socket, the callback of a webhook.
        """
        envelope: dict[str, object] = {
            **(extra or {}),
            "tenantId": record.tenant_id,
            "executionId": record.execution_id,
            "interactionId": record.interaction_id,
            "correlationId": record.correlation_id,
            "stepId": record.step_id,
            "deadlineEpochMs": record.deadline_epoch_ms,
            "inputType": record.input_type,
            "outputType": record.output_type,
            "resumeToken": self.token(record, now_epoch_ms),
            "idempotencyKey": record.idempotency_key,
            # The payload is JSON already.
            "requestPayload": msgspec.Raw(request.encode()),
            "transportMetadata": record.transport_metadata,
        }
        return _encode(envelope)
