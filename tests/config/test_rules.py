"""Settings that contradict each other, and keys whose part is not built."""

from __future__ import annotations

import attrs
import pytest

from tpfd.config.keys import KEYS, SECTIONS, build
from tpfd.config.load import load_config
from tpfd.config.model import Config
from tpfd.config.reload import changes
from tpfd.config.rules import check_combinations
from tpfd.config.support import MISSING_PARTS, unsupported
from tpfd.errors import ConfigError


def refused(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_config(text, "f", {}, {})
    return {problem.path: problem.message for problem in caught.value.problems}


def test_the_defaults_contradict_nothing_and_ask_for_nothing_unbuilt() -> None:
    assert check_combinations(Config()) == ()
    assert unsupported(Config()) == ()


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (
            "lease: {duration: PT5S}",
            "$.lease.duration",
            (
                "f:1: lease.duration (PT5S) is shorter than 3 times lease.skew (PT2S); "
                "lengthen the lease or allow less skew"
            ),
        ),
        (
            "http: {max-body: 1MiB}",
            "$.execution.max-payload",
            "execution.max-payload (16MiB) is above http.max-body (1MiB): a payload that is allowed could not be sent",
        ),
        (
            "retry: {delay: PT10M}",
            "$.retry.delay",
            "f:1: retry.delay (PT10M) is above retry.cap (PT5M): the first wait would already be capped",
        ),
        (
            "steps: {retry-wait: PT1M}",
            "$.steps.retry-wait",
            "f:1: steps.retry-wait (PT1M) is above steps.max-backoff (PT30S): the first wait would already be capped",
        ),
        (
            "http: {header-timeout: PT1M}",
            "$.http.header-timeout",
            (
                "f:1: http.header-timeout (PT1M) is above http.request-timeout (PT30S): "
                "a request is over before its headers are late"
            ),
        ),
        (
            "await: {live-idle: 100ms}",
            "$.await.live-poll",
            "await.live-poll (500ms) is above await.live-idle (100ms): a session would park before it looked once",
        ),
        ("store: {sqlite: {path: ''}}", "$.store.sqlite.path", "f:1: must be set, because store.provider (sqlite)"),
        (
            "tenancy: {default-tenant: ''}",
            "$.tenancy.default-tenant",
            "f:1: must be set, because tenancy.required (false)",
        ),
        (
            "store: {sqlite: {path: ':memory:'}}",
            "$.store.sqlite.path",
            (
                "f:1: names no file, so nothing would outlive the process; "
                "give a path, or set store.provider: memory"
            ),
        ),
        ("http: {tls: {cert: /c}}", "$.http.tls.key", "must be set too: TLS takes both cert and key"),
        ("http: {tls: {key: /k}}", "$.http.tls.cert", "must be set too: TLS takes both cert and key"),
        (
            "dead-letters: {provider: file}",
            "$.dead-letters.file.path",
            "must be set, because dead-letters.provider (file)",
        ),
        (
            "await: {resume-token-secrets: [{file: /a}, {file: /b, kid: k}]}",
            "$.await.resume-token-secrets[0]",
            "f:1: needs a kid, because there are several secrets and this one signs",
        ),
        (
            "await: {resume-token-secrets: [{file: /a, kid: k}, {file: /b, kid: k}]}",
            "$.await.resume-token-secrets[1]",
            "f:1: has kid 'k' like entry 0; each needs its own",
        ),
    ],
)
def test_contradictions_are_refused_with_both_values(text: str, path: str, message: str) -> None:
    assert refused(text) == {path: message}


def test_an_old_secret_without_kid_may_stay_while_a_new_one_signs() -> None:
    text = "await: {resume-token-secrets: [{file: /a, kid: k}, {file: /b}]}"
    assert load_config(text, "f", {}, {}).config.await_.resume_token_secrets[1].kid == ""


def test_fifo_queues_and_a_second_remote_worker_are_refused() -> None:
    config = build(
        {
            "dispatcher.provider": "sqs",
            "dispatcher.sqs.queue-url": "https://sqs/1/work.fifo?x=1",
            "worker.rest.base-url": "http://a",
            "worker.grpc.endpoint": "b:1",
        }
    )
    messages = {problem.path: problem.message for problem in check_combinations(config)}
    assert "FIFO" in messages["$.dispatcher.sqs.queue-url"]
    assert "worker.rest.base-url and worker.grpc.endpoint" in messages["$.worker"]


@pytest.mark.parametrize(
    ("received", "other"),
    [
        ("dispatcher.sqs.queue-url", "dead-letters.sqs.queue-url"),
        ("dispatcher.sqs.queue-url", "item-rejects.sqs.queue-url"),
        ("dispatcher.sqs.queue-url", "await.sqs.poller.response-queue-url"),
        ("await.sqs.poller.response-queue-url", "dead-letters.sqs.queue-url"),
        ("await.sqs.poller.response-queue-url", "item-rejects.sqs.queue-url"),
    ],
)
def test_a_queue_that_is_read_takes_nothing_else(received: str, other: str) -> None:
    (problem,) = check_combinations(build({received: "https://q/1/a", other: "https://q/1/a"}))
    assert problem.path == f"$.{other}"
    assert "use two" in problem.message
    assert check_combinations(build({received: "https://q/1/a", other: "https://q/1/b"})) == ()


@pytest.mark.parametrize("path", ["store.dynamodb.table-prefix", "store.dynamodb.tables.execution"])
def test_a_table_s_name_is_one_that_the_service_takes(path: str) -> None:
    (problem,) = check_combinations(build({path: "prod/tpf_"}))
    assert problem.path == f"$.{path}"
    assert check_combinations(build({path: "prod-1.tpf_"})) == ()


def test_contradictions_and_unbuilt_parts_are_listed_together() -> None:
    assert set(refused("lease: {duration: PT5S}\nretention: {archive: /a}")) == {
        "$.lease.duration",
        "$.retention.archive",
    }


@pytest.mark.parametrize("part", MISSING_PARTS)
def test_no_key_of_an_unbuilt_part_can_be_set_without_being_told(part: str) -> None:
    paths = [path for path in KEYS if path == part or path.startswith(f"{part}.")]
    assert paths
    assert part in KEYS or part in SECTIONS
    for path in paths:
        (problem,) = unsupported(build({path: object()}))
        assert problem.path == f"$.{path}"


def test_an_unbuilt_part_names_the_line_that_asks_for_it() -> None:
    assert refused("# x\nretention: {archive: /a}") == {
        "$.retention.archive": "f:2: is set to /a, but its part is not in this build yet; take it out"
    }


def test_changes_tell_what_a_running_daemon_can_take() -> None:
    old = Config()
    new = build({"telemetry.log.level": "debug", "lease.duration": 60_000, "http.api-token-file": "/t"})
    found = changes(old, new)
    assert [key.path for key in found.reloadable] == ["telemetry.log.level"]
    assert [key.path for key in found.restart] == ["http.api-token-file", "lease.duration"]
    assert changes(new, attrs.evolve(new)) == changes(old, old)
