"""Calls of AWS for looking and making: one client per service and site, and what can be looked at."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from attrs import define, field

from tpfd.aws.calls import AwsCalls
from tpfd.aws.clients import make_client
from tpfd.aws.failures import AwsFailure
from tpfd.aws.queue_urls import queue_account, queue_name
from tpfd.blocking import Threads
from tpfd.daemon.resources import Site

CALLS_AT_ONCE = 4
WITHIN_S = 10.0
"""How long one call is repeated while the service is away or busy."""

_NO_TABLE = "ResourceNotFoundException"
_NO_BUCKET = "NoSuchBucket"
_NO_QUEUE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})


@define(eq=False)
class Clients:
    """Makes each client once, when it is first wanted."""

    _made: dict[tuple[str, Site], AwsCalls] = field(factory=dict, init=False)

    async def at(self, service: str, site: Site) -> AwsCalls:
        """The calls of a service at a site.

        Raises:
            ConfigError: the SDK is not installed, or no region is known.
        """
        if (made := self._made.get((service, site))) is None:
            connect = partial(
                make_client, service, region=site.region, endpoint=site.endpoint, connections=CALLS_AT_ONCE
            )
            made = await Threads(1).run(partial(AwsCalls, service, connect, Threads(CALLS_AT_ONCE)))
            self._made[service, site] = made
        return made


async def described(dynamodb: AwsCalls, name: str) -> dict[str, Any] | None:
    """A table as the service describes it; None: there is none. Raises AwsFailure."""
    try:
        answer = await dynamodb.repeated("describe_table", within_s=WITHIN_S, TableName=name)
    except AwsFailure as error:
        if error.aws_code == _NO_TABLE:
            return None
        raise
    table: dict[str, Any] = answer["Table"]
    return table


def is_active(table: dict[str, Any] | None) -> bool:
    """Whether a table and all its indexes can be used."""
    if table is None or table["TableStatus"] != "ACTIVE":
        return False
    return all(index.get("IndexStatus") == "ACTIVE" for index in table.get("GlobalSecondaryIndexes", ()))


async def expires(dynamodb: AwsCalls, name: str) -> str | None:
    """The attribute by which rows of a table expire; None: they do not. Raises AwsFailure."""
    answer = await dynamodb.repeated("describe_time_to_live", within_s=WITHIN_S, TableName=name)
    found = answer.get("TimeToLiveDescription", {})
    if found.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
        return None
    attribute: str | None = found.get("AttributeName")
    return attribute


async def queue_there(sqs: AwsCalls, url: str) -> bool:
    """Whether there is such a queue, in the account that its URL names. Raises AwsFailure."""
    owner: dict[str, Any] = {"QueueOwnerAWSAccountId": account} if (account := queue_account(url)) else {}
    try:
        await sqs.repeated("get_queue_url", within_s=WITHIN_S, QueueName=queue_name(url), **owner)
    except AwsFailure as error:
        if error.aws_code in _NO_QUEUE:
            return False
        raise
    return True


async def queue_state(sqs: AwsCalls, url: str) -> dict[str, str]:
    """The attributes of a queue. Raises AwsFailure."""
    answer = await sqs.repeated("get_queue_attributes", within_s=WITHIN_S, QueueUrl=url, AttributeNames=["All"])
    attributes: dict[str, str] = answer.get("Attributes", {})
    return attributes


async def service_epoch_ms(dynamodb: AwsCalls, table: str) -> int | None:
    """What time it is there, in whole seconds, asked by a look at a table; None: it does not say. Raises AwsFailure."""
    try:
        answer = await dynamodb.repeated("describe_table", within_s=WITHIN_S, TableName=table)
    except AwsFailure as error:
        if error.aws_code == _NO_TABLE:
            return None
        raise
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return None if date is None else round(parsedate_to_datetime(date).timestamp() * 1000)


async def bucket_there(s3: AwsCalls, name: str, prefix: str) -> bool:
    """Whether there is such a bucket, and it may be listed. Raises AwsFailure."""
    try:
        await s3.repeated("list_objects_v2", within_s=WITHIN_S, Bucket=name, Prefix=prefix, MaxKeys=1)
    except AwsFailure as error:
        if error.aws_code == _NO_BUCKET:
            return False
        raise
    return True
