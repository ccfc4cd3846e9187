"""The command line from outside: help, usage, exit codes, and what goes to stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.cli.daemon_double import DaemonDouble, Reply, playing
from tpfd import __version__
from tpfd.cli.main import COMMANDS, cli, run

ACCEPTED = {"executionId": "e-1", "duplicate": False, "statusUrl": "/x", "submittedAtEpochMs": 1_700_000_000_000}
VIEW = {
    "executionId": "e-1",
    "pipelineId": "orders",
    "status": "FAILED",
    "stepIndex": 2,
    "attempt": 3,
    "version": 9,
    "updatedAtEpochMs": 1_700_000_000_123,
    "errorCode": "boom",
    "errorMessage": None,
}
FACT = {"seq": 1, "type": "RunFailed", "atEpochMs": 0, "data": {"message": "\x1b[2Jgone"}}
PROBLEM = {
    "title": "Unprocessable Content",
    "status": 422,
    "code": "payload_invalid",
    "detail": "payload does not fit its type: 'a lot' is not a decimal @ $.totalAmount",
    "errors": [{"path": "$.totalAmount", "message": "'a lot' is not a decimal"}],
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TPFD_URL", "TPFD_TOKEN", "TPFD_TOKEN_FILE", "TPFD_TENANT", "TPFD_CONFIG", "TPFD_OUTPUT"):
        monkeypatch.delenv(name, raising=False)


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def every_command() -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = [("", cli)]
    for name in COMMANDS:
        command = command_of(name)
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", command.commands[inner]) for inner in command.commands]
    return found


# --- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _ in every_command()])
def test_every_help_shows_an_example_of_that_command(name: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="tpfd")
    assert result.exit_code == 0
    example = result.output.partition("Example:")[2].partition("Options:")[0]
    called = " ".join(line.strip() for line in example.splitlines())
    assert "tpfd" in called
    assert all(word in called for word in name.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    assert command_of(name).short_help == COMMANDS[name][1]


def test_help_imports_neither_http_client_nor_trio_nor_tables() -> None:
    code = (
        "import sys\nfrom tpfd.cli.main import run\ncode = run(['--help'])\n"
        "heavy = {'httpx', 'trio', 'rich', 'yaml', 'tpfd.client', 'tpfd.config', 'tpfd.daemon'}\n"
        "sys.exit(code or ', '.join(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr.strip() == ""


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"tpfd {__version__}\n"


# --- usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["submti"], "No such command 'submti'. Did you mean 'submit'?"),
        (["worker"], "No such command"),
        (["--output", "xml", "list"], "'xml' is not one of"),
        (["submit"], "give the JSON either with --input or with --file"),
        (["submit", "--input", "{}", "--file", "x"], "give the JSON either"),
        (["submit", "--input", "{not json"], "--input is not JSON"),
        (["submit", "--file", "/none.json"], "No such file"),
        (["submit", "--input", "{}", "--timeout", "5s"], "give both"),
        (["run", "--input", "{}", "--timeout", "5"], "has no unit"),
        (["run", "--input", "{}", "--timeout", "0s"], "no time at all"),
        (["result", "e-1", "--timeout", "5s"], "give both"),
        (["list", "--search", "recipient"], "write NAME=VALUE"),
        (["list", "--limit", "0"], "0 is not in the range"),
        (["complete", "--payload", "{}"], "name the interaction"),
        (["complete", "i-1"], "give the JSON either with --payload"),
        (["redrive", "--reason", "x"], "name one execution, or give --status"),
        (["redrive", "e-1", "--status", "DLQ", "--reason", "x"], "name one execution, or give --status"),
        (["redrive", "e-1"], "Missing option '--reason'"),
        (["redrive", "e-1", "--reason", "x", "--dry-run"], "for a bulk re-drive"),
        (["redrive", "e-1", "--reason", "x", "--limit", "5"], "for a bulk re-drive"),
        (["redrive", "--status", "DLQ", "--reason", "x", "--confirmed-stopped"], "never in bulk"),
        (["redrive", "--status", "RUNNING", "--reason", "x"], "'RUNNING' is not one of"),
        (["provider"], "Missing option '--step'"),
        (["provider", "--step", "s", "--latency", "20"], "has no unit"),
        (["provider", "--step", "s", "--reject-probability", "1.5"], "is not in the range"),
        (["provider", "--step", "s", "--drop-probability", "0.6", "--late-probability", "0.6"], "add up"),
        (["provider", "--step", "s", "--credit", "0"], "is not in the range"),
        (["serve", "--set", "http.bind"], "write KEY=VALUE"),
        (["--output", "json", "types", "example:csv-payments"], "types prints Python"),
        (["demo", "csv-payments", "--file", __file__], "name ends in .csv"),
        (["demo", "csv-payments", "--dry-run"], "name it with --file"),
        (["demo", "csv-payments", "--rows", "0"], "is not in the range"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert complaint in " ".join(said.err.split())
    assert said.out == ""


def test_two_tokens_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    assert run(["--token", "a", "--token-file", str(file), "list"]) == 2
    assert run(["--token-file", str(file), "list"]) == 2
    file.write_text("\n")
    assert run(["--token-file", str(file), "list"]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in ("not both", "No such file", "is empty"))


# --- talking to a daemon ------------------------------------------------------------------------------------------


def ask(double: DaemonDouble, *arguments: str) -> int:
    return run(["--url", double.url, *arguments])


def test_submit_prints_the_id_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(202, ACCEPTED)) as double:
        assert ask(double, "submit", "--input", '{"amount": 9.70}', "--key", "k", "--pipeline", "p") == 0
    assert capsys.readouterr().out == "e-1\n"
    assert double.asked[0].path == "/pipeline/run-async?pipeline=p"
    assert double.asked[0].body == b'{"amount": 9.70}'  # the digits that were typed


def test_stdout_is_only_json_when_json_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with playing(Reply(200, ACCEPTED | {"duplicate": True})) as double:
        assert run(["--url", double.url, "--output", "json", "submit", "--input", "{}"]) == 0
    assert json.loads(capsys.readouterr().out) == ACCEPTED | {"duplicate": True}
    monkeypatch.setenv("TPFD_OUTPUT", "json")
    with playing(Reply(200, [VIEW])) as double:
        assert ask(double, "list") == 0
    assert json.loads(capsys.readouterr().out) == [VIEW]


def test_the_token_and_the_tenant_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\nsecond line\n")
    monkeypatch.setenv("TPFD_TENANT", "t-9")
    with playing(Reply(200, VIEW)) as double:
        assert run(["--url", double.url, "--token-file", str(file), "status", "e-1"]) == 0
    assert double.asked[0].headers["authorization"] == "Bearer s3cret"
    assert double.asked[0].headers["x-tenant-id"] == "t-9"


def test_run_waits_for_the_result_and_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(202, ACCEPTED), Reply(202, {}), Reply(200, {"total": "9.70"})) as double:
        assert ask(double, "run", "--input", "{}") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"total": "9.70"}
    assert said.err == "execution e-1\n"


def test_a_table_names_the_columns_and_shows_times_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(200, [VIEW])) as double:
        assert ask(double, "list", "--status", "FAILED", "--search", "recipient=Zoë") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["EXECUTION", "PIPELINE", "STATUS", "STEP", "ATTEMPT", "UPDATED", "ERROR"]
    assert row.split() == ["e-1", "orders", "FAILED", "2", "3", "2023-11-14T22:13:20.123Z", "boom"]
    assert double.asked[0].path == "/pipeline/executions?status=FAILED&limit=50&search.recipient=Zo%C3%AB"


def test_a_listing_reads_on_until_its_limit_and_says_that_there_is_more(capsys: pytest.CaptureFixture[str]) -> None:
    more = {"link": '</pipeline/interactions/pending?cursor=c>; rel="next"'}
    with playing(Reply(200, [{"interactionId": "i"}], more)) as double:
        assert ask(double, "pending", "--limit", "2") == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    assert "more than these 2" in said.err
    assert [asked.path for asked in double.asked] == [
        "/pipeline/interactions/pending?limit=2",
        "/pipeline/interactions/pending?limit=1&cursor=c",
    ]


def test_history_shows_facts_and_data_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(200, [FACT]), Reply(200, [])) as double:
        assert ask(double, "history", "e-1") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "gone" in out
    assert len(out.splitlines()) == 2


def test_history_shows_the_answers_that_changed_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    late = {"createdAtEpochMs": 0, "reason": "conflicting", "interactionId": "i", "responsePayload": {"paid": False}}
    with playing(Reply(200, [FACT]), Reply(200, [late])) as double:
        assert ask(double, "history", "e/1") == 0
    assert [asked.path for asked in double.asked] == [
        "/pipeline/executions/e%2F1/history?limit=200",
        "/pipeline/executions/e%2F1/late?limit=200",
    ]
    out = capsys.readouterr().out
    assert out.splitlines()[-1].split() == ["1970-01-01T00:00:00.000Z", "conflicting", "i", "-", '{"paid":false}']
    with playing(Reply(200, [FACT]), Reply(200, [late])) as double:
        assert ask(double, "--output", "json", "history", "e-1") == 0
    assert json.loads(capsys.readouterr().out) == {"facts": [FACT], "late": [late]}


def test_orphans_are_listed_and_matched(capsys: pytest.CaptureFixture[str]) -> None:
    orphan = {"lateId": "i-9~d1", "createdAtEpochMs": 0, "actor": "bank", "responsePayload": {"paid": True}}
    with playing(Reply(200, [orphan])) as double:
        assert ask(double, "orphans") == 0
    assert double.asked[0].path == "/pipeline/interactions/orphans?limit=50"
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "i-9~d1",
        "1970-01-01T00:00:00.000Z",
        "bank",
        '{"paid":true}',
    ]
    done = {"interactionId": "i-1", "executionId": "e-1", "stepId": "s", "status": "COMPLETED", "duplicate": True}
    with playing(Reply(200, done)) as double:
        assert ask(double, "orphans", "match", "i/9~d.1", "i-1", "--actor", "maria") == 0
    (asked,) = double.asked
    assert (asked.method, asked.path) == ("POST", "/pipeline/interactions/orphans/i%2F9~d.1/match")
    assert json.loads(asked.body) == {"interactionId": "i-1", "actor": "maria"}
    assert "already there" in capsys.readouterr().err


def test_complete_sends_the_answer_and_who_gave_it() -> None:
    answer = {"interactionId": "i-1", "executionId": "e-1", "stepId": "s", "status": "COMPLETED", "duplicate": True}
    with playing(Reply(200, answer)) as double:
        assert ask(double, "complete", "i-1", "--payload", '{"accepted":{}}', "--actor", "maria", "--key", "k") == 0
    assert json.loads(double.asked[0].body) == {
        "interactionId": "i-1",
        "idempotencyKey": "k",
        "actor": "maria",
        "responsePayload": {"accepted": {}},
    }


def test_redrive_uses_the_version_that_it_has_just_seen() -> None:
    with playing(Reply(200, VIEW), Reply(202, VIEW | {"status": "QUEUED"})) as double:
        assert ask(double, "redrive", "e-1", "--reason", "back", "--allow-failed", "--actor", "maria") == 0
    assert double.asked[1].path == "/tpf/admin/tenants/default/executions/e-1/redrive"
    assert json.loads(double.asked[1].body)["expectedVersion"] == 9


def slice_of(*ids: str, cursor: str | None = None, dry_run: bool = False) -> Reply:
    return Reply(200, {"count": len(ids), "executionIds": ids, "dryRun": dry_run, "cursor": cursor})


def test_a_bulk_redrive_can_be_tried_dry(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(slice_of("a", "b", dry_run=True)) as double:
        assert ask(double, "redrive", "--status", "DLQ", "--error-code", "boom", "--reason", "back", "--dry-run") == 0
    sent = json.loads(double.asked[0].body)
    assert (sent["status"], sent["errorCode"], sent["limit"], sent["dryRun"]) == ("DLQ", "boom", 200, True)
    said = capsys.readouterr()
    assert said.out == "a\nb\n"
    assert "2 would be re-driven" in said.err
    assert "nothing was changed" in said.err


BULK = ("redrive", "--status", "DLQ", "--reason", "back")


def test_a_bulk_redrive_goes_on_slice_by_slice(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(slice_of("a", "b", cursor="c1"), slice_of(cursor="c2"), slice_of("c")) as double:
        assert ask(double, *BULK) == 0
    assert [json.loads(asked.body).get("cursor") for asked in double.asked] == [None, "c1", "c2"]
    assert capsys.readouterr().out == "a\nb\nc\n"


def test_a_bulk_redrive_ends_at_its_limit() -> None:
    with playing(slice_of("a", "b", cursor="c1"), slice_of("c", cursor="c2")) as double:
        assert ask(double, *BULK, "--limit", "3") == 0
    assert [json.loads(asked.body)["limit"] for asked in double.asked] == [3, 1]


def test_a_bulk_redrive_that_breaks_off_says_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(slice_of("a", "b", cursor="c1"), Reply(503, {"title": "Unavailable"})) as double:
        assert ask(double, "--output", "json", *BULK) == 75
    assert json.loads(capsys.readouterr().out) == {"count": 2, "executionIds": ["a", "b"], "dryRun": False}


def test_cancel_says_why_and_who() -> None:
    with playing(Reply(202, VIEW | {"status": "CANCELLED"})) as double:
        assert ask(double, "cancel", "e-1", "--reason", "twice", "--actor", "maria") == 0
    assert json.loads(double.asked[0].body) == {"reason": "twice", "actor": "maria"}


# --- exit codes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "arguments", "code"),
    [
        (Reply(200, VIEW), ["status", "e-1"], 0),
        (Reply(409, {"title": "Conflict", "code": "execution_failed"}), ["result", "e-1"], 1),
        (Reply(500, {"title": "Internal"}), ["status", "e-1"], 1),
        (Reply(401, {"title": "Unauthorized"}), ["status", "e-1"], 64),
        (Reply(404, {"title": "Not Found"}), ["status", "e-1"], 64),
        (Reply(409, {"title": "Conflict"}), ["cancel", "e-1"], 64),
        (Reply(422, PROBLEM), ["submit", "--input", "{}"], 64),
        (Reply(429, {"title": "Too Many"}, {"retry-after": "2"}), ["list"], 75),
        (Reply(503, {"title": "Unavailable"}), ["submit", "--input", "{}"], 75),
        (Reply(502, "a proxy's page"), ["list"], 75),
        (Reply(202, {}), ["result", "e-1"], 75),
    ],
)
def test_the_exit_code_says_what_kind_of_answer_it_was(reply: Reply, arguments: list[str], code: int) -> None:
    with playing(reply) as double:
        assert ask(double, *arguments) == code


def test_a_refusal_is_told_with_title_detail_and_every_path(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(422, PROBLEM)) as double:
        assert ask(double, "submit", "--input", "{}") == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "refused (422 payload_invalid): Unprocessable Content: payload does not fit its type",
        "  'a lot' is not a decimal @ $.totalAmount",
    ]


def test_nobody_there_is_69(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(200, {})) as gone:
        url = gone.url
    assert run(["--url", url, "status", "e-1"]) == 69
    assert f"cannot reach {url}" in capsys.readouterr().err
    assert run(["--url", "nonsense", "list"]) == 69
    assert run(["--url", url, "watch"]) == 69


def test_waiting_in_vain_is_75_and_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with playing(Reply(202, ACCEPTED)) as double:
        assert ask(double, "submit", "--input", "{}", "--wait", "--timeout", "100ms") == 75
    assert "it goes on" in capsys.readouterr().err


def test_a_configuration_that_cannot_be_used_is_78_with_every_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tpfd.yaml"
    file.write_text('pipelines: ["example:none"]\nlease: {duration: 5}\nstor: {}\n')
    for command in ("check", "serve"):
        assert run([command, "--config", str(file)]) == 78
        lines = capsys.readouterr().err.splitlines()
        assert any(line.endswith("@ $.lease.duration") for line in lines)
        assert any(line.endswith("@ $.stor") for line in lines)
    assert run(["check", "--config", str(tmp_path / "none.yaml")]) == 78
    assert "cannot read" in capsys.readouterr().err
    file.write_bytes(b"\xff\xfe")
    assert run(["--config", str(file), "check"]) == 78
    assert "not UTF-8" in capsys.readouterr().err


def test_check_shows_what_is_in_effect_and_where_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tpfd.yaml"
    file.write_text('pipelines: ["example:csv-payments"]\n')
    assert run(["check", "--config", str(file), "--set", "store.provider=memory"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("store.provider")] == [["memory", "flag"]]
    assert "await-payment-provider" in out
    assert run(["--output", "json", "check", "--config", str(file)]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["pipelines"][0]["pipelineId"] == "csv-payments"
    assert {row["key"] for row in answer["config"]} >= {"store.provider", "lease.duration"}


def test_check_finds_what_is_wrong_with_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text("version: 3\nappName: x\nstepz: []\n")
    file = tmp_path / "tpfd.yaml"
    file.write_text(f'pipelines: ["{tmp_path}/p.yaml", "{tmp_path}/none.yaml"]\n')
    assert run(["check", "--config", str(file)]) == 78
    said = capsys.readouterr().err
    assert "stepz" in said
    assert "cannot read" in said


def test_types_is_a_python_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["types", "example:restaurant-approval"]) == 0
    module = capsys.readouterr().out
    assert "class TerminalOrderState:" in module
    compile(module, "types.py", "exec")


def test_ctrl_c_is_130_and_quiet(tmp_path: Path) -> None:
    """A real SIGINT to a real process that waits."""
    with playing(Reply(202, ACCEPTED)) as double:
        process = subprocess.Popen(
            [sys.executable, "-m", "tpfd.cli.main", "--url", double.url, "run", "--input", "{}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert process.stderr.readline() == "execution e-1\n"
        process.send_signal(2)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_has_gone_is_no_trouble() -> None:
    many = [VIEW | {"executionId": f"e-{number}"} for number in range(5_000)]
    with playing(Reply(200, many)) as double:
        ended = subprocess.run(
            f"{sys.executable} -m tpfd.cli.main --url {double.url} list --limit 5000 | head -n 1",
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.stderr == ""
    assert ended.stdout.startswith("EXECUTION")
