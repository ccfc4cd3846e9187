"""What must hold for each key: it can be set from everywhere, it can be seen, it stands in the generated files."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tpfd.config.fields import Kind
from tpfd.config.keys import KEYS, Key
from tpfd.config.load import Loaded, parse_config
from tpfd.config.model import Config
from tpfd.config.reference import reference_text, schema
from tpfd.config.render import effective, main, schema_text
from tpfd.config.values import show
from tpfd.errors import ConfigError
from tpfd.pipeline.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]

each_key = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)

COMPANIONS = {
    # what else must be set for a key's other value to make sense
    "http.tls.cert": "http: {tls: {key: /k}}",
    "http.tls.key": "http: {tls: {cert: /c}}",
    "await.sqs.poller.enabled": "await: {sqs: {poller: {response-queue-url: 'http://q'}}}",
}


def other_value(key: Key) -> str:
    """A value that is not the default, as an environment variable would give it."""
    match key.spec.kind:
        case Kind.DURATION:
            assert isinstance(key.default, int)
            smaller_ms = max(int(key.spec.minimum or 0), key.default - 1)
            return f"{smaller_ms if smaller_ms != key.default else key.default + 1}ms"
        case Kind.SIZE:
            assert isinstance(key.default, int)
            # a larger body and a smaller everything else keep the one rule between sizes
            return f"{key.default + (1 if key.path == 'http.max-body' else -1)}B"
        case Kind.INTEGER:
            assert isinstance(key.default, int)
            return str(key.default + 1)
        case Kind.NUMBER:
            assert isinstance(key.default, float)
            return str(key.default + 0.5)
        case Kind.SWITCH:
            return "false" if key.default else "true"
        case Kind.CHOICE:
            return next(word for word in reversed(key.choices) if word != key.default)
        case Kind.TEXT:
            return f"{key.default}x"
        case Kind.URL:
            return "https://example.org/x"
        case Kind.ADDRESS:
            return "127.0.0.1:9"
        case Kind.TEXTS:
            return "[one]"
        case Kind.MAP:
            return "{name: text}"
        case Kind.SECRETS:
            return "[{env: NAME}]"


def needed_with(key: Key, value: str) -> str:
    """A file with what the other value needs beside it."""
    if key.path.endswith(".provider") and value in {"sqs", "file"}:
        own = "queue-url: 'http://q'" if value == "sqs" else "path: /p"
        return f"{key.path.partition('.')[0]}: {{{value}: {{{own}}}}}"
    return COMPANIONS.get(key.path, "")


def shown(loaded: Loaded) -> dict[str, tuple[str, str]]:
    return {row.key: (row.value, row.origin) for row in effective(loaded)}


@each_key
def test_every_key_can_be_set_and_changes_what_is_in_effect(key: Key) -> None:
    value = other_value(key)
    beside = needed_with(key, value)
    before = shown(parse_config(None, "f", {}, {}))
    after = parse_config(beside or None, "f", {key.environment: value}, {})
    assert key.value_in(after.config) != key.default
    seen = shown(after)
    assert seen[key.path][0] != before[key.path][0] or key.spec.masked
    assert seen[key.path][1] == f"environment {key.environment}"
    by_flag = parse_config(beside or None, "f", {}, {key.path: value})
    assert key.value_in(by_flag.config) == key.value_in(after.config)
    assert by_flag.origins[key.path] == "flag"


@each_key
def test_every_key_is_read_from_the_file_with_its_line(key: Key) -> None:
    value = other_value(key)
    nested = value if key.spec.kind is not Kind.TEXT else json.dumps(value)
    for name in reversed(key.path.split(".")):
        nested = f"{{{name}: {nested}}}"
    beside = needed_with(key, value)
    environ = {}
    if beside:  # in one YAML document a section stands once, so what it needs comes from the environment
        path, text = flattened(read_yaml(beside, "beside"))
        environ[KEYS[path].environment] = text
    loaded = parse_config(f"# a comment\n{nested}\n", "f", environ, {})
    by_environment = parse_config(beside or None, "f", {key.environment: value}, {})
    assert key.value_in(loaded.config) == key.value_in(by_environment.config)
    assert loaded.origins[key.path] == "f:2"


def flattened(tree: object, path: str = "") -> tuple[str, str]:
    """The one value in a tree, with its path."""
    while isinstance(tree, dict):
        ((name, tree),) = tree.items()
        path = f"{path}.{name}" if path else name
    return path, str(tree)


@each_key
def test_every_key_documents_itself(key: Key) -> None:
    assert key.spec.doc.endswith(".")
    text = f": {key.spec.default_text}"
    assert re.search(rf"^# *{re.escape(key.name)}{re.escape(text)}$", reference_text(), re.MULTILINE)
    if key.spec.framework:
        assert key.spec.framework in reference_text()


def test_the_reference_file_is_current() -> None:
    assert (ROOT / "etc/tpfd.yaml").read_text("utf-8") == reference_text(), (
        "run: python -m tpfd.config.render etc > etc/tpfd.yaml"
    )


def enabled(text: str) -> str:
    """The reference file with every setting switched on: one # less in each line."""
    return "\n".join(line.removeprefix("#") for line in text.split("\n"))


def test_the_reference_file_is_all_comments_and_shows_the_defaults() -> None:
    text = (ROOT / "etc/tpfd.yaml").read_text("utf-8")
    assert parse_config(text, "etc/tpfd.yaml", {}, {}).config == Config()
    assert all(not line or line.startswith("#") for line in text.splitlines())
    switched_on = parse_config(enabled(text), "etc/tpfd.yaml", {}, {})
    assert switched_on.config == Config()
    assert all(origin.startswith("etc/tpfd.yaml:") for origin in switched_on.origins.values())


def test_the_schema_is_current_and_shipped_in_the_package() -> None:
    shipped = resources.files("tpfd.config").joinpath("tpfd.schema.json").read_text("utf-8")
    assert shipped == schema_text(), "run: python -m tpfd.config.render schema > tpfd/config/tpfd.schema.json"


def validate(text: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    tree: Any = json.loads(json.dumps(read_yaml(text, "f"), default=float))
    jsonschema.validate(tree, schema())


def test_the_schema_takes_the_reference_file() -> None:
    validate(enabled(reference_text()))
    validate("lease:\nnode: {name: '${HOST:-x}'}\nsweep: {limit: '${N}'}\nstore: {provider: '${P}'}\n")
    validate("await: {resume-token-secrets: [{file: /a, kid: b}, {credential: c}]}\n")


@pytest.mark.parametrize(
    "text",
    [
        "leas: {}",
        "lease: {duraton: PT1S}",
        "lease: {duration: 30}",
        "lease: {duration: '30'}",
        "sweep: {limit: '100'}",
        "sweep: {limit: 0}",
        "http: {max-body: 17MB}",
        "store: {provider: mongo}",
        "node: {production: 'yes'}",
        "await: {resume-token-secrets: [{file: /a, env: B}]}",
        "await: {resume-token-secrets: [abc]}",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(text)
    with pytest.raises(ConfigError):
        parse_config(text, "f", {}, {})


def test_generated_files_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["etc"]) == 0
    assert capsys.readouterr().out == reference_text()
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()
    assert main([]) == 2


def test_values_are_shown_with_units_and_without_secrets() -> None:
    text = """
await:
  kafka: {properties: {sasl.password: hunter2}}
  resume-token-secrets: [{file: /run/s, kid: k1}]
telemetry: {otlp-endpoint: "http://me:hunter2@collector:4318/"}
http: {max-body: 20MiB}
lease: {duration: PT1M30S}
"""
    rows = {row.key: row.value for row in effective(parse_config(text, "f", {}, {}))}
    assert rows["http.max-body"] == "20MiB"
    assert rows["lease.duration"] == "PT1M30S"
    assert rows["await.resume-token-secrets"] == "[{file: /run/s, kid: k1}]"
    assert rows["await.kafka.properties"] == "{sasl.password: ********}"
    assert rows["telemetry.otlp-endpoint"] == "http://********@collector:4318/"
    assert "hunter2" not in str(rows)


def test_every_framework_property_named_once() -> None:
    names = [key.spec.framework for key in KEYS.values() if key.spec.framework]
    assert len(names) == len(set(names))


def test_defaults_are_shown_as_they_are_written() -> None:
    differing = {
        path: (show(key, key.default), key.spec.default_text)
        for path, key in KEYS.items()
        if show(key, key.default) != key.spec.default_text.strip('"')
    }
    # the same value in a shorter way of writing
    assert differing == {"dispatcher.sqs.visibility": ("PT1M", "PT60S")}
