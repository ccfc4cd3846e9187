"""What a configuration needs of AWS as documents: an IAM policy for the daemon, a CloudFormation template of the rest.

Both are made from the same list as what `tpfd provision` makes, and name exactly that: no wildcard where a name is
known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from tpfd.aws.queue_urls import queue_account, queue_name, queue_region
from tpfd.daemon.resources import Bucket, Queue, Resources

RETENTION_S: Final = 14 * 24 * 3600
"""As long as SQS keeps a message: a dead letter waits for a person."""
MAX_RECEIVE_COUNT: Final = 1_000
"""The most that SQS allows. An answer that comes while the store is away is received again and again; it must not end
among the dead letters because the store was away for an hour."""

_TABLE_ACTIONS = (
    "BatchGetItem", "BatchWriteItem", "ConditionCheckItem", "DeleteItem", "DescribeTable", "DescribeTimeToLive",
    "GetItem", "PutItem", "Query",
)  # fmt: skip
_SEND = ("SendMessage",)
_RECEIVE = ("ChangeMessageVisibility", "DeleteMessage", "ReceiveMessage")
_LOOK = ("GetQueueAttributes", "GetQueueUrl")
_READ_OBJECT = ("GetObject",)
_WRITE_OBJECT = ("AbortMultipartUpload", "PutObject")
_NOT_A_WORD = re.compile(r"[^A-Za-z0-9]+")


def queue_attributes(queue: Queue, redrive_arn: str | None) -> dict[str, str]:
    """What a queue is made with, as the SQS call takes it."""
    attributes = {"MessageRetentionPeriod": str(RETENTION_S), "SqsManagedSseEnabled": "true"}
    if queue.visibility_s is not None:
        attributes["VisibilityTimeout"] = str(queue.visibility_s)
    if redrive_arn is not None:
        policy = {"deadLetterTargetArn": redrive_arn, "maxReceiveCount": MAX_RECEIVE_COUNT}
        attributes["RedrivePolicy"] = json.dumps(policy)
    return attributes


def iam_policy(resources: Resources) -> dict[str, Any]:
    """A policy document that allows the daemon what it does, and nothing else; an account not known is a ``*``."""
    statements: list[dict[str, Any]] = []
    if resources.tables:
        place = f"{_partition(resources.tables_site.region)}:dynamodb:{resources.tables_site.region or '*'}"
        arns = [f"arn:{place}:{_account(resources.queues)}:table/{table.name}" for table in resources.tables]
        statements.append(_allow("Store", "dynamodb", _TABLE_ACTIONS, arns + [f"{arn}/index/*" for arn in arns]))
    for queue in resources.queues:
        actions = (*_LOOK, *(_SEND if queue.sends else ()), *(_RECEIVE if queue.receives else ()))
        statements.append(_allow(f"Queue {queue_name(queue.url)}", "sqs", actions, [_queue_arn(queue)]))
    for number, bucket in enumerate(resources.buckets):
        statements += _bucket_statements(f"Bucket {number} {bucket.name}", bucket)
    return {"Version": "2012-10-17", "Statement": statements}


def cloudformation(resources: Resources) -> dict[str, Any]:
    """A template of the tables and queues. They outlive their stack, because what they hold is accepted work."""
    found: dict[str, Any] = {}
    for table in resources.tables:
        properties = {
            **table.create_parameters(),
            "TimeToLiveSpecification": table.ttl_parameters()["TimeToLiveSpecification"],
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
        }
        found[_logical("Table", table.name)] = _kept("AWS::DynamoDB::Table", properties)
    for queue in resources.queues:
        found[_logical("Queue", queue_name(queue.url))] = _kept("AWS::SQS::Queue", _queue_properties(queue))
    return {"AWSTemplateFormatVersion": "2010-09-09", "Description": "What tpfd keeps its work in.", "Resources": found}


def _queue_properties(queue: Queue) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "QueueName": queue_name(queue.url),
        "MessageRetentionPeriod": RETENTION_S,
        "SqsManagedSseEnabled": True,
    }
    if queue.visibility_s is not None:
        properties["VisibilityTimeout"] = queue.visibility_s
    if queue.redrive_to is not None:
        target = {"Fn::GetAtt": [_logical("Queue", queue_name(queue.redrive_to)), "Arn"]}
        properties["RedrivePolicy"] = {"deadLetterTargetArn": target, "maxReceiveCount": MAX_RECEIVE_COUNT}
    return properties


def _kept(kind: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"Type": kind, "DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain", "Properties": properties}


def _bucket_statements(sid: str, bucket: Bucket) -> list[dict[str, Any]]:
    arn = f"arn:{_partition(bucket.site.region)}:s3:::{bucket.name}"
    actions = (
        *(_READ_OBJECT if bucket.reads else ()),
        *(_WRITE_OBJECT if bucket.writes else ()),
        *(("DeleteObject",) if bucket.removes else ()),
    )
    look = _allow(f"{sid} list", "s3", ("ListBucket",), [arn])
    folder = bucket.prefix.strip("/")
    return [look, _allow(f"{sid} objects", "s3", actions, [f"{arn}/{folder}/*" if folder else f"{arn}/*"])]


def _allow(sid: str, service: str, actions: Iterable[str], arns: list[str]) -> dict[str, Any]:
    return {
        "Sid": _logical("", sid),
        "Effect": "Allow",
        "Action": sorted(f"{service}:{action}" for action in actions),
        "Resource": arns,
    }


def _queue_arn(queue: Queue) -> str:
    region = queue.site.region or queue_region(queue.url)
    account = queue_account(queue.url) or "*"
    return f"arn:{_partition(region)}:sqs:{region or '*'}:{account}:{queue_name(queue.url)}"


def _account(queues: Iterable[Queue]) -> str:
    """The account of the tables: that of the queues, if they all have one."""
    accounts = {queue_account(queue.url) for queue in queues}
    return accounts.pop() or "*" if len(accounts) == 1 else "*"


def _partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _logical(kind: str, name: str) -> str:
    """A name of letters and digits."""
    return kind + "".join(word[:1].upper() + word[1:] for word in _NOT_A_WORD.split(name))
