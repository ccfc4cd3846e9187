"""One request as bytes: what it says, what it is signed with, and that nobody else can say it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from attrs import evolve

from tests.core.applier import Applier, await_terms
from tpfd.core import signing, tokens
from tpfd.core.records import InteractionRecord, JsonText
from tpfd.core.tokens import SigningKey
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.webhook_message import WebhookMessage, write_message
from tpfd.transports.webhook_target import WebhookTarget

VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "worker-signature.json").read_text("utf-8"))
TARGET = WebhookTarget(
    scheme="https",
    host="pay.example.org",
    port=443,
    path="/hooks?a=b",
    method="POST",
    headers=(("authorization", "Bearer x"), ("user-agent", "shop")),
    timeout_ms=1_000,
    callback={"completionUrl": "https://tpfd.example.org/pipeline/interactions/complete"},
)
KEY = SigningKey("k1", b"a secret of the webhook tests")
NOW = 1_800_000_000_123
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def interaction() -> InteractionRecord:
    store = Applier()
    store.parked_scalar(await_terms(transport_type="webhook"))
    return store.interaction()


def message(
    key: SigningKey | None = KEY, target: WebhookTarget = TARGET, nonce: str = "n1", trace_parent: str | None = TRACE
) -> WebhookMessage:
    return write_message(
        interaction(),
        JsonText('{"amount":"9.70"}'),
        target,
        EnvelopeWriter(key),
        nonce=nonce,
        trace_parent=trace_parent,
        now_epoch_ms=NOW,
    )


def test_the_published_signature_vector() -> None:
    given = {name: VECTOR[name] for name in ("method", "path", "timestamp", "nonce")}
    made = signing.signature(VECTOR["secret"].encode(), **given, body=VECTOR["body"].encode())
    assert made == VECTOR["signature"]
    assert signing.matches(made, VECTOR["signature"])
    assert not signing.matches(made, "")


def test_every_part_of_a_request_is_signed() -> None:
    given = {name: VECTOR[name] for name in ("method", "path", "timestamp", "nonce")}
    for name, value in given.items():
        changed = {**given, name: value + "x"}
        made = signing.signature(VECTOR["secret"].encode(), **changed, body=VECTOR["body"].encode())
        assert made != VECTOR["signature"], name
    assert signing.signature(VECTOR["secret"].encode(), **given, body=b"{}") != VECTOR["signature"]
    assert signing.signature(b"another", **given, body=VECTOR["body"].encode()) != VECTOR["signature"]


def test_the_body_is_the_dispatch_envelope_with_the_callback() -> None:
    record, envelope = interaction(), json.loads(message().body)
    assert envelope["requestPayload"] == {"amount": "9.70"}
    assert envelope["callback"] == TARGET.callback
    assert (envelope["interactionId"], envelope["deadlineEpochMs"]) == (record.interaction_id, record.deadline_epoch_ms)
    tokens.check_identity(tokens.verify(envelope["resumeToken"], [KEY]), record)
    assert "callback" not in json.loads(message(target=evolve(TARGET, callback=None)).body)


def test_the_headers_say_who_sends_it_and_for_what() -> None:
    record, headers = interaction(), dict(message().headers)
    assert headers["host"] == "pay.example.org"
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == record.idempotency_key
    assert headers["x-tpf-interaction-id"] == record.interaction_id
    assert headers["traceparent"] == TRACE
    assert (headers["authorization"], headers["user-agent"]) == ("Bearer x", "shop")
    assert re.fullmatch(r"[ -~]+", "".join(headers.values())), "a header is visible ASCII"
    assert "traceparent" not in dict(message(trace_parent=None).headers)


def test_the_signature_is_over_the_exact_request() -> None:
    sent = message()
    headers = dict(sent.headers)
    assert headers["x-tpf-webhook-timestamp"] == "2027-01-15T08:00:00.123Z"
    assert headers["x-tpf-webhook-nonce"] == "n1"
    assert headers["x-tpf-webhook-signature"] == signing.signature(
        KEY.secret,
        method="POST",
        path="/hooks?a=b",
        timestamp="2027-01-15T08:00:00.123Z",
        nonce="n1",
        body=sent.body,
    )
    assert dict(message(nonce="n2").headers)["x-tpf-webhook-signature"] != headers["x-tpf-webhook-signature"]


def test_without_a_secret_there_is_neither_token_nor_signature() -> None:
    sent = message(key=None)
    assert json.loads(sent.body)["resumeToken"] is None
    assert not [name for name, _ in sent.headers if name.startswith("x-tpf-webhook")]


def test_our_headers_win_over_the_pipeline_s() -> None:
    own = evolve(TARGET, headers=(("idempotency-key", "mine"), ("host", "evil.test"), ("x-tpf-webhook-nonce", "old")))
    headers = message(target=own).headers
    assert len(dict(headers)) == len(headers), "no header twice"
    assert dict(headers)["idempotency-key"] == interaction().idempotency_key
    assert (dict(headers)["host"], dict(headers)["x-tpf-webhook-nonce"]) == ("pay.example.org", "n1")
