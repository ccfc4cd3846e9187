"""Fixtures of the object tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws.standin import StandIn
from tests.objects.places import BucketPlace, FolderPlace, Location, folder
from tests.objects.s3 import TestBucket, daemon_bucket, make_bucket
from tpfd.blocking import Threads


@pytest.fixture(params=["filesystem", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """An output location on each provider."""
    if request.param == "filesystem":
        return folder(tmp_path / "out")
    aws: StandIn = request.getfixturevalue("aws")
    return BucketPlace(aws, make_bucket(aws))


@pytest.fixture(params=["filesystem", "s3"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A location that does not exist."""
    if request.param == "filesystem":
        return FolderPlace(tmp_path / "unmounted", Threads(1))
    aws: StandIn = request.getfixturevalue("aws")
    return BucketPlace(aws, TestBucket(None, "no-such-bucket", daemon_bucket(aws, "no-such-bucket")))


@pytest.fixture
def there(aws: StandIn) -> TestBucket:
    return make_bucket(aws)
