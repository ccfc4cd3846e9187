"""Keys that mean something this build does not have yet.

The configuration knows every key, so that a file written for a later release is read the same way. A key that would do
nothing must not look as if it did: whatever is set away from its default and belongs to a part listed here stops the
start. When a part is built, its line goes.
"""

from __future__ import annotations

from typing import Final

from tpfd.config.keys import KEYS
from tpfd.config.model import Config
from tpfd.config.values import show
from tpfd.errors import Problem

MISSING_VALUES: Final = (
    # (key, value that selects the part)
    ("store.provider", "dynamodb"),
    ("dispatcher.provider", "sqs"),
    ("dead-letters.provider", "sqs"),
    ("item-rejects.provider", "sqs"),
)

MISSING_PARTS: Final = (
    # path of a key or section; a section stands for everything in it
    "store.dynamodb",
    "dispatcher.sqs",
    "dead-letters.sqs",
    "item-rejects.sqs",
    "worker.rest",
    "worker.grpc",
    "worker.sqs",
    "worker.request-timeout",
    "await.kafka",
    "await.sqs",
    "resilience",
    "telemetry.otlp-endpoint",
    "telemetry.replay",
    "retention.archive",
)


def unsupported(config: Config) -> tuple[Problem, ...]:
    """List every key that asks for a part which is not in this build; empty when there is none."""
    problems = [
        Problem(f"$.{path}", f"{value} is not in this build yet; known now: {', '.join(_built_choices(path))}")
        for path, value in MISSING_VALUES
        if KEYS[path].value_in(config) == value
    ]
    for path, key in KEYS.items():
        value = key.value_in(config)
        if value != key.default and is_missing(path):
            message = f"is set to {show(key, value)}, but its part is not in this build yet; take it out"
            problems.append(Problem(f"$.{path}", message))
    return tuple(problems)


def is_missing(path: str) -> bool:
    """Whether a key or section belongs to a part that is not in this build."""
    return any(path == part or path.startswith(f"{part}.") for part in MISSING_PARTS)


def _built_choices(path: str) -> list[str]:
    missing = {value for its_path, value in MISSING_VALUES if its_path == path}
    return [choice for choice in KEYS[path].choices if choice not in missing]
