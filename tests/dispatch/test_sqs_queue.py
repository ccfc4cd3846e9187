"""One queue: what is sent, what is not, and what is repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.dispatch.fake_sqs import LIMIT_BYTES, FakeSqs, queue_over, refusal
from tpfd.aws.failures import AwsFailure, Failure
from tpfd.aws.sqs_queue import Message, message_text


def bodies(service: FakeSqs) -> list[str]:
    return [one.body for one in service.stored.values()]


async def received(service: FakeSqs, count: int) -> list[Message]:
    for number in range(count):
        service.put(str(number))
    queue = queue_over(service)
    return [one for _ in range(-(-count // 10)) for one in await queue.receive(10, wait_s=0, visibility_s=60)]


async def test_a12_one_that_is_too_large_holds_up_no_other() -> None:
    service = FakeSqs()
    texts = ["a", "b" * 200_000, "é" * 140_000, "c", "d" * 200_000, "e"]
    (unsent,) = await queue_over(service).send(texts)
    assert (unsent.place, unsent.retryable) == (2, False)
    assert unsent.reason == "280,000 bytes are over the limit of 262,144"
    assert bodies(service) == [text for place, text in enumerate(texts) if place != 2]
    assert service.log == [("send", 3), ("send", 2)]


async def test_a12_the_limit_is_inclusive() -> None:
    service = FakeSqs()
    assert await queue_over(service).send(["x" * LIMIT_BYTES, "y"]) == ()
    assert service.log == [("send", 1), ("send", 1)]


async def test_entries_that_the_service_could_not_take_are_sent_again_alone() -> None:
    service = FakeSqs()
    left = {"3": 2, "7": 1}

    def failure(_operation: str, entry: dict[str, Any]) -> dict[str, Any] | None:
        if not left.get(entry["Id"]):
            return None
        left[entry["Id"]] -= 1
        return {"Code": "InternalError", "SenderFault": False}

    service.entry_failure = failure
    assert await queue_over(service).send([str(number) for number in range(10)]) == ()
    assert sorted(bodies(service)) == [str(number) for number in range(10)]
    assert service.log == [("send", 10), ("send", 2), ("send", 1)]


@pytest.mark.parametrize(
    ("failure", "retryable"),
    [
        ({"Code": "InvalidMessageContents", "SenderFault": True}, False),
        ({"Code": "AWS.SimpleQueueService.ThrottlingException", "SenderFault": True}, True),
        ({"Code": "InternalError", "SenderFault": False}, True),
    ],
)
async def test_an_entry_that_is_never_taken_is_told_with_its_reason(
    failure: dict[str, Any], retryable: bool
) -> None:
    service = FakeSqs()
    service.entry_failure = lambda _, entry: failure if entry["MessageBody"] == "bad" else None
    (unsent,) = await queue_over(service).send(["good", "bad", "good"])
    assert (unsent.place, unsent.retryable) == (1, retryable)
    assert failure["Code"] in unsent.reason
    assert bodies(service) == ["good", "good"]
    assert (len(service.log) > 1) is retryable


class Forgetful(FakeSqs):
    """Takes two entries of a batch and says nothing of the others."""

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        return super().send_message_batch(QueueUrl, Entries[:2])


async def test_an_entry_that_the_answer_forgets_is_sent_again() -> None:
    service = Forgetful()
    assert await queue_over(service).send(list("abcd")) == ()
    assert sorted(bodies(service)) == list("abcd")


async def test_when_the_service_is_away_the_rest_is_unsent_and_soon_so() -> None:
    service = FakeSqs(failing=refusal("ServiceUnavailable"))
    began = trio.current_time()
    unsent = await queue_over(service).send([str(number) for number in range(35)])
    assert [one.place for one in unsent] == list(range(35))
    assert all(one.retryable for one in unsent)
    assert trio.current_time() - began <= 10


async def test_a_queue_that_is_not_there_is_told_at_once() -> None:
    service = FakeSqs(failing=refusal("AWS.SimpleQueueService.NonExistentQueue"))
    (unsent,) = await queue_over(service).send(["a"])
    assert (unsent.retryable, len(service.log)) == (False, 1)
    with pytest.raises(AwsFailure) as caught:
        await queue_over(service).receive(1, wait_s=0, visibility_s=1)
    assert caught.value.failure is Failure.REFUSED


async def test_deletes_and_visibility_go_by_tens() -> None:
    service = FakeSqs()
    messages = await received(service, 23)
    queue = queue_over(service)
    service.log.clear()
    assert await queue.hide(dict.fromkeys(messages, 120)) == ()
    assert {one.shown_at - trio.current_time() for one in service.stored.values()} == {120}
    assert await queue.delete(messages) == ()
    assert service.stored == {}
    assert service.log == [("hide", 10), ("hide", 10), ("hide", 3), ("delete", 10), ("delete", 10), ("delete", 3)]


async def test_a_receipt_that_is_too_old_is_passed_over() -> None:
    service = FakeSqs()
    (old,) = await received(service, 1)
    await trio.sleep(61)
    (new,) = await queue_over(service).receive(1, wait_s=0, visibility_s=60)
    assert (old.message_id, new.receive_count) == (new.message_id, 2)
    queue = queue_over(service)
    assert await queue.delete([old]) == ()
    assert await queue.hide({old: 1}) == ()
    assert len(service.stored) == 1
    assert await queue.delete([new]) == ()
    assert service.stored == {}


async def test_what_could_not_be_deleted_for_now_is_given_back() -> None:
    service = FakeSqs()
    messages = await received(service, 3)
    service.entry_failure = lambda _, entry: (
        {"Code": "InternalError", "SenderFault": False} if entry["ReceiptHandle"] == messages[1].receipt else None
    )
    assert await queue_over(service).delete(messages) == (messages[1],)


async def test_a_receive_waits_for_the_first_message(nursery: trio.Nursery) -> None:
    service = FakeSqs()
    began = trio.current_time()

    async def put_later() -> None:
        await trio.sleep(7)
        service.put("late")

    nursery.start_soon(put_later)
    (message,) = await queue_over(service).receive(10, wait_s=20, visibility_s=60)
    assert (message.body, message.receive_count) == ("late", 1)
    assert 7 <= trio.current_time() - began < 7.5
    assert await queue_over(service).receive(10, wait_s=20, visibility_s=60) == []


def escaped(text: str) -> str:
    return message_text(json.dumps(text, ensure_ascii=False))


async def test_json_with_characters_that_sqs_refuses_stays_the_same_json() -> None:
    text = "a\ufffe\uffff\U0001f600\x00é"
    sent = escaped(text)
    assert json.loads(sent) == text
    assert not {"\ufffe", "\uffff", "\x00"} & set(sent)
