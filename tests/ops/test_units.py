"""The systemd units: valid, sandboxed, and in agreement with the configuration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tpfd.config.keys import KEYS
from tpfd.config.load import parse_config
from tpfd.config.model import Config
from tpfd.daemon.aws_sites import WITHIN_S
from tpfd.durations import MS_PER_S

UNITS = Path(__file__).parents[2] / "systemd"
PROGRAM = "/opt/tpfd/bin/tpfd"
NAMES = ("tpfd.service", "tpfd@.service")

each_unit = pytest.mark.parametrize("name", NAMES)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.fail("systemd-analyze is not here: install the package systemd, the units cannot be checked without")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)


def runnable_copy(name: str, folder: Path) -> str:
    """The unit with a program that exists on this machine, as an instance where it is a template."""
    text = (UNITS / name).read_text("utf-8")
    assert text.count(PROGRAM) >= 1
    copy = folder / name.replace("@.", "@8082.")
    copy.write_text(text.replace(PROGRAM, "/bin/true"))
    return str(copy)


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


@each_unit
def test_systemd_finds_nothing_to_complain_about(name: str, tmp_path: Path) -> None:
    result = analyze("verify", runnable_copy(name, tmp_path))
    assert (result.returncode, result.stderr) == (0, "")


def test_verify_would_tell(tmp_path: Path) -> None:
    unit = Path(runnable_copy("tpfd.service", tmp_path))
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", str(unit)).stderr


@each_unit
def test_the_sandbox_is_rated_two_or_better(name: str, tmp_path: Path) -> None:
    result = analyze("security", "--offline=yes", "--threshold=20", runnable_copy(name, tmp_path))
    assert result.returncode == 0, result.stdout


@each_unit
def test_the_service_manager_and_the_daemon_agree(name: str) -> None:
    unit = settings(name)
    assert unit["Type"] == ["notify"]
    assert unit["ExecStart"] == [f"{PROGRAM} serve --config /etc/tpfd/tpfd.yaml"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert int(unit["TimeoutStopSec"][0]) * MS_PER_S > Config().drain.grace_ms + 10 * MS_PER_S
    assert Config().store.sqlite.path == f"/var/lib/{unit['StateDirectory'][0]}/tpfd.db"
    assert "WatchdogSec" in unit


@each_unit
def test_a_service_that_is_away_for_long_is_waited_for_and_a_wrong_file_is_not(name: str) -> None:
    """A strict start ends with 78 for both; it takes its time only for the first."""
    unit = settings(name)
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert unit["StartLimitIntervalSec"] == ["5min"]
    burst, pause_s = int(unit["StartLimitBurst"][0]), int(unit["RestartSec"][0])
    assert burst * (pause_s + 1) < 300 < burst * (pause_s + WITHIN_S / 2)


def test_a_replica_is_set_up_by_keys_that_exist() -> None:
    (pairs,) = settings("tpfd@.service")["Environment"]
    environ = dict(pair.split("=", 1) for pair in pairs.replace("%H", "host").replace("%i", "8082").split())
    assert set(environ) <= {key.environment for key in KEYS.values()}
    config = parse_config(None, "f", environ, {}).config
    assert (config.node.name, config.http.bind.port) == ("host-8082", 8082)


def test_both_units_have_the_same_sandbox() -> None:
    one, many = settings("tpfd.service"), settings("tpfd@.service")
    differing = {key for key in one.keys() | many.keys() if one.get(key) != many.get(key)}
    # RemoveIPC acts per user, so one replica's end would touch the others
    assert differing == {"Description", "Environment", "EnvironmentFile", "RemoveIPC"}
