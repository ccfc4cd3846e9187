"""Awaits over SQS on virtual time: requests through a link, answers from a queue, whatever goes wrong with either."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from attrs import define, field

from tests.dispatch.fake_sqs import FakeSqs, queue_over, refusal
from tests.engine.asking import lines, whole
from tests.engine.expected import Expected
from tests.engine.pipelines import BEGIN, FINISH, PARSE, Batch, Row, batch, begin, finish, parse, program, waiting
from tests.engine.world import Lost, Process, S, World
from tests.transports.broker_double import Grave
from tpfd.aws.sqs_held import HeldMessages
from tpfd.core.records import TerminalReason
from tpfd.daemon.brokers import Brokers
from tpfd.errors import TransportError
from tpfd.program import Program
from tpfd.transports.sqs_await import SqsAnswers, SqsWire

QUEUE = "sqs, request: {queueUrl: 'https://sqs.eu-west-1.amazonaws.com/123456789012/work'}"
LIVE = program(PARSE + waiting(transport=QUEUE) + FINISH, {"parse": parse, "finish": finish}, publish=True)
VISIBILITY_S = 30


def scalar(timeout: str = "PT10M") -> Program:
    return program(BEGIN + waiting(transport=QUEUE, timeout=timeout) + FINISH, {"begin": begin, "finish": finish})


@define(eq=False)
class Queues:
    """The two queues of a pipeline."""

    requests: FakeSqs = field(factory=FakeSqs)
    answers: FakeSqs = field(factory=FakeSqs)
    grave: Grave = field(factory=Grave)
    asked: list[dict[str, Any]] = field(factory=list)

    def envelopes(self) -> list[dict[str, Any]]:
        return [json.loads(one.body) for one in self.requests.stored.values()]

    def answer(self, envelope: dict[str, Any], **more: object) -> str:
        """Puts the good answer to a request into the queue."""
        asked = envelope["requestPayload"]
        completion = {
            "tenantId": envelope["tenantId"],
            "interactionId": envelope["interactionId"],
            "responsePayload": {"number": asked["number"], "text": f"ok {asked['text']}"},
        }
        return self.answers.put(json.dumps({**completion, **more}))

    async def provide(self, wanted: Callable[[dict[str, Any]], bool] = lambda _: True) -> None:
        """A provider with no manners but quick answers, for ever."""
        while True:
            await trio.sleep(0.02)
            for message_id, one in list(self.requests.stored.items()):
                del self.requests.stored[message_id]
                envelope = json.loads(one.body)
                self.asked.append(envelope)
                if wanted(envelope):
                    self.answer(envelope)

    async def serve(
        self, world: World, name: str = "a", *, polls: bool = True, longest_s: float = 300.0, **settings: Any
    ) -> Process:
        """A process that asks and, if it `polls`, takes answers in."""
        process = world.build(name, **settings)
        brokers = Brokers(
            runtime=process.runtime,
            sockets=process.sockets,
            envelopes=process.sockets.envelopes,
            admission=process.coordinator.admission,
            bury=self.grave.bury,
        )
        for pipeline in process.runtime.programs.values():
            step = next(step for step in pipeline.pipeline.steps if step.await_spec is not None)
            brokers.send(pipeline, step, "sqs", SqsWire(queue_over(self.requests, process.gate), 2))
        if polls:
            held = HeldMessages(
                name="answers",
                queue=queue_over(self.answers, process.gate),
                visibility_s=VISIBILITY_S,
                trouble=process.runtime.trouble,
                longest_s=longest_s,
            )
            brokers.receive(SqsAnswers(held=held, wait_s=1))
        world.nursery.start_soon(self._run, process, brokers)
        await world.nursery.start(process.run)
        return process

    async def _run(self, process: Process, brokers: Brokers) -> None:
        async def intake() -> None:
            async with trio.open_nursery() as nursery:
                brokers.start(nursery)
                await process.draining.wait()
                nursery.cancel_scope.cancel("drain")

        with suppress(Lost):
            await process.call(intake)


async def test_a_live_session_goes_through_the_queues(world: World) -> None:
    world.load(LIVE)
    queues = Queues()
    a = await queues.serve(world)
    world.nursery.start_soon(queues.provide)
    done = await a.submit(batch(50))
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(50)
    assert len(queues.asked) == 50
    await trio.sleep(1)
    assert queues.answers.stored == {}


async def test_the_request_is_the_dispatch_envelope(world: World) -> None:
    world.load(scalar())
    queues = Queues()
    a = await queues.serve(world)
    done = await a.submit(batch(1))
    await world.until_status(done.execution_id, S.WAITING_EXTERNAL)
    await trio.sleep(2)
    (envelope,) = queues.envelopes()
    assert envelope["executionId"] == done.execution_id
    assert envelope["requestPayload"] == {"number": 1, "text": "row"}
    assert {"tenantId", "interactionId", "correlationId", "stepId", "deadlineEpochMs"} <= envelope.keys()


async def test_an_answer_through_another_process_reaches_its_session(world: World) -> None:
    world.load(LIVE)
    queues = Queues()
    a = await queues.serve(world, "a", polls=False)
    done = await a.submit(batch(20))
    await world.until_status(done.execution_id, S.RUNNING)
    await queues.serve(world, "b", max_in_flight=0)
    world.nursery.start_soon(queues.provide)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert lines(world, done.execution_id) == whole(20)


async def test_what_cannot_be_read_goes_to_the_dead_letters_and_stops_nobody(world: World) -> None:
    world.load(LIVE)
    queues = Queues()
    a = await queues.serve(world)
    done = await a.submit(batch(3))
    await trio.sleep(2)
    first, second, third = queues.envelopes()
    queues.answer(first)
    bad = {
        "{": "malformed",
        "null": "payload_invalid",
        '{"tenantId": "t1", "responsePayload": 1}': "envelope_invalid",
        "é" * 100: "malformed",
    }
    positions = [queues.answers.put(body) for body in bad]
    queues.answer(second)
    queues.answer(third)
    await world.until_status(done.execution_id, S.SUCCEEDED)
    assert sorted(letter.position for letter in queues.grave.kept) == positions
    for letter in queues.grave.kept:
        body = base64.b64decode(letter.body_base64).decode()
        assert letter.reason == bad[body]
        assert letter.transport == "sqs:work"
    await trio.sleep(1)
    assert queues.answers.stored == {}
    assert a.runtime.trouble == {}


async def test_a_heap_of_answers_is_received_side_by_side_and_never_more_than_there_is_room_for() -> None:
    service = FakeSqs()
    held = HeldMessages(name="answers", queue=queue_over(service), visibility_s=30, trouble={})
    source = SqsAnswers(held=held, wait_s=1)
    for number in range(100):
        service.put(str(number))
    taken = [await source.receive(limit) for limit in (256, 256, 25, 7, 256)]
    assert [len(one) for one in taken] == [10, 40, 20, 7, 23]
    assert [count for _, count in service.log] == [10, *[10] * 4, *[10] * 2, 7, *[10] * 4]
    # The last came back with less than was asked for: the next waits for the first that comes.
    began = trio.current_time()
    assert await source.receive(256) == []
    assert trio.current_time() - began >= 1


async def test_one_failed_receive_of_several_loses_nothing(expected: Expected) -> None:
    service = FakeSqs()
    held = HeldMessages(name="answers", queue=queue_over(service), visibility_s=30, trouble={})
    source = SqsAnswers(held=held, wait_s=1)
    for number in range(20):
        service.put(str(number))
    assert len(await source.receive(256)) == 10
    service.fail_count = 1
    assert len(await source.receive(256)) == 10
    service.fail_count = 1
    with pytest.raises(TransportError, match="ServiceUnavailable"):
        await source.receive(256)


async def test_doubled_conflicting_and_unknown_answers_are_consumed(world: World) -> None:
    world.load(scalar())
    queues = Queues()
    a = await queues.serve(world)
    done = await a.submit(batch(1))
    await trio.sleep(2)
    (envelope,) = queues.envelopes()
    queues.answer(envelope)
    queues.answer(envelope)
    queues.answer(envelope, responsePayload={"number": 0, "text": "another"})
    queues.answer(envelope, interactionId="nobody")
    queues.answer(envelope, tenantId="somebody-else")
    await world.until_status(done.execution_id, S.SUCCEEDED)
    await trio.sleep(2)
    assert (queues.answers.stored, queues.grave.kept) == ({}, [])


async def test_while_the_store_is_away_an_answer_stays_in_flight_and_is_then_admitted(
    world: World, expected: Expected
) -> None:
    expected.error("answer_waits", "claim_failed", "sweep_failed", "tidying_failed")
    world.load(scalar(timeout="PT1H"))
    queues = Queues()
    a = await queues.serve(world)
    done = await a.submit(batch(1))
    await trio.sleep(2)
    (envelope,) = queues.envelopes()
    a.gate.failing = "the store is away"
    queues.answer(envelope)
    for _ in range(200):
        await trio.sleep(1)
        assert queues.answers.shown() == []
    assert queues.answers.receive_counts() == [1]
    a.gate.failing = None
    await world.until_status(done.execution_id, S.SUCCEEDED)
    await trio.sleep(1)
    assert queues.answers.stored == {}


async def test_an_answer_that_cannot_be_admitted_here_for_long_is_left_to_others(
    world: World, expected: Expected
) -> None:
    expected.error("answer_waits", "claim_failed", "sweep_failed", "tidying_failed")
    world.load(scalar(timeout="PT1H"))
    queues = Queues()
    a = await queues.serve(world, longest_s=60)
    done = await a.submit(batch(1))
    await trio.sleep(2)
    (envelope,) = queues.envelopes()
    a.gate.failing = "the store is away"
    queues.answer(envelope)
    await trio.sleep(1)
    await queues.serve(world, "b")
    # It is shown again in time; both may take it then, and sooner or later b does.
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=20 * (60 + VISIBILITY_S))


async def test_an_answer_in_hand_comes_again_when_its_taker_dies(world: World, expected: Expected) -> None:
    expected.error("answer_waits", "claim_failed", "sweep_failed", "tidying_failed")
    world.load(scalar(timeout="PT1H"))
    queues = Queues()
    a = await queues.serve(world)
    done = await a.submit(batch(1))
    await trio.sleep(2)
    (envelope,) = queues.envelopes()
    a.gate.failing = "the store is away"
    queues.answer(envelope)
    await trio.sleep(5)
    a.kill()
    await trio.sleep(1)
    assert queues.answers.shown() == []
    await queues.serve(world, "b")
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=VISIBILITY_S + 10)


async def test_a_drain_shows_again_what_it_could_not_admit(world: World, expected: Expected) -> None:
    expected.error("answer_waits", "claim_failed", "sweep_failed", "tidying_failed", "not_let_go")
    world.load(scalar(timeout="PT1H"))
    queues = Queues()
    a = await queues.serve(world)
    await a.submit(batch(1))
    await trio.sleep(2)
    (envelope,) = queues.envelopes()
    a.gate.failing = "the store is away"
    queues.answer(envelope)
    await trio.sleep(5)
    await a.drain()
    await trio.sleep(6)
    assert len(queues.answers.shown()) == 1


async def test_while_sqs_is_away_requests_and_answers_wait(world: World, expected: Expected) -> None:
    expected.error("requests_not_sent", "receive_sqs:work_failed")
    world.load(scalar(timeout="PT1H"))
    queues = Queues()
    a = await queues.serve(world)
    queues.requests.failing = queues.answers.failing = refusal("ExpiredToken")
    done = await a.submit(batch(1))
    await trio.sleep(600)
    assert any("ExpiredToken" in reason for reason in a.runtime.trouble.values())
    assert queues.envelopes() == []
    queues.requests.failing = queues.answers.failing = None
    world.nursery.start_soon(queues.provide)
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=60)
    await trio.sleep(60)
    assert a.runtime.trouble == {}
    assert len(queues.asked) == 1


async def test_a_request_that_is_too_large_fails_its_execution_and_no_other(world: World, expected: Expected) -> None:
    expected.error("request_given_up")
    world.load(scalar())
    queues = Queues()
    a = await queues.serve(world)
    large = await a.submit({"name": "x" * 300_000, "count": 1})
    small = await a.submit(batch(1))
    record = await world.until_status(large.execution_id, S.FAILED)
    assert record.terminal_reason is TerminalReason.AWAIT_FAILED
    assert "over the limit" in (record.error_message or "")
    world.nursery.start_soon(queues.provide)
    await world.until_status(small.execution_id, S.SUCCEEDED)


async def test_a_row_that_is_too_large_is_rejected_where_the_step_recovers(world: World, expected: Expected) -> None:
    expected.error("request_given_up")

    async def one_large(batch: Batch) -> AsyncIterator[Row]:
        for number in range(batch.count):
            yield Row(number, "x" * 300_000 if number == 1 else f"row-{number}")

    asking = waiting(transport=QUEUE, more="recoverOnFailure: true")
    steps = PARSE.replace("parse", "one_large") + asking + FINISH
    world.load(program(steps, {"one_large": one_large, "finish": finish}, publish=True))
    queues = Queues()
    a = await queues.serve(world)
    world.nursery.start_soon(queues.provide)
    done = await a.submit(batch(3))
    await world.until_status(done.execution_id, S.SUCCEEDED, within_s=60)
    assert lines(world, done.execution_id) == ["0,ok row-0", "2,ok row-2"]
    (reject,) = a.rejects.rejects
    assert "bytes" in reject.error_message
    assert reject.idempotency_key.endswith(":ask:1")
    assert len(reject.payload or "") > 300_000, "read from where it is stored apart"
