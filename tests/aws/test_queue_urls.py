"""What a queue's URL says."""

from __future__ import annotations

import pytest

from tpfd.aws.queue_urls import queue_account, queue_name, queue_region


@pytest.mark.parametrize(
    ("url", "name", "account", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/tpf-work", "tpf-work", "123456789012", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/w", "w", "123456789012", "cn-north-1"),
        ("https://sqs-fips.us-gov-west-1.amazonaws.com/123456789012/w/", "w", "123456789012", "us-gov-west-1"),
        ("https://eu-west-1.queue.amazonaws.com/123456789012/w", "w", "123456789012", "eu-west-1"),
        ("https://sqs.eu-west-1.api.aws/123456789012/w", "w", "123456789012", "eu-west-1"),
        ("http://127.0.0.1:4567/000000000000/w", "w", "000000000000", ""),
        ("http://sqs.eu-west-1.localhost.localstack.cloud:4566/000000000000/w", "w", "000000000000", ""),
        ("http://queues/w", "w", "", ""),
        ("https://sqs.eu-west-1.amazonaws.com.example.org/123456789012/w", "w", "123456789012", ""),
    ],
)
def test_name_account_and_region(url: str, name: str, account: str, region: str) -> None:
    assert (queue_name(url), queue_account(url), queue_region(url)) == (name, account, region)
