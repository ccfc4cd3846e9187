"""The state diagram of an execution, drawn from the table of transitions.

``python -m tpfd.core.diagram`` prints it as the block that stands in README.
"""

from __future__ import annotations

import re
import sys

from tpfd.core.execution import TABLE
from tpfd.core.records import ExecutionStatus


def mermaid() -> str:
    """The diagram in Mermaid's notation; it ends with a newline.

    One arrow per pair of statuses, in the order of the statuses, with every event that can take it. Events that leave
    an execution in its status are not drawn, except the claim that takes it over from a lost worker.
    """
    arrows: dict[tuple[ExecutionStatus, ExecutionStatus], list[str]] = {}
    for (source, event), rule in TABLE.items():
        for target in rule.targets:
            name = _words(event.__name__)
            if source is not target:
                arrows.setdefault((source, target), []).append(name)
            elif name == "claim":
                arrows.setdefault((source, target), []).append("claim after its lease ran out")
    order = list(ExecutionStatus)
    lines = ["stateDiagram-v2", f"    [*] --> {ExecutionStatus.QUEUED}: submit"]
    for source, target in sorted(arrows, key=lambda pair: (order.index(pair[0]), order.index(pair[1]))):
        lines.append(f"    {source} --> {target}: {', '.join(arrows[source, target])}")
    lines.extend(f"    {status} --> [*]" for status in order if status.terminal)
    return "\n".join(lines) + "\n"


def block() -> str:
    """The diagram as README shows it."""
    return f"```mermaid\n{mermaid()}```\n"


def _words(name: str) -> str:
    """HandBack as hand back."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


if __name__ == "__main__":
    sys.stdout.write(block())
