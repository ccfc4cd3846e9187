"""`tpfd types`: a module that runs, binds, and needs no formatting."""

from __future__ import annotations

import subprocess
import sys
import types as python_types
from collections.abc import Callable
from pathlib import Path

from tpfd.pipeline.contract import bind_types
from tpfd.pipeline.emit_types import types_module
from tpfd.pipeline.model import Pipeline

Load = Callable[..., Pipeline]

HEAD = "version: 3\nappName: x\n"
REST = """
types:
  U: {variants: {a: A, b: B}}
  Id: {wraps: uuid}
  Name: {alias: string}
  A:
    fields:
      - [id, Id]
      - [from, Name]
      - [note?, string]
      - [mid, "string?"]
      - {name: parts, repeated: B}
      - [at, timestamp]
      - [day, date]
      - [local, datetime]
      - [amount, decimal]
      - [currency, currency]
      - [ref, payload_ref]
      - [inner, U2]
  B: {fields: [[v, int64], [raw, bytes], [f, float64], [ok, bool]]}
  C: {fields: []}
  U2: {variants: {b: B, c: C}}
  Other: {alias: B}
steps: [{name: S, input: A, output: U, python: "m:f"}]
"""


def test_the_module_binds_to_its_own_pipeline(load: Load) -> None:
    pipeline = load(REST, head=HEAD)
    module = python_types.ModuleType("emitted_types")
    sys.modules[module.__name__] = module
    try:
        exec(types_module(pipeline), module.__dict__)
        names = ", ".join(f"{name}: emitted_types:{name}" for name in ("A", "B", "C"))
        with_classes = load(REST + f"python: {{types: {{{names}}}}}\n", head=HEAD)
        bound = bind_types(with_classes, lambda reference: getattr(module, reference.partition(":")[2]))
        assert bound.types.cls("A") is module.A
    finally:
        del sys.modules[module.__name__]


def test_the_module_is_formatted_and_typed(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "emitted.py"
    file.write_text(types_module(load(REST, head=HEAD), "emitted"))
    for command, folder in (
        (["ruff", "format", "--isolated", "--line-length", "120", "--check"], tmp_path),
        (["ruff", "check", "--isolated", "--select", "E,F,I,UP", "--line-length", "120"], tmp_path),
        (["mypy", "--strict", "--no-incremental", "--cache-dir", str(tmp_path / "cache")], None),
    ):
        run = [sys.executable, "-m", *command, str(file)]
        done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr + file.read_text()


def test_a_pipeline_without_special_types_imports_nothing_special(load: Load) -> None:
    steps = 'steps: [{name: S, input: A, output: A, python: "m:f"}]'
    text = types_module(load("types: {A: {fields: [[a, string]]}}\n" + steps, head=HEAD))
    assert "import datetime" not in text
    assert "Decimal" not in text
    assert "class A:\n    a: str\n" in text
