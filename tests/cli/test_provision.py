"""``tpfd provision`` and ``tpfd check --connect`` against a real service: what is made, what is found, what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.aws.standin import StandIn
from tpfd.cli.main import run
from tpfd.clock import SystemClock
from tpfd.config.load import parse_config
from tpfd.daemon.resources import Resources, resources_of
from tpfd.stores.dynamodb_tables import TTL

Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def config(aws: StandIn, tmp_path: Path) -> Path:
    """The HA profile on the stand-in, under names that nobody else uses."""
    host = f"{aws.endpoint}/000000000000"
    document = {
        "pipelines": ["example:deliver-order"],
        "store": {
            "provider": "dynamodb",
            "dynamodb": {"region": aws.region, "endpoint": aws.endpoint, "table-prefix": f"{aws.name('p')}_"},
        },
        "dispatcher": {
            "provider": "sqs",
            "sqs": {"queue-url": f"{host}/{aws.name('work')}", "region": aws.region, "endpoint": aws.endpoint},
        },
        "dead-letters": {"provider": "sqs", "sqs": {"queue-url": f"{host}/{aws.name('letters')}"}},
        "item-rejects": {"provider": "sqs", "sqs": {"queue-url": f"{host}/{aws.name('rejects')}"}},
    }
    file = tmp_path / "tpfd.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def command(config: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command with that configuration; its exit code, and its output: parsed, or what it complained of."""

    def called(*arguments: str) -> tuple[int, Any]:
        code = run(["--output", "json", *arguments, "--config", str(config)])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else printed.err

    return called


def used(config: Path) -> Resources:
    return resources_of(parse_config(config.read_text(), "f", {}, {}).config, {})


def test_it_makes_what_is_used_and_nothing_a_second_time(aws: StandIn, config: Path, command: Command) -> None:
    resources = used(config)
    code, printed = command("provision")
    assert code == 0, printed
    made = {(one["kind"], one["name"]) for one in printed["resources"] if one["made"]}
    assert {name for kind, name in made if kind == "table"} == {table.name for table in resources.tables}
    assert len([name for kind, name in made if kind == "queue"]) == 3
    code, again = command("provision")
    assert (code, [one for one in again["resources"] if one["made"]]) == (0, [])
    assert {(one["kind"], one["name"]) for one in again["resources"]} <= made

    dynamodb = aws.client("dynamodb")
    for table in resources.tables:
        described = dynamodb.describe_table(TableName=table.name)["Table"]
        assert described["TableStatus"] == "ACTIVE"
        assert {index["IndexName"] for index in described.get("GlobalSecondaryIndexes", ())} == set(table.indexes)
        ttl = dynamodb.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
        assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", TTL)
    sqs = aws.client("sqs")
    letters, _, work = resources.queues
    attributes = sqs.get_queue_attributes(QueueUrl=work.url, AttributeNames=["All"])["Attributes"]
    assert attributes["VisibilityTimeout"] == "60"
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].endswith(letters.url.rpartition("/")[2])
    kept = sqs.get_queue_attributes(QueueUrl=letters.url, AttributeNames=["All"])["Attributes"]
    assert kept["MessageRetentionPeriod"] == str(14 * 24 * 3600)


def test_an_older_table_gets_the_index_and_the_expiry_that_it_lacks(
    aws: StandIn, config: Path, command: Command
) -> None:
    table = next(table for table in used(config).tables if len(table.indexes) > 1)
    parameters = table.create_parameters()
    lacking = parameters["GlobalSecondaryIndexes"].pop()["IndexName"]
    keys = {f"{lacking}_p", f"{lacking}_s"}
    parameters["AttributeDefinitions"] = [
        one for one in parameters["AttributeDefinitions"] if one["AttributeName"] not in keys
    ]
    aws.client("dynamodb").create_table(**parameters)
    code, found = command("check", "--connect")
    (said,) = [one for one in found["connections"] if one["about"] == f"table {table.name}"]
    assert (code, said["ok"]) == (1, False)
    assert lacking in said["said"]
    code, printed = command("provision")
    told = [(one["kind"], one["name"], one["made"]) for one in printed["resources"] if table.name in one["name"]]
    assert told[:1] == [("table", table.name, False)]
    assert ("index", f"{table.name}/{lacking}", True) in told
    assert ("time to live", f"{table.name}.{TTL}", True) in told
    assert command("check", "--connect")[0] == 0


def test_a_table_that_would_grow_for_ever_is_told(aws: StandIn, config: Path, command: Command) -> None:
    table = used(config).tables[0]
    aws.client("dynamodb").create_table(**table.create_parameters())
    (said,) = [one for one in command("check", "--connect")[1]["connections"] if one["about"] == f"table {table.name}"]
    assert not said["ok"]
    assert "would grow for ever" in said["said"]


def test_check_says_what_is_missing_and_that_it_works_when_it_is_there(command: Command) -> None:
    code, before = command("check", "--connect")
    missing = [one for one in before["connections"] if not one["ok"]]
    assert code == 1
    assert {one["said"] for one in missing} == {"is not there"}
    assert all("tpfd provision" in one["advice"] for one in missing)
    assert [one["about"] for one in before["connections"] if one["ok"]] == ["clock"]
    assert command("provision")[0] == 0
    code, after = command("check", "--connect")
    assert code == 0, after["connections"]
    assert all(one["ok"] for one in after["connections"])
    assert len(after["connections"]) == len(before["connections"])


@pytest.mark.parametrize(("off_ms", "said"), [(0, "agrees"), (60_000, "ahead"), (-60_000, "behind")])
def test_a_clock_that_is_off_is_told(
    off_ms: int, said: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Off(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + off_ms

    monkeypatch.setattr("tpfd.daemon.connecting.SystemClock", Off)
    command("provision")
    (clock,) = [one for one in command("check", "--connect")[1]["connections"] if one["about"] == "clock"]
    assert said in clock["said"]
    assert clock["ok"] is (off_ms == 0)


def test_check_names_a_service_that_cannot_be_reached(
    config: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpfd.daemon.aws_sites.WITHIN_S", 0.1)
    text = config.read_text()
    config.write_text(text.replace(yaml.safe_load(text)["store"]["dynamodb"]["endpoint"], "http://127.0.0.1:9"))
    code, found = command("check", "--connect")
    tables = [one for one in found["connections"] if one["about"].startswith("table ")]
    assert code == 1
    assert tables
    assert all("unreached" in one["said"] and "endpoint" in one["advice"] for one in tables)


@pytest.mark.parametrize("document", ["iam", "cloudformation"])
def test_documents_are_printed_without_a_service(
    document: str, config: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a client was made")

    monkeypatch.setattr("tpfd.daemon.aws_sites.make_client", never)
    code, printed = command("provision", "--print", document)
    assert code == 0
    for table in used(config).tables:
        assert table.name in json.dumps(printed)


def test_credentials_of_another_account_are_told(
    aws: StandIn, config: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "210987654321")
    code, said = command("provision")
    letters = used(config).queues[0]
    assert code == 78
    name = letters.url.rpartition("/")[2]
    assert f"names account 000000000000, but these credentials made {name} in 210987654321" in said
    assert "$.dead-letters.sqs.queue-url" in said
    found = {one["about"]: one["said"] for one in command("check", "--connect")[1]["connections"]}
    assert found[f"queue {name}"] == "is not there", "what is there is another account's"


def test_there_is_nothing_to_make_without_aws(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["provision", "example:deliver-order"]) == 78
    assert "uses nothing of AWS" in capsys.readouterr().err


def test_the_doctor_looks_at_the_same_tables(command: Command) -> None:
    code, before = command("doctor")
    assert (code, before["healthy"], before["counts"]) == (1, False, [])
    assert "is not there" in {one["said"] for one in before["findings"]}
    command("provision")
    code, after = command("doctor")
    assert (code, after["healthy"]) == (0, True), after
    about = {one["about"] for one in after["findings"]}
    assert about >= {"clock", "due executions", "orphans", "clocks"}
    assert len([one for one in about if one.startswith("queue ")]) == 3
