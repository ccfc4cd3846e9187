"""Reads the completion envelope, as brokers carry it."""

from __future__ import annotations

import re

from attrs import frozen

from tpfd.codec.strict_json import parse_json
from tpfd.core.records import TenantId
from tpfd.errors import MalformedError, PayloadError, Problem, TooLarge

MAX_TEXT_CHARS = 4_096
"""Longest token or name that is read."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
"""Ids and tenants: what is named otherwise can be no request of ours, and must not become part of a key."""
ENVELOPE_BYTES = 64 * 2**10
"""What an envelope may have beside its payload."""


@frozen(kw_only=True)
class BrokerAnswer:
    """A completion that came through a broker.

    Attributes:
        payload: parsed JSON data.
        actor: who says so; None: not told.
    """

    tenant_id: TenantId
    interaction_id: str | None
    correlation_id: str | None
    resume_token: str | None
    key: str | None
    payload: object
    actor: str | None


def read_answer(body: bytes | None, max_payload_bytes: int) -> BrokerAnswer:
    """Reads one message. Unknown members are ignored, blank texts are absent.

    Raises:
        MalformedError: there is nothing, or it is not JSON.
        PayloadError: it is no completion envelope: every problem.
        TooLarge: it cannot hold a payload that would be taken.
    """
    if not body:
        raise MalformedError("the message is empty")
    if len(body) > max_payload_bytes + ENVELOPE_BYTES:
        raise TooLarge(f"the message has {len(body)} bytes; execution.max-payload allows {max_payload_bytes}")
    data = parse_json(body)
    if not isinstance(data, dict):
        raise PayloadError([Problem("$", "expected an object: a completion envelope")])
    problems: list[Problem] = []

    def text(name: str) -> str | None:
        value = data.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            problems.append(Problem(f"$.{name}", "expected a text"))
            return None
        if len(value) > MAX_TEXT_CHARS:
            problems.append(Problem(f"$.{name}", f"has more than {MAX_TEXT_CHARS} characters"))
            return None
        return value.strip() or None

    def name(member: str) -> str | None:
        value = text(member)
        if value is not None and not _NAME.fullmatch(value):
            problems.append(Problem(f"$.{member}", "is not the name of anything that was asked here"))
        return value

    tenant = name("tenantId")
    answer = BrokerAnswer(
        tenant_id=TenantId(tenant or ""),
        interaction_id=name("interactionId"),
        correlation_id=name("correlationId"),
        resume_token=text("resumeToken"),
        key=text("idempotencyKey"),
        payload=data.get("responsePayload"),
        actor=text("actor"),
    )
    if not problems and tenant is None:
        problems.append(Problem("$.tenantId", "is required"))
    if not problems and not (answer.interaction_id or answer.correlation_id):
        problems.append(Problem("$.interactionId", "one of interactionId and correlationId is required"))
    if "responsePayload" not in data:
        problems.append(Problem("$.responsePayload", "is required"))
    if problems:
        raise PayloadError(problems, code="envelope_invalid")
    return answer
