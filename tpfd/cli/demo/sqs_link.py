"""The two queues of a demo that asks over SQS: made for it, and removed after it."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from tpfd.aws.calls import AwsCalls
from tpfd.aws.clients import make_client
from tpfd.aws.failures import AwsFailure
from tpfd.blocking import Threads
from tpfd.cli.demo.children import DemoFailed

REGION = "eu-west-1"
WITHIN_S = 10.0
REMOVE_WITHIN_S = 5.0


def region() -> str:
    """The caller's region, or one for a stand-in, which does not care."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or REGION


@asynccontextmanager
async def two_queues(endpoint: str) -> AsyncIterator[tuple[str, str]]:
    """URLs of a queue for requests and one for answers, which exist for as long as the block lasts.

    Args:
        endpoint: of SQS, or of a stand-in for it.

    Raises:
        DemoFailed: they cannot be made.
        ConfigError: the SDK is not installed, or the endpoint is no URL.
    """
    connect = partial(make_client, "sqs", region=region(), endpoint=endpoint, connections=1)
    calls = AwsCalls("sqs", connect, Threads(1))
    run = secrets.token_hex(4)
    made: list[str] = []
    try:
        for use in ("requests", "answers"):
            try:
                answer = await calls.repeated("create_queue", within_s=WITHIN_S, QueueName=f"tpfd-demo-{run}-{use}")
            except AwsFailure as error:
                raise DemoFailed(f"no queue could be made at {endpoint}: {error.message}") from error
            made.append(answer["QueueUrl"])
        requests, answers = made
        yield requests, answers
    finally:
        with trio.move_on_after(REMOVE_WITHIN_S, shield=True):
            for url in made:
                await _remove(calls, url)


async def _remove(calls: AwsCalls, url: str) -> None:
    try:
        await calls("delete_queue", QueueUrl=url)
    except AwsFailure as error:
        raise DemoFailed(f"{url} could not be removed and is left behind: {error.message}") from error
