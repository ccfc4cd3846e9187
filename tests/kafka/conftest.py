"""One broker for all tests here that do not harm it; each uses topics and groups of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.aws.standin import StandIn
from tests.kafka.broker import Broker, running


@pytest.fixture(scope="session")
def shared() -> Iterator[Broker]:
    with running() as broker:
        yield broker


@pytest.fixture
def lasting(aws: StandIn) -> Iterator[Broker]:
    """A broker of the test's own that keeps what it was given when it is killed: in a bucket."""
    bucket = aws.name("tansu")
    aws.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": aws.region})
    environ = {**os.environ, "AWS_ENDPOINT": aws.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": aws.region}
    with running(storage=f"s3://{bucket}/", environ=environ) as broker:
        yield broker


_numbers = itertools.count()


@pytest.fixture
def topic(shared: Broker) -> Callable[[int], str]:
    """Makes a topic with so many partitions; its name."""

    def make(partitions: int = 1) -> str:
        name = f"topic-{next(_numbers)}"
        shared.make_topics(name, partitions=partitions)
        return name

    return make
