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

MISSING_PARTS: Final = (
    # path of a key or section; a section stands for everything in it
    "store.dynamodb.tables.await-interaction-key",
    "store.dynamodb.tables.await-item",
    "store.dynamodb.tables.command-effect",
    "store.dynamodb.tables.worker",
    "store.dynamodb.tables.release",
    "store.dynamodb.inline-budget",
    "store.dynamodb.chunk",
    "worker.rest",
    "worker.grpc",
    "worker.sqs",
    "worker.request-timeout",
    "resilience",
    "telemetry.otlp-endpoint",
    "telemetry.replay",
    "retention.archive",
)


def unsupported(config: Config) -> tuple[Problem, ...]:
    """List every key that asks for a part which is not in this build; empty when there is none."""
    problems = []
    for path, key in KEYS.items():
        value = key.value_in(config)
        if value != key.default and is_missing(path):
            message = f"is set to {show(key, value)}, but its part is not in this build yet; take it out"
            problems.append(Problem(f"$.{path}", message))
    return tuple(problems)


def is_missing(path: str) -> bool:
    """Whether a key or section belongs to a part that is not in this build."""
    return any(path == part or path.startswith(f"{part}.") for part in MISSING_PARTS)
