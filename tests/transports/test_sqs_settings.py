"""What a pipeline may say of the queues of its await steps."""

from __future__ import annotations

import json

import pytest

from tests.engine.pipelines import FINISH, PARSE, finish, parse, program, waiting
from tpfd.errors import ConfigError
from tpfd.pipeline.model import Pipeline
from tpfd.transports.sqs_settings import SqsStep, read_sqs_steps

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/requests"


def asking(transport: str, **settings: object) -> Pipeline:
    written = "".join(f", {name}: {json.dumps(value)}" for name, value in settings.items())
    asked = waiting(transport=f"{transport}{written}")
    return program(PARSE + asked + FINISH, {"parse": parse, "finish": finish}).pipeline


def test_the_queues_of_a_step() -> None:
    both = asking("sqs", request={"queueUrl": URL}, response={"queueUrl": f"{URL}-answers"})
    (step,) = read_sqs_steps(both).values()
    assert step == SqsStep(step_id=step.step_id, request_url=URL, response_url=f"{URL}-answers")
    (step,) = read_sqs_steps(asking("sqs", request={"queueUrl": URL})).values()
    assert step.response_url is None
    assert read_sqs_steps(asking("kafka", request={"topic": "t"})) == {}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "is missing: the URL of the queue that its requests go to @ .*request.queueUrl"),
        ({"request": URL}, "expected a mapping with queueUrl"),
        ({"request": {"queueUrl": "tpf-requests"}}, "expected the URL of a queue, found 'tpf-requests'"),
        ({"request": {"queueUrl": f"{URL}.fifo"}}, "is a FIFO queue"),
        ({"request": {"queueUrl": f"{URL}.fifo?x=1"}}, "is a FIFO queue"),
        ({"request": {"queueUrl": URL}, "response": {"queueUrl": f"{URL}.fifo"}}, "is a FIFO queue.*response.queueUrl"),
        ({"request": {"queueUrl": URL, "queueURL": URL}}, "unknown key.*queueUrl"),
        ({"request": {"queueUrl": URL}, "reponse": {}}, "unknown key.*response"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_sqs_steps(asking("sqs", **settings))
