from __future__ import annotations

import builtins
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from random import Random
from typing import Any

import botocore.exceptions as sdk
import pytest
import trio
from botocore.awsrequest import AWSResponse
from urllib3 import HTTPResponse

from tests.aws.standin import StandIn
from tpfd.aws.calls import AwsCalls
from tpfd.aws.clients import make_client
from tpfd.aws.failures import AwsFailure, Failure
from tpfd.blocking import Inline, Threads
from tpfd.errors import ConfigError, Problem


class Client:
    """Answers with what it was given; an error is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.params: list[dict[str, Any]] = []

    def put_item(self, **params: Any) -> Any:
        self.params.append(params)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def refusal(code: str) -> sdk.ClientError:
    return sdk.ClientError({"Error": {"Code": code, "Message": "m"}}, "PutItem")


def calls_over(*clients: Client, seen: list[Any] | None = None, slept: list[float] | None = None) -> AwsCalls:
    waiting = list(clients)
    seen = [] if seen is None else seen

    async def sleep(seconds: float) -> None:
        if slept is not None:
            slept.append(seconds)

    return AwsCalls(
        "dynamodb",
        lambda: waiting.pop(0),
        Inline(),
        observe=lambda *labels: seen.append(labels),
        random=Random(1),
        sleep=sleep,
    )


async def test_a_call_is_one_attempt_and_counted() -> None:
    seen: list[Any] = []
    client = Client({"a": 1}, refusal("ThrottlingException"), {"b": 2})
    calls = calls_over(client, seen=seen)
    assert await calls("put_item", TableName="t") == {"a": 1}
    with pytest.raises(AwsFailure, match="throttled") as caught:
        await calls("put_item", TableName="t")
    assert isinstance(caught.value.__cause__, sdk.ClientError)
    assert len(client.answers) == 1
    assert seen == [("dynamodb", "put_item", "ok"), ("dynamodb", "put_item", "throttled")]


async def test_what_is_no_error_of_the_sdk_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await calls_over(Client(ZeroDivisionError()))("put_item")


async def test_repeats_wait_longer_each_time_and_end() -> None:
    slept: list[float] = []
    client = Client(*[refusal("ThrottlingException")] * 4, {"a": 1})
    assert await calls_over(client, slept=slept).repeated("put_item", within_s=60) == {"a": 1}
    assert len(slept) == 4
    for number, seconds in enumerate(slept):
        assert 0.05 * 2**number <= seconds <= 0.1 * 2**number

    with pytest.raises(AwsFailure):
        await calls_over(Client(refusal("ThrottlingException"))).repeated("put_item", within_s=0.01)


@pytest.mark.parametrize("code", ["ValidationException", "ConditionalCheckFailedException"])
async def test_what_would_be_refused_again_is_not_repeated(code: str) -> None:
    with pytest.raises(AwsFailure):
        await calls_over(Client(refusal(code))).repeated("put_item", within_s=60)


async def test_refused_credentials_are_looked_for_anew() -> None:
    old, new = Client(refusal("ExpiredTokenException")), Client({"a": 1})
    assert await calls_over(old, new).repeated("put_item", within_s=60) == {"a": 1}


async def test_refused_credentials_are_looked_for_once_by_all_who_were_refused() -> None:
    old, new = Client(*[refusal("ExpiredTokenException")] * 5), Client(*[{"a": 1}] * 5)
    calls = calls_over(old, new)  # a third client is not there
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(functools.partial(calls.repeated, "put_item", within_s=60))
    assert not old.answers or not new.answers


async def test_a_configuration_that_is_being_written_keeps_the_client() -> None:
    clients: list[Client | ConfigError] = [
        Client(refusal("ExpiredTokenException"), {"a": 1}),
        ConfigError([Problem("$", "half a file")]),
    ]

    def connect() -> Client:
        client = clients.pop(0)
        if isinstance(client, ConfigError):
            raise client
        return client

    async def sleep(_seconds: float) -> None:
        await trio.lowlevel.checkpoint()

    calls = AwsCalls("dynamodb", connect, Inline(), sleep=sleep)
    assert await calls.repeated("put_item", within_s=60) == {"a": 1}
    assert clients == []


async def test_a_real_service_answers(aws: StandIn) -> None:
    calls = AwsCalls("dynamodb", aws.connect("dynamodb"), Threads(2))
    assert "TableNames" in await calls("list_tables")
    with pytest.raises(AwsFailure) as caught:
        await calls("get_item", TableName="nobody's", Key={"k": {"S": "1"}})
    assert caught.value.failure is Failure.REFUSED


async def test_nobody_at_the_endpoint(aws: StandIn) -> None:
    def connect() -> Any:
        return make_client("sqs", region="eu-west-1", endpoint="http://127.0.0.1:1", connections=1)

    with pytest.raises(AwsFailure) as caught:
        await AwsCalls("sqs", connect, Threads(1))("list_queues")
    assert caught.value.failure is Failure.UNREACHED
    assert caught.value.retryable


def test_without_a_region_it_says_what_to_set(aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="no region is set: set `region` or AWS_REGION"):
        make_client("sqs", region="", endpoint="", connections=1)
    with pytest.raises(ConfigError, match="endpoint"):
        make_client("sqs", region="eu-west-1", endpoint="no url", connections=1)


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("boto"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'tpfd\[aws\]'"):
        make_client("sqs", region="r", endpoint="", connections=1)


def test_the_sdk_is_loaded_by_its_first_client_only() -> None:
    code = "import sys, tpfd.aws.calls, tpfd.aws.clients; print([n for n in sys.modules if n.startswith('boto')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_the_region_is_that_of_the_setting_then_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    made = make_client("sqs", region="eu-west-1", endpoint="", connections=1)
    assert made.meta.region_name == "eu-west-1"
    assert make_client("sqs", region="", endpoint="", connections=1).meta.region_name == "eu-west-2"
    monkeypatch.delenv("AWS_REGION")
    assert make_client("sqs", region="", endpoint="", connections=1).meta.region_name == "eu-west-3"


KEY = {"pk": {"S": "acme#1"}, "sk": {"S": "ü \"2\""}}
DEEP = {"M": {"l": {"L": [{"BOOL": True}, {"NULL": True}]}}}
ITEM = {**KEY, "n": {"N": "12"}, "z": {"B": b"\x00\xffbytes"}, "deep": DEEP}
CONDITION = {"ConditionExpression": "v = :v", "ExpressionAttributeValues": {":v": {"S": "1"}, ":b": {"B": b"\x01"}}}


@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("put_item", {"TableName": "t", "Item": ITEM, **CONDITION}),
        ("get_item", {"TableName": "t", "Key": KEY, "ConsistentRead": True}),
        ("batch_get_item", {"RequestItems": {"t": {"Keys": [KEY], "ConsistentRead": True}}}),
        ("batch_write_item", {"RequestItems": {"t": [{"PutRequest": {"Item": ITEM}}]}}),
        ("query", {"TableName": "t", "Limit": 3, "ScanIndexForward": False, "ExclusiveStartKey": KEY}),
        (
            "transact_write_items",
            {
                "ClientRequestToken": "token",
                "TransactItems": [
                    {"Put": {"TableName": "t", "Item": ITEM, **CONDITION}},
                    {"ConditionCheck": {"TableName": "t", "Key": KEY, **CONDITION}},
                ],
            },
        ),
    ],
)
def test_what_goes_out_as_it_stands_is_what_the_sdk_sends(aws: StandIn, operation: str, params: dict[str, Any]) -> None:
    def sent(*, as_it_stands: bool) -> Any:
        client = make_client(
            "dynamodb", region="eu-west-1", endpoint="http://127.0.0.1:1", connections=1, as_it_stands=as_it_stands
        )
        requests = []

        def answer(request: Any, **_: Any) -> AWSResponse:
            requests.append(request)
            return AWSResponse(request.url, 200, {}, HTTPResponse(BytesIO(b"{}"), preload_content=False))

        client.meta.events.register("before-send.dynamodb", answer)
        getattr(client, operation)(**params)
        (request,) = requests
        assert request.headers["Content-Length"] == str(len(request.body))
        assert b"SignedHeaders" in request.headers["Authorization"]
        return request.url, request.headers["X-Amz-Target"], json.loads(request.body)

    assert sent(as_it_stands=True) == sent(as_it_stands=False)
