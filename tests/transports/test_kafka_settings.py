"""What a Kafka step says in its pipeline: read as the framework's files have it, every problem with its place."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.engine.pipelines import BEGIN, FINISH, begin, finish, program, waiting
from tpfd.core.records import ExecutionId, InteractionId, InteractionRecord, InteractionStatus, TenantId, UnitId
from tpfd.errors import ConfigError
from tpfd.pipeline.model import Pipeline
from tpfd.transports.kafka_settings import KafkaStep, kafka_steps, read_kafka_steps

RECORD = InteractionRecord(
    tenant_id=TenantId("t1"),
    interaction_id=InteractionId("e.s001.000000000"),
    execution_id=ExecutionId("e"),
    unit_id=UnitId("e.s001"),
    pipeline_id="test",
    step_id="ask",
    step_index=1,
    status=InteractionStatus.DISPATCHED,
    version=1,
    input_type="Row",
    output_type="Answer",
    correlation_id="c-1",
    idempotency_key="t1:e:ask:0",
    request="{}",  # type: ignore[arg-type]
    request_digest="",
    transport_type="kafka",
    deadline_epoch_ms=0,
    created_epoch_ms=0,
    updated_epoch_ms=0,
)


def pipeline(**settings: object) -> Pipeline:
    made = program(BEGIN + waiting(transport="kafka") + FINISH, {"begin": begin, "finish": finish}).pipeline
    spec = made.steps[1].await_spec
    assert spec is not None
    asking = evolve(made.steps[1], await_spec=evolve(spec, settings=settings))
    return evolve(made, steps=(made.steps[0], asking, *made.steps[2:]))


def read(**settings: object) -> KafkaStep:
    (step,) = read_kafka_steps(pipeline(**settings)).values()
    return step


def problems(**settings: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_kafka_steps(pipeline(**settings))
    prefix = "$.steps[1].await.transport."
    return sorted(problem.path.removeprefix(prefix) for problem in caught.value.problems)


TOPICS = {"request": {"topic": "bank.requests"}, "response": {"topic": "bank.results"}}


def test_the_framework_s_keys_are_read() -> None:
    step = read(
        request={"topic": "bank.requests", "key": "correlationId"},
        response={"topic": "bank.results"},
        consumer={"group": "invoice"},
        headers={"region": "eu"},
    )
    assert (step.request_topic, step.response_topic, step.group) == ("bank.requests", "bank.results", "invoice")
    assert step.record_key(RECORD) == b"c-1"
    assert step.record_headers(RECORD) == [
        ("region", b"eu"),
        ("x-tpf-interaction-id", b"e.s001.000000000"),
        ("x-tpf-correlation-id", b"c-1"),
        ("x-tpf-tenant-id", b"t1"),
        ("idempotency-key", b"t1:e:ask:0"),
        ("content-type", b"application/json"),
    ]


def test_what_is_left_out_has_its_usual_value() -> None:
    step = read(**TOPICS)
    assert (step.key, step.group, step.headers) == ("interactionId", None, ())
    assert step.record_key(RECORD) == b"e.s001.000000000"


def test_dispatch_stands_for_request() -> None:
    assert read(dispatch={"topic": "bank.requests"}, response={"topic": "r"}).request_topic == "bank.requests"


def test_other_transports_steps_are_none_of_ours() -> None:
    made = program(BEGIN + waiting() + FINISH, {"begin": begin, "finish": finish}).pipeline
    assert (kafka_steps(made), read_kafka_steps(made)) == ([], {})


@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        ({}, ["request.topic", "response.topic"]),
        ({**TOPICS, "request": "bank.requests"}, ["request"]),
        ({**TOPICS, "request": {"topic": "bank requests"}}, ["request.topic"]),
        ({**TOPICS, "request": {"topic": "x" * 250}}, ["request.topic"]),
        ({**TOPICS, "request": {"topic": 7}}, ["request.topic"]),
        ({**TOPICS, "request": {"topic": "b", "key": "csvId"}}, ["request.key"]),
        ({**TOPICS, "request": {"topic": "b", "partition": 1}}, ["request.partition"]),
        ({**TOPICS, "respones": {}}, ["respones"]),
        ({**TOPICS, "consumer": {"group": " "}}, ["consumer.group"]),
        ({**TOPICS, "headers": ["a"]}, ["headers"]),
        ({**TOPICS, "headers": {"a": 1}}, ["headers.a"]),
        ({**TOPICS, "headers": {"Idempotency-Key": "x"}}, ["headers.Idempotency-Key"]),
    ],
)
def test_every_problem_is_named_with_its_place(settings: dict[str, object], paths: list[str]) -> None:
    assert problems(**settings) == paths
