"""A bucket of the stand-in, as tests look at it from outside and as the daemon uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from tests.aws.standin import StandIn
from tpfd.aws.calls import AwsCalls
from tpfd.blocking import Threads
from tpfd.objects.s3_bucket import Bucket, ReadingClient
from tpfd.objects.s3_target import S3Target

THREADS = 2


@frozen
class TestBucket:
    """One bucket with the prefix ``p/``, and what stands in it for everybody to see."""

    __test__ = False

    client: Any
    name: str
    bucket: Bucket

    def put(self, key: str, data: str | bytes = "x") -> None:
        body = data.encode() if isinstance(data, str) else data
        self.client.put_object(Bucket=self.name, Key=f"p/{key}", Body=body)

    def read(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.name, Key=f"p/{key}")["Body"].read()
        return data

    def etag(self, key: str) -> str:
        etag: str = self.client.head_object(Bucket=self.name, Key=f"p/{key}")["ETag"]
        return etag

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=f"p/{key}")

    def all_keys(self) -> list[str]:
        """Every object of the bucket, markers too; what is not below the prefix keeps its whole key behind a slash."""
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(
            entry["Key"][2:] if entry["Key"].startswith("p/") else f"/{entry['Key']}" for entry in found
        )

    def uploads(self) -> list[str]:
        """The keys of unfinished uploads."""
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return sorted(upload["Key"][2:] for upload in found)


def make_bucket(aws: StandIn) -> TestBucket:
    """A new bucket."""
    client = _client(aws)
    name = aws.name("objects")
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": aws.region})
    return TestBucket(client, name, daemon_bucket(aws, name))


def daemon_bucket(aws: StandIn, name: str, wrap: Callable[[Any], Any] = lambda client: client) -> Bucket:
    """The daemon's side of a bucket, whether it exists or not.

    Args:
        wrap: puts something around its client.
    """
    threads = Threads(THREADS)
    calls = AwsCalls("s3", lambda: ReadingClient(wrap(_client(aws))), threads)
    return Bucket(calls, threads, name, "p")


_clients: dict[str, Any] = {}


def _client(aws: StandIn) -> Any:
    """Clients know no state but connections, and making one takes longer than most tests."""
    if aws.endpoint not in _clients:
        _clients[aws.endpoint] = aws.client("s3")
    return _clients[aws.endpoint]


def s3_target(bucket: Bucket, *, replaces: bool = False) -> S3Target:
    return S3Target(bucket, content_type="text/csv", replaces=replaces)
