"""What is used of AWS, and the documents that are made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import tpfd
from tpfd.config.load import parse_config
from tpfd.config.model import Config
from tpfd.daemon.programs import load_programs
from tpfd.daemon.resources import Bucket, Queue, Resources, Site, resources_of
from tpfd.daemon.templates import cloudformation, iam_policy, queue_attributes
from tpfd.examples import pipeline_text

ACCOUNT = "https://sqs.eu-west-1.amazonaws.com/123456789012"
BASELINE = f"""
node: {{production: true}}
store: {{provider: dynamodb, dynamodb: {{region: eu-west-1}}}}
dispatcher: {{provider: sqs, sqs: {{queue-url: "{ACCOUNT}/tpf-work"}}}}
dead-letters: {{provider: sqs, sqs: {{queue-url: "{ACCOUNT}/tpf-dlq"}}}}
execution: {{idempotency-policy: CLIENT_KEY_REQUIRED}}
strict-startup: true
"""


def configured(text: str) -> Config:
    return parse_config(text, "f", {}, {}).config


@pytest.fixture
def baseline() -> Resources:
    return resources_of(configured(BASELINE), {})


def statement(policy: dict[str, Any], sid: str) -> dict[str, Any]:
    (found,) = [one for one in policy["Statement"] if one["Sid"] == sid]
    return dict(found)


def test_the_baseline_names_its_tables_and_queues_with_their_region(baseline: Resources) -> None:
    assert {table.name for table in baseline.tables} >= {"tpf_execution", "tpf_execution_key", "tpf_await_interaction"}
    assert baseline.tables_site == Site("eu-west-1", "")
    letters, work = baseline.queues
    assert (letters.url, letters.sends, letters.receives) == (f"{ACCOUNT}/tpf-dlq", True, False)
    assert (work.url, work.sends, work.visibility_s) == (f"{ACCOUNT}/tpf-work", True, 60)
    assert work.redrive_to == letters.url
    assert work.site == letters.site == Site("eu-west-1", "")


def test_what_is_named_and_not_used_is_not_made() -> None:
    used = resources_of(configured(BASELINE.replace("provider: dynamodb", "provider: sqlite")), {})
    assert used.tables == ()
    assert not resources_of(Config(), {}).any_of_aws


def test_a_queue_with_two_uses_is_one_queue_that_does_both() -> None:
    both = f'{BASELINE}\nitem-rejects: {{provider: sqs, sqs: {{queue-url: "{ACCOUNT}/tpf-dlq"}}}}'
    letters, work = resources_of(configured(both), {}).queues
    assert letters.uses == ("dead letters", "rejected items")
    assert work.uses == ("work hints",)


def test_what_pipelines_name_is_used_too(tmp_path: Path) -> None:
    text = pipeline_text("csv-payments")
    for folder in ("in/", "out/"):
        place = f"provider: s3\n    location: {{bucket: pay, prefix: {folder}, region: eu-west-1}}"
        text = text.replace('provider: filesystem\n    location: {root: "${CSV_FOLDER_PATH:-csv}"}', place, 1)
    head, _, rest = text.partition('type: "${CSV_PAYMENT_TRANSPORT:-websocket}"')
    queues = ("type: sqs", f"request: {{queueUrl: '{ACCOUNT}/ask'}}", f"response: {{queueUrl: '{ACCOUNT}/own'}}")
    asked = "\n        ".join(queues)
    text = f"{head}{asked}\n\n  - name:{rest.partition('  - name:')[2]}"
    (tmp_path / "pay.yaml").write_text(text.replace("after: keep", "after: {move: done}"), "utf-8")
    poller = f'await: {{sqs: {{poller: {{enabled: true, response-queue-url: "{ACCOUNT}/answers"}}}}}}'
    config = configured(f"pipelines: ['{tmp_path / 'pay.yaml'}']\n{poller}")
    used = resources_of(config, load_programs(config, {}))
    by_name = {queue.url.removeprefix(f"{ACCOUNT}/"): queue for queue in used.queues}
    assert {name: (queue.sends, queue.receives) for name, queue in by_name.items()} == {
        "ask": (True, False),
        "own": (False, True),
        "answers": (False, True),
    }
    assert "await.transport.response.queueUrl" in by_name["own"].path
    source, target = used.buckets
    assert (source.prefix, source.reads, source.writes, source.removes) == ("in/", True, True, True)
    assert (target.prefix, target.writes, target.site) == ("out/", True, Site("eu-west-1", ""))
    assert used.tables == ()
    silent = configured(f"pipelines: ['{tmp_path / 'pay.yaml'}']")
    assert [queue.url for queue in resources_of(silent, load_programs(silent, {})).queues] == [f"{ACCOUNT}/ask"]


def test_the_policy_allows_what_is_done_and_names_no_more_than_it_must(baseline: Resources) -> None:
    policy = iam_policy(baseline)
    store = statement(policy, "Store")
    table = "arn:aws:dynamodb:eu-west-1:123456789012:table/tpf_execution"
    assert {table, f"{table}/index/*"} <= set(store["Resource"])
    assert "dynamodb:ConditionCheckItem" in store["Action"]
    assert not {action for action in store["Action"] if action.endswith(("CreateTable", "DeleteTable", "Scan", "*"))}
    work, letters = statement(policy, "QueueTpfWork"), statement(policy, "QueueTpfDlq")
    assert work["Resource"] == ["arn:aws:sqs:eu-west-1:123456789012:tpf-work"]
    assert set(work["Action"]) >= {"sqs:SendMessage", "sqs:ReceiveMessage", "sqs:ChangeMessageVisibility"}
    assert "sqs:SendMessage" in letters["Action"]
    assert "sqs:ReceiveMessage" not in letters["Action"]
    assert all("*" not in arn.removesuffix("/index/*") for one in policy["Statement"] for arn in one["Resource"])


ALLOWED_BY = {
    # operation of the SDK, as the code names it -> actions of IAM
    "batch_get_item": {"dynamodb:BatchGetItem"},
    "batch_write_item": {"dynamodb:BatchWriteItem"},
    "delete_item": {"dynamodb:DeleteItem"},
    "describe_table": {"dynamodb:DescribeTable"},
    "describe_time_to_live": {"dynamodb:DescribeTimeToLive"},
    "get_item": {"dynamodb:GetItem"},
    "put_item": {"dynamodb:PutItem"},
    "query": {"dynamodb:Query"},
    "transact_write_items": {"dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:PutItem"},
    "change_message_visibility_batch": {"sqs:ChangeMessageVisibility"},
    "delete_message_batch": {"sqs:DeleteMessage"},
    "get_queue_attributes": {"sqs:GetQueueAttributes"},
    "get_queue_url": {"sqs:GetQueueUrl"},
    "receive_message": {"sqs:ReceiveMessage"},
    "send_message_batch": {"sqs:SendMessage"},
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "complete_multipart_upload": {"s3:PutObject"},
    "copy_object": {"s3:GetObject", "s3:PutObject"},
    "create_multipart_upload": {"s3:PutObject"},
    "delete_object": {"s3:DeleteObject"},
    "head_object": {"s3:GetObject"},
    "list_objects_v2": {"s3:ListBucket"},
    "put_object": {"s3:PutObject"},
    "read_object": {"s3:GetObject"},
    "upload_part": {"s3:PutObject"},
}
CALLED = re.compile(
    r'"((?:abort|batch|change|complete|copy|create|delete|describe|get|head|list|put|read|receive|send|transact|update|'
    r'upload)_[a-z0-9_]+|query|scan)"'
)
CALLERS = ("stores/dynamodb*.py", "aws/*.py", "objects/s3*.py", "daemon/aws_sites.py")
NO_OPERATION = {"upload_aborted", "upload_left"}


def test_the_policy_allows_what_the_code_calls_and_nothing_else(baseline: Resources) -> None:
    root = Path(tpfd.__file__).parent
    sources = [file.read_text("utf-8") for pattern in CALLERS for file in root.glob(pattern)]
    called = {name for source in sources for name in CALLED.findall(source)} - NO_OPERATION
    assert called == set(ALLOWED_BY)
    bucket = Bucket(name="b", site=Site(), path="$", prefix="", reads=True, writes=True, removes=True)
    policy = iam_policy(evolve(baseline, buckets=(bucket,)))
    allowed = {action for one in policy["Statement"] for action in one["Action"]}
    assert allowed == set().union(*ALLOWED_BY.values())


@pytest.mark.parametrize(
    ("region", "partition"),
    [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("us-east-1", "aws"), ("", "aws")],
)
def test_arns_are_of_the_region_s_partition(region: str, partition: str, baseline: Resources) -> None:
    there = evolve(baseline, tables_site=Site(region), queues=())
    (first, *_) = statement(iam_policy(there), "Store")["Resource"]
    assert first.startswith(f"arn:{partition}:dynamodb:{region or '*'}:*:table/")


def test_a_bucket_is_allowed_under_its_prefix_alone() -> None:
    bucket = Bucket(name="in", site=Site(), path="$", prefix="/csv", reads=True)
    policy = iam_policy(Resources(tables=(), tables_site=Site(), queues=(), buckets=(bucket,)))
    objects = statement(policy, "Bucket0InObjects")
    assert objects["Resource"] == ["arn:aws:s3:::in/csv/*"]
    assert objects["Action"] == ["s3:GetObject"]
    written = evolve(bucket, reads=False, writes=True, removes=True)
    policy = iam_policy(Resources(tables=(), tables_site=Site(), queues=(), buckets=(written,)))
    actions = statement(policy, "Bucket0InObjects")["Action"]
    assert set(actions) >= {"s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject"}


def test_the_template_has_every_table_and_queue_and_keeps_them(baseline: Resources) -> None:
    resources = cloudformation(baseline)["Resources"]
    tables = {one["Properties"]["TableName"] for one in resources.values() if one["Type"] == "AWS::DynamoDB::Table"}
    assert tables == {table.name for table in baseline.tables}
    assert all(one["DeletionPolicy"] == one["UpdateReplacePolicy"] == "Retain" for one in resources.values())
    execution = resources["TableTpfExecution"]["Properties"]
    assert execution["TimeToLiveSpecification"] == {"Enabled": True, "AttributeName": "ttl_epoch_s"}
    assert {one["IndexName"] for one in execution["GlobalSecondaryIndexes"]} >= {"due", "by_status"}
    redrive = resources["QueueTpfWork"]["Properties"]["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": ["QueueTpfDlq", "Arn"]}
    assert redrive["deadLetterTargetArn"]["Fn::GetAtt"][0] in resources
    assert len(resources) == len(baseline.tables) + 2


def test_a_queue_is_made_with_what_it_is_for() -> None:
    queue = Queue(url=f"{ACCOUNT}/q", site=Site(), path="$", uses=("work hints",), visibility_s=90)
    made = queue_attributes(queue, "arn:aws:sqs:eu-west-1:1:dlq")
    assert made["VisibilityTimeout"] == "90"
    assert json.loads(made["RedrivePolicy"]) == {
        "deadLetterTargetArn": "arn:aws:sqs:eu-west-1:1:dlq",
        "maxReceiveCount": 1000,
    }
    assert "RedrivePolicy" not in queue_attributes(queue, None)
