"""The same over a real service."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import trio

from tests.aws.standin import StandIn
from tests.dispatch.test_sqs_letters import LETTER, REJECT
from tpfd.aws.calls import AwsCalls
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import SqsQueue, message_text
from tpfd.blocking import Threads
from tpfd.config.load import parse_config
from tpfd.core.hinting import Hint
from tpfd.core.records import ExecutionId, TenantId
from tpfd.daemon import providers
from tpfd.daemon.dispatching import SqsQueues
from tpfd.dispatch.sqs_work import SqsWorkQueue
from tpfd.metrics import Metrics

MakeQueue = Callable[..., SqsQueue]


@pytest.fixture
def make_queue(aws: StandIn) -> MakeQueue:
    def make(limit_bytes: int = 1_048_576) -> SqsQueue:
        url = aws.client("sqs").create_queue(QueueName=aws.name("work"))["QueueUrl"]
        return SqsQueue(
            url=url,
            calls=AwsCalls("sqs", aws.connect("sqs", connections=4), Threads(4)),
            receives=AwsCalls("sqs", aws.connect("sqs", connections=1), Threads(1, abandon_on_cancel=True)),
            max_message_bytes=limit_bytes,
        )

    return make


async def all_of(queue: SqsQueue, count: int) -> list[str]:
    """The bodies of so many messages, which are deleted."""
    found: list[str] = []
    while len(found) < count:
        messages = await queue.receive(10, wait_s=2, visibility_s=30)
        assert messages, f"only {len(found)} of {count} came"
        found += [message.body for message in messages]
        assert await queue.delete(messages) == ()
    assert await queue.receive(10, wait_s=0, visibility_s=30) == []
    return found


@pytest.mark.parametrize("limit_bytes", [262_144, 1_048_576])
async def test_a12_ten_messages_of_which_two_are_large_arrive_once_each(
    make_queue: MakeQueue, limit_bytes: int
) -> None:
    queue = make_queue(limit_bytes)
    texts = [f"{number}" for number in range(10)]
    texts[1] += "x" * 200_000
    texts[6] += "y" * 200_000
    assert await queue.send(texts) == ()
    assert sorted(await all_of(queue, 10)) == sorted(texts)


async def test_a12_a_body_over_the_limit_is_told_and_the_other_nine_arrive(make_queue: MakeQueue) -> None:
    queue = make_queue(262_144)
    texts = [str(number) for number in range(9)]
    (unsent,) = await queue.send([*texts[:4], "z" * 262_145, *texts[4:]])
    assert (unsent.place, unsent.retryable) == (4, False)
    assert sorted(await all_of(queue, 9)) == texts


async def test_characters_of_all_kinds_arrive_as_they_were(make_queue: MakeQueue) -> None:
    queue = make_queue()
    text = '{"a":"é\U0001f600\\u0000\\n' + message_text("\ufffe") + '"}'
    assert await queue.send([text]) == ()
    assert await all_of(queue, 1) == [text]


async def test_a_delayed_message_comes_later(make_queue: MakeQueue) -> None:
    queue = make_queue()
    assert await queue.send(["later", "now"], [1, 0]) == ()
    (first,) = await queue.receive(10, wait_s=2, visibility_s=30)
    assert first.body == "now"
    (second,) = await queue.receive(10, wait_s=5, visibility_s=30)
    assert second.body == "later"


async def test_a05_what_is_held_stays_hidden_and_comes_back_when_its_holder_dies(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.send(["a", "b"])
    held = HeldMessages(name="work", queue=queue, visibility_s=1, trouble={})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.run)
        messages: list[object] = []
        while len(messages) < 2:
            messages += await held.receive(10, 2)
        # Three times its visibility.
        assert await queue.receive(10, wait_s=3, visibility_s=1) == []
        held.queue = Dead()
        nursery.cancel_scope.cancel("it dies: no last word reaches the queue")
    back: list[str] = []
    while len(back) < 2:
        back += [one.body for one in await queue.receive(10, wait_s=5, visibility_s=30)]
    assert sorted(back) == ["a", "b"]


class Dead(SqsQueue):
    """A queue that nothing reaches any more."""

    def __init__(self) -> None:
        """Has nothing."""

    async def hide(self, messages: object) -> tuple[()]:
        return ()


async def test_hints_go_round_between_processes(make_queue: MakeQueue) -> None:
    queue = make_queue()
    hints = [Hint(TenantId("t"), ExecutionId(f"e{number}")) for number in range(25)]
    ends = [
        SqsWorkQueue(held=HeldMessages(name="work", queue=queue, visibility_s=30, trouble={}), wait_s=2)
        for _ in range(2)
    ]
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(end.run)
        assert await ends[0].send([(hint, 0) for hint in hints]) == []
        found: list[Hint] = []
        for end in itertools.cycle(ends):
            deliveries = await end.receive(10)
            found += [delivery.hint for delivery in deliveries]
            for delivery in deliveries:
                end.done(delivery)
            if len(found) == len(hints):
                break
        nursery.cancel_scope.cancel("all are there")
    assert sorted(hint.execution_id for hint in found) == sorted(hint.execution_id for hint in hints)
    # The last word of the keepers has deleted them.
    assert await queue.receive(10, wait_s=0, visibility_s=30) == []




async def test_rejects_and_letters_go_where_the_configuration_says(aws: StandIn) -> None:
    sqs = aws.client("sqs")
    rejected, dead = (sqs.create_queue(QueueName=aws.name(use))["QueueUrl"] for use in ("rejects", "letters"))
    text = f"""
dispatcher: {{sqs: {{endpoint: "{aws.endpoint}"}}}}
item-rejects: {{provider: sqs, sqs: {{queue-url: "{rejected}"}}}}
dead-letters: {{provider: sqs, sqs: {{queue-url: "{dead}"}}}}
"""
    config = parse_config(text, "f", {}, {}).config
    metrics = Metrics()
    queues = SqsQueues(config, metrics)
    rejects, letters = providers.item_rejects(config, queues), providers.dead_letters(config, queues)
    assert (rejects.durable, letters.durable) == (True, True)
    await rejects.publish((REJECT, REJECT))
    await letters.publish(LETTER)
    assert len(sqs.receive_message(QueueUrl=rejected, MaxNumberOfMessages=10)["Messages"]) == 2
    (letter,) = sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10)["Messages"]
    assert '"envelopeId":"e:0"' in letter["Body"]
    counted = 'tpf_aws_requests_total{operation="send_message_batch",outcome="ok",service="sqs"} 2.0'
    assert counted in metrics.exposition().decode()
