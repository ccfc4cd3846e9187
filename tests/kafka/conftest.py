"""One broker for all tests here that do not harm it; each uses topics and groups of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.aws.standin import StandIn
from tests.kafka.broker import Broker, MockCluster, running


@pytest.fixture(scope="session")
def shared() -> Iterator[Broker]:
    with running() as broker:
        yield broker


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[MockCluster]:
    cluster = MockCluster()
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture
def lasting(aws: StandIn) -> Iterator[Broker]:
    """A broker of the test's own that keeps what it was given when it is killed: in a bucket."""
    bucket = aws.name("tansu")
    aws.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": aws.region})
    environ = {**os.environ, "AWS_ENDPOINT": aws.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": aws.region}
    with running(storage=f"s3://{bucket}/", environ=environ) as broker:
        yield broker


@pytest.fixture
def topic(shared: Broker) -> Callable[[int], str]:
    """Makes a topic with so many partitions; its name."""
    return shared.topic


@pytest.fixture(params=["tansu", "librdkafka"])
def either(request: pytest.FixtureRequest, shared: Broker, mock_cluster: MockCluster) -> Broker:
    """Two brokers of different make: what is promised must hold over both."""
    return shared if request.param == "tansu" else mock_cluster
