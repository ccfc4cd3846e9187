"""What must not be started with."""

from __future__ import annotations

import pytest

from tpfd.config.fields import Address, SecretRef
from tpfd.config.keys import build
from tpfd.config.startup import PipelineNeeds, StartupFindings, check_startup

SIGNED = PipelineNeeds(signed_token_steps=("orders/await-decision",))
RECOVERING = PipelineNeeds(recovering_steps=("orders/parse",))


def check(values: dict[str, object], needs: PipelineNeeds | None = None) -> StartupFindings:
    return check_startup(build({"pipelines": ("p.yaml",), **values}), needs or PipelineNeeds())


def paths(findings: StartupFindings) -> tuple[list[str], list[str]]:
    return [one.path for one in findings.errors], [one.path for one in findings.warnings]


def test_the_defaults_with_a_pipeline_start() -> None:
    assert check({}) == StartupFindings((), ())
    assert check({"node.production": True, "strict-startup": True}) == StartupFindings((), ())


def test_no_pipeline_is_an_error() -> None:
    assert paths(check({"pipelines": ()})) == (["$.pipelines"], [])


@pytest.mark.parametrize("strict", [True, False])
def test_a_bind_beyond_loopback_needs_a_token_whatever_strict_startup_says(strict: bool) -> None:
    everywhere = {"http.bind": Address("0.0.0.0", 80), "strict-startup": strict}
    assert paths(check(everywhere))[0] == ["$.http.bind"]
    assert paths(check({**everywhere, "http.api-token-file": "/t"})) == ([], ["$.http.tls"])
    assert paths(check({**everywhere, "http.admin-token-file": "/t", "http.tls.cert": "/c"})) == ([], [])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert check({"http.bind": Address(host, 80)}) == StartupFindings((), ())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org"])
def test_what_only_looks_like_loopback_needs_one(host: str) -> None:
    assert paths(check({"http.bind": Address(host, 80)}))[0] == ["$.http.bind"]


@pytest.mark.parametrize("strict", [True, False])
def test_signed_tokens_need_a_secret_whatever_strict_startup_says(strict: bool) -> None:
    findings = check({"strict-startup": strict}, SIGNED)
    assert paths(findings) == (["$.await.resume-token-secrets"], [])
    assert "orders/await-decision" in findings.errors[0].message
    assert check({"await.resume-token-secrets": (SecretRef("env", "X"),)}, SIGNED) == StartupFindings((), ())


@pytest.mark.parametrize(
    ("values", "needs", "path"),
    [
        ({"store.provider": "memory"}, PipelineNeeds(), "$.store.provider"),
        ({"store.sqlite.synchronous": "normal"}, PipelineNeeds(), "$.store.sqlite.synchronous"),
        ({"item-rejects.provider": "log"}, RECOVERING, "$.item-rejects.provider"),
        ({"item-rejects.provider": "memory"}, RECOVERING, "$.item-rejects.provider"),
    ],
)
def test_in_production_what_forgets_is_an_error_or_with_strict_startup_off_a_warning(
    values: dict[str, object], needs: PipelineNeeds, path: str
) -> None:
    production = {**values, "node.production": True}
    assert paths(check({**production, "strict-startup": True}, needs)) == ([path], [])
    assert paths(check({**production, "strict-startup": False}, needs)) == ([], [path])
    assert check(values, needs) == StartupFindings((), ())


def test_a_durable_reject_sink_is_enough() -> None:
    values: dict[str, object] = {"item-rejects.provider": "file", "node.production": True, "strict-startup": True}
    assert check(values, RECOVERING) == StartupFindings((), ())


def test_hosts_that_share_a_store_are_told_to_share_a_queue() -> None:
    shared: dict[str, object] = {"store.provider": "dynamodb", "strict-startup": True}
    assert paths(check(shared)) == ([], ["$.dispatcher.provider"])
    queue = {"dispatcher.provider": "sqs", "dispatcher.sqs.queue-url": "https://q/1/w"}
    assert check({**shared, **queue}) == StartupFindings((), ())


def test_a_queue_for_hints_of_work_that_only_this_host_can_see_is_told() -> None:
    queue: dict[str, object] = {"dispatcher.provider": "sqs", "dispatcher.sqs.queue-url": "https://q/1/w"}
    assert paths(check(queue)) == ([], ["$.dispatcher.provider"])
    assert "hints of work that others keep would be dropped" in check(queue).warnings[0].message


def test_answers_over_sqs_that_nobody_here_reads_are_told() -> None:
    asking = PipelineNeeds(sqs_steps=("shop/ask",))
    assert paths(check({}, asking)) == ([], ["$.await.sqs.poller.enabled"])
    assert "answers to shop/ask" in check({}, asking).warnings[0].message
    poller: dict[str, object] = {"await.sqs.poller.enabled": True, "await.sqs.poller.response-queue-url": "https://q/1/a"}
    assert check(poller, asking) == StartupFindings((), ())


def test_webhooks_without_a_secret_go_out_unsigned_which_is_said_and_in_production_refused() -> None:
    webhooks = PipelineNeeds(webhook_steps=("shop/ask",))
    production: dict[str, object] = {"node.production": True, "strict-startup": True}
    path = "$.await.resume-token-secrets"
    assert paths(check(production, webhooks)) == ([path], [])
    assert paths(check({}, webhooks)) == ([], [path])
    assert "shop/ask go out unsigned" in check({}, webhooks).warnings[0].message
    secret = {"await.resume-token-secrets": (SecretRef("env", "X"),)}
    assert check({**production, **secret}, webhooks) == StartupFindings((), ())
