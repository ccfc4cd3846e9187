"""What is installed: the wheel alone, in an environment of its own, from an empty directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WITHIN_S = 120


def call(*command: str | Path, cwd: Path) -> str:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TPFD_"))}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder))
    call(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_what_is_no_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "tpfd/py.typed",
        "tpfd/config/tpfd.schema.json",
        "tpfd/http/console/console.html",
        "tpfd/examples/csv_payments/pipeline.yaml",
        "tpfd/examples/restaurant_approval/pipeline.yaml",
    } <= names
    foreign = {name for name in names if not name.startswith(("tpfd/", "tpfd-"))}
    assert not foreign


def test_the_demo_runs_from_it_alone(wheel: Path, tmp_path: Path) -> None:
    home, empty = tmp_path / "home", tmp_path / "empty"
    empty.mkdir()
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index")
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=empty)
    # Its dependencies come from here. The path is only looked at: what is installed here as editable is not followed.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    where = call(python, "-c", "import tpfd; print(tpfd.__file__)", cwd=empty)
    assert Path(where.strip()).is_relative_to(home)
    said = call(home / "bin" / "tpfd", "--output", "json", "demo", "csv-payments", "--rows", "200", cwd=empty)
    summary: dict[str, Any] = json.loads(said)
    assert (summary["rows"], summary["approved"] + summary["unapproved"]) == (200, 200)
    assert list(empty.iterdir()) == []
