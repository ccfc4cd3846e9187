"""The framework's high-availability baseline loads as it is written."""

from __future__ import annotations

from tpfd.config.load import load_config
from tpfd.config.startup import PipelineNeeds, check_startup

BASELINE = """
node: {production: true}
store: {provider: dynamodb, dynamodb: {region: eu-west-1}}
dispatcher: {provider: sqs, sqs: {queue-url: "https://sqs.eu-west-1.amazonaws.com/123456789012/tpf-work"}}
dead-letters: {provider: sqs, sqs: {queue-url: "https://sqs.eu-west-1.amazonaws.com/123456789012/tpf-dlq"}}
execution: {idempotency-policy: CLIENT_KEY_REQUIRED}
strict-startup: true
"""


def test_it_loads_and_nothing_of_it_stands_in_the_way_of_a_start() -> None:
    config = load_config(BASELINE, "ha.yaml", {}, {"pipelines": "[example:deliver-order]"}).config
    assert config.strict_startup
    assert config.store.dynamodb.region == "eu-west-1"
    assert config.store.dynamodb.table_prefix == "tpf_"
    findings = check_startup(config, PipelineNeeds())
    assert (findings.errors, findings.warnings) == ((), ())


def test_all_that_it_lacks_is_what_to_run() -> None:
    (problem,) = check_startup(load_config(BASELINE, "ha.yaml", {}, {}).config, PipelineNeeds()).errors
    assert problem.path == "$.pipelines"
