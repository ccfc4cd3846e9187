"""Dead letters and rejects as messages."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from tests.dispatch.fake_sqs import LIMIT_BYTES, FakeSqs, queue_over, refusal
from tests.engine.expected import Expected
from tpfd.core.deadletter import DeadLetter, UnreadableAnswer
from tpfd.dispatch.protocol import ItemReject
from tpfd.dispatch.sqs_letters import SqsLetters, SqsRejects
from tpfd.errors import DispatchError

LETTER = DeadLetter(
    envelope_id="e:0",
    tenant_id="t",
    execution_id="e",
    execution_key=None,
    correlation_id="e",
    transition_key="e:1:0:1",
    resource_type="pipeline",
    resource_name="p",
    transport="LOCAL",
    platform="tpfd",
    terminal_status="DLQ",
    terminal_reason="retry_exhausted",
    error_code="c",
    error_message="Über\ufffe",
    retryable=True,
    retries_observed=3,
    created_at_epoch_ms=1,
    step_id="s",
    worker="w",
    redrive_hint="tpfd redrive e",
)
REJECT = ItemReject(
    tenant_id="t",
    execution_id="e",
    correlation_id="e",
    idempotency_key="k",
    step_class="C",
    step_name="s",
    reject_scope="ITEM",
    retries_observed=1,
    retry_limit=1,
    final_attempt=True,
    error_class="ValueError",
    error_message="no",
    rejected_at_epoch_ms=1,
    item_fingerprint="f",
    item_count=1,
    payload='{"a":1}',
)


def sent(service: FakeSqs) -> list[dict[str, object]]:
    return [json.loads(one.body) for one in service.stored.values()]


async def test_a_letter_has_the_names_of_the_wire() -> None:
    service = FakeSqs()
    letters = SqsLetters(queue_over(service))
    assert letters.durable
    await letters.publish(LETTER)
    (body,) = sent(service)
    assert body["envelopeId"] == "e:0"
    assert body["errorMessage"] == "Über\ufffe"
    assert body["executionKey"] is None
    assert len(body) == 20


async def test_an_answer_that_could_not_be_read_fits() -> None:
    service = FakeSqs()
    letter = UnreadableAnswer(
        envelope_id="sqs:q:m",
        transport="sqs:q",
        position="m",
        reason="malformed",
        message="no JSON",
        size_bytes=10**6,
        body_base64="A" * 175_000,
        received_at_epoch_ms=1,
    )
    await SqsLetters(queue_over(service)).publish(letter)
    assert sent(service)[0]["position"] == "m"


@pytest.mark.parametrize(
    ("code", "retryable"), [("ServiceUnavailable", True), ("AWS.SimpleQueueService.NonExistentQueue", False)]
)
async def test_a_letter_that_cannot_be_sent_is_an_error(code: str, retryable: bool) -> None:
    letters = SqsLetters(queue_over(FakeSqs(failing=refusal(code))))
    with pytest.raises(DispatchError, match=code.rpartition(".")[2]) as caught:
        await letters.publish(LETTER)
    assert caught.value.retryable is retryable


async def test_a_large_reject_goes_without_its_payload_and_holds_up_no_other(expected: Expected) -> None:
    service = FakeSqs()
    large = evolve(REJECT, payload="é" * LIMIT_BYTES, item_fingerprint="large")
    await SqsRejects(queue_over(service)).publish((REJECT, large, REJECT))
    assert [one["payload"] for one in sent(service)] == ['{"a":1}', None, '{"a":1}']
    (told,) = expected.logged("reject_payload_left_out")
    assert told["item_fingerprint"] == "large"


async def test_rejects_that_cannot_be_sent_are_an_error_after_the_others_are() -> None:
    service = FakeSqs()
    hopeless = evolve(REJECT, error_message="é" * LIMIT_BYTES)
    with pytest.raises(DispatchError, match="1 of 3 not sent"):
        await SqsRejects(queue_over(service)).publish((REJECT, hopeless, REJECT))
    assert len(service.stored) == 2
