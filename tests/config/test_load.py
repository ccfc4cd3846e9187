"""File, environment and flags: which one wins, what is refused and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tpfd.config.fields import Address, SecretRef
from tpfd.config.load import Loaded, load_config, parse_config
from tpfd.config.model import Config
from tpfd.errors import ConfigError

HA_BASELINE = """
node: {production: true}
store: {provider: dynamodb, dynamodb: {region: eu-west-1}}
dispatcher: {provider: sqs, sqs: {queue-url: "https://sqs.eu-west-1.amazonaws.com/123456789012/tpf-work"}}
dead-letters: {provider: sqs, sqs: {queue-url: "https://sqs.eu-west-1.amazonaws.com/123456789012/tpf-dlq"}}
execution: {idempotency-policy: CLIENT_KEY_REQUIRED}
strict-startup: true
"""


def load(
    text: str | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> Loaded:
    return load_config(text, "tpfd.yaml", environ or {}, flags or {})


def problems(
    text: str | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(text, environ, flags)
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("text", [None, "", "# nothing\n", "lease:\n  # duration: PT9S\n"])
def test_without_settings_everything_is_default(text: str | None) -> None:
    loaded = load(text)
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}


def test_flag_beats_environment_beats_file_beats_default() -> None:
    text = "lease:\n  duration: PT40S\n  skew: PT3S\nsweep: {limit: 7}\n"
    environ = {"TPFD_LEASE__DURATION": "PT50S", "TPFD_SWEEP__LIMIT": "8"}
    loaded = load(text, environ, {"sweep.limit": "9"})
    assert (loaded.config.lease.duration_ms, loaded.config.lease.skew_ms) == (50_000, 3_000)
    assert (loaded.config.sweep.limit, loaded.config.sweep.interval_ms) == (9, 30_000)
    assert loaded.origins["lease.duration"] == "environment TPFD_LEASE__DURATION"
    assert loaded.origins["lease.skew"] == "tpfd.yaml:3"
    assert loaded.origins["sweep.limit"] == "flag"
    assert loaded.origins["sweep.interval"] == "default"


def test_a34_misspelt_keys_are_named_with_the_nearest_valid_one() -> None:
    found = problems("lease_secnds: 60\nretry:\n  max_attemps: 5\nretries:\n  delay: PT1S\n")
    assert found == {
        "$.lease_secnds": "tpfd.yaml:1: unknown key 'lease_secnds': nearest is lease",
        "$.retry.max_attemps": "tpfd.yaml:3: unknown key 'retry.max_attemps': nearest is retry.max-retries",
        "$.retries": "tpfd.yaml:4: unknown key 'retries': nearest is retry",
    }


def test_a34_a_key_like_nothing_gets_the_list_of_keys() -> None:
    message = problems("drain: {zzz: 1}")["$.drain.zzz"]
    assert message.endswith("nearest is drain.grace; known here are grace")


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ("max-retries: 5", "$.max-retries", "belongs to retry.max-retries"),
        ("lease.duration: PT3S", "$.lease.duration", "written with dots; write lease and duration one level below"),
        ("store: {sqlite.path: /x}", "$.store.sqlite.path", "written with dots"),
        ("store: {path: /x}", "$.store.path", "belongs to store.sqlite.path"),
        ("retry: {maxRetries: 5}", "$.retry.maxRetries", "write max-retries"),
        ("retry: {max_retries: 5}", "$.retry.max_retries", "write max-retries"),
        ("pipeline.orchestrator.lease-ms: 5", "$.pipeline.orchestrator.lease-ms", "property is lease.duration here"),
    ],
)
def test_a_misplaced_key_is_told_where_it_belongs(text: str, path: str, hint: str) -> None:
    assert hint in problems(text)[path]


def test_a34_misspelt_variables_are_refused_and_foreign_ones_are_not() -> None:
    found = problems(None, {"TPFD_LEASE_DURATION": "PT1M"})
    assert found == {"$": "environment TPFD_LEASE_DURATION sets no key; nearest is TPFD_LEASE__DURATION"}
    assert "TPFD_RETRY__MAX_RETRIES" in problems(None, {"TPFD_RETRY__MAX_RETRYS": "1"})["$"]
    foreign = {"TPFD_PORT_8081_TCP_ADDR": "10.0.0.7", "TPFD_SERVICE_HOST": "x", "TPFD_TOKEN": "t", "PATH": "/bin"}
    assert load(None, foreign).config == Config()


def test_a_variable_that_the_file_names_is_its_own_business() -> None:
    loaded = load("node: {name: '${TPFD_NODE__LABEL}'}", {"TPFD_NODE__LABEL": "blue"})
    assert loaded.config.node.name == "blue"
    assert "TPFD_NODE__NAME" in problems("node: {name: '${TPFD_NODE__LABEL:-x}'}", {"TPFD_NODE__LABE": "blue"})["$"]


@pytest.mark.parametrize(
    ("written", "seconds"), [("PT10M", 600), ("PT90S", 90), ("PT1H30M", 5_400), ("P1D", 86_400), ("P1W", 604_800)]
)
def test_a35_durations_with_a_fixed_length_are_read(written: str, seconds: int) -> None:
    assert load(f"execution: {{ttl: {written}}}").config.execution.ttl_ms == seconds * 1_000


@pytest.mark.parametrize("written", ["P", "PT", '""', "-PT5M", "P1M", "P1Y", "60", "'60'", "1.5", "true", "null"])
def test_a35_durations_that_mean_nothing_certain_are_refused(written: str) -> None:
    found = problems(f"execution: {{ttl: {written}}}")
    assert list(found) == ["$.execution.ttl"]
    assert found["$.execution.ttl"].startswith("tpfd.yaml:1: ")


def test_a35_zero_only_where_zero_makes_sense() -> None:
    assert load("drain: {grace: PT0S}").config.drain.grace_ms == 0
    assert problems("retry: {delay: PT0S}")["$.retry.delay"] == "tpfd.yaml:1: PT0S is outside its range: at least 1ms"


def test_all_problems_are_listed_at_once_with_line_and_path() -> None:
    text = """\
lease: {duration: 30}
http:
  bind: "127.0.0.1"
  max-connections: "3"
retry: {jitter: 2}
node: {name: "${NOBODY}", production: yes}
telemetry: {log: {level: loud}}
store: sqlite
pipelines: a.yaml
bindings: {step: 5}
"""
    found = problems(text, {"TPFD_DRAIN__GRACE": "soon"}, {"http.bnd": "x"})
    assert found == {
        "$.lease.duration": "tpfd.yaml:1: 30 has no unit: write PT30S for seconds or 30ms for milliseconds",
        "$.http.bind": "tpfd.yaml:3: '127.0.0.1' is not host:port, as 127.0.0.1:8081 or [::1]:8081",
        "$.http.max-connections": "tpfd.yaml:4: '3' is not a whole number",
        "$.retry.jitter": "tpfd.yaml:5: 2.0 is outside its range: at most 1.0",
        "$.node.name": "tpfd.yaml:6: environment variable NOBODY is not set; set it, or write ${NOBODY:-default}",
        "$.node.production": "tpfd.yaml:6: 'yes' is not a true or false",
        "$.telemetry.log.level": "tpfd.yaml:7: 'loud' is not one of debug, info, warning, error",
        "$.store": "tpfd.yaml:8: 'sqlite' stands where keys should; 'store' is a section; "
        "name a key in it: store.sqlite, store.dynamodb, store.provider",
        "$.pipelines": "tpfd.yaml:9: 'a.yaml' is not a list; write [a, b]",
        "$.bindings.step": "tpfd.yaml:10: 5 is not text; put it in quotes",
        "$.drain.grace": "environment TPFD_DRAIN__GRACE: 'soon' is not a duration: write ISO 8601 (PT30S, PT1H30M, "
        "P1D, P1W) or 30s, 500ms",
        "$.http.bnd": "flag: unknown key 'http.bnd': nearest is http.bind",
    }


def test_an_unset_name_is_one_problem_and_hides_no_other() -> None:
    with pytest.raises(ConfigError) as caught:
        load("sweep: {limit: '${NOBODY}', interval: soon}\npipelines: ['${NOBODY}']")
    assert [problem.path for problem in caught.value.problems] == [
        "$.sweep.limit",
        "$.pipelines[0]",
        "$.sweep.interval",
    ]


def test_a_bad_value_in_the_file_is_reported_even_if_a_flag_overrides_it() -> None:
    assert "$.lease.duration" in problems("lease: {duration: long}", flags={"lease.duration": "PT30S"})


def test_a_doubled_key_is_refused() -> None:
    assert "second time, first in line 1" in problems("lease: {skew: PT1S}\nlease: {skew: PT2S}")["$.lease"]


def test_a_broken_file_says_where_and_explains_the_brace_of_a_reference() -> None:
    assert "inside {...} and [...] write ${NAME} in quotes" in problems("node: {name: ${X}}", {"X": "a"})["$"]
    assert "quotes" not in problems("node: {name: ")["$"]


def test_references_are_read_as_what_the_key_wants() -> None:
    environ = {"LIMIT": "7", "PRODUCTION": "true", "FOLDER": "/data", "LIST": "[a.yaml, b.yaml]"}
    text = """\
sweep: {limit: "${LIMIT}", interval: "${INTERVAL:-PT5S}"}
node: {production: "${PRODUCTION}"}
store: {sqlite: {path: "${FOLDER}/tpfd.db"}}
pipelines: "${LIST}"
"""
    config = load(text, environ).config
    assert (config.sweep.limit, config.sweep.interval_ms, config.node.production) == (7, 5_000, True)
    assert config.store.sqlite.path == "/data/tpfd.db"
    assert type(config.store.sqlite.path) is str
    assert config.pipelines == ("a.yaml", "b.yaml")


def test_lists_and_maps_from_the_environment_are_yaml() -> None:
    environ = {
        "TPFD_PIPELINES": "[a.yaml]",
        "TPFD_BINDINGS": "{step: 'm:f'}",
        "TPFD_AWAIT__RESUME_TOKEN_SECRETS": "[{file: /s, kid: k2}, {env: OLD, kid: k1}]",
    }
    config = load(None, environ).config
    assert (config.pipelines, config.bindings) == (("a.yaml",), {"step": "m:f"})
    assert config.await_.resume_token_secrets == (SecretRef("file", "/s", "k2"), SecretRef("env", "OLD", "k1"))
    assert problems(None, {"TPFD_PIPELINES": "a.yaml"})["$.pipelines"].endswith("write [a, b]")
    assert problems(None, {"TPFD_PIPELINES": "[a"})["$.pipelines"].startswith("environment TPFD_PIPELINES: ")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("localhost:80", Address("localhost", 80)),
    ],
)
def test_addresses(written: str, expected: Address) -> None:
    bind = load(f"http: {{bind: '{written}', api-token-file: /t}}").config.http.bind
    assert bind == expected
    assert str(bind) == written
    assert bind.is_loopback


@pytest.mark.parametrize("written", ["localhost", ":80", "127.0.0.1:", "a:65536", "::1:80", "http://a:80", "a:8 0"])
def test_addresses_that_are_none(written: str) -> None:
    assert "$.http.bind" in problems(f"http: {{bind: '{written}'}}")


@pytest.mark.parametrize("written", ["ftp://a/b", "https://", "queue", "http://a:99999/", "http://a:0/", "http://a b"])
def test_urls_that_are_none(written: str) -> None:
    assert "$.telemetry.otlp-endpoint" in problems(f"telemetry: {{otlp-endpoint: '{written}'}}")


def test_control_characters_are_refused_and_escaped_in_the_message() -> None:
    message = problems('node: {name: "a\\nlevel=info forged"}')["$.node.name"]
    assert "control character" in message
    assert "\n" not in message


def test_a_secret_written_into_the_file_is_not_repeated_in_the_message() -> None:
    found = problems("await: {resume-token-secrets: [hunter2hunter2hunter2, {file: /a, env: B}, {fil: /c}]}")
    assert "hunter2" not in str(found)
    assert set(found) == {f"$.await.resume-token-secrets[{index}]" for index in range(3)}


def test_the_password_of_a_url_is_not_repeated_in_a_message() -> None:
    text = "telemetry: {otlp-endpoint: 'http://me:hunter2@host/'}"
    assert "hunter2" not in problems(text)["$.telemetry.otlp-endpoint"]


def test_strict_startup_follows_production_unless_it_is_set() -> None:
    followed = load("node: {production: true}")
    assert followed.config.strict_startup is True
    assert followed.origins["strict-startup"] == "tpfd.yaml:1 (node.production)"
    assert load("node: {production: true}\nstrict-startup: false").config.strict_startup is False
    assert load("strict-startup: true").config.strict_startup is True


def test_the_frameworks_ha_baseline_is_understood_as_written() -> None:
    config = parse_config(HA_BASELINE, "tpfd.yaml", {}, {}).config
    assert config.store.provider == "dynamodb"
    assert (config.dispatcher.provider, config.dead_letters.provider) == ("sqs", "sqs")
    assert config.store.dynamodb.region == "eu-west-1"
    assert config.execution.idempotency_policy == "CLIENT_KEY_REQUIRED"
    assert config.strict_startup
    assert config.node.production


def test_a_file_that_is_not_a_map_is_refused() -> None:
    assert problems("- a\n- b\n") == {"$": "tpfd.yaml: a list stands where sections and keys should"}
