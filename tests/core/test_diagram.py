"""README shows the table as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tpfd.core.diagram import block, mermaid
from tpfd.core.execution import TABLE
from tpfd.core.records import ExecutionStatus

README = Path(__file__).parents[2] / "README.md"


def test_readme_shows_the_table() -> None:
    shown = re.search(r"<!-- states -->\n(.*?)<!-- /states -->", README.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None, "README.md has no block between <!-- states --> and <!-- /states -->"
    assert shown[1].strip() == block().strip(), "run `python -m tpfd.core.diagram` and put its output into the block"


def test_the_module_prints_the_block() -> None:
    printed = subprocess.run([sys.executable, "-m", "tpfd.core.diagram"], check=True, capture_output=True, text=True)
    assert printed.stdout == block()


def test_every_change_of_status_has_its_arrow_and_nothing_else_has() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+):", mermaid(), re.MULTILINE))
    changes = {(source, target) for (source, _), rule in TABLE.items() for target in rule.targets if source != target}
    assert drawn == changes | {("RUNNING", "RUNNING")}


def test_each_event_stands_at_its_arrow() -> None:
    lines = mermaid().splitlines()
    assert "    RUNNING --> QUEUED: advance, hand back" in lines
    assert "    RUNNING --> RUNNING: claim after its lease ran out" in lines
    assert "    [*] --> QUEUED: submit" in lines
    ends = {line.split()[0] for line in lines if line.endswith("--> [*]")}
    assert ends == {status for status in ExecutionStatus if status.terminal}
