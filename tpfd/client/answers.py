"""What the daemon answers, as far as code decides on it, and what a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from tpfd.client.errors import Unreachable

JsonObject = dict[str, Any]
"""The daemon's own camelCase JSON, for what is only shown."""


@frozen
class Submission:
    """An accepted execution.

    Attributes:
        execution_id: its id.
        duplicate: True when the key was known with the same input, and this is the first execution.
        status_url: where its status is, as the daemon gave it.
        submitted_at_epoch_ms: when the daemon accepted it.
    """

    execution_id: str
    duplicate: bool
    status_url: str
    submitted_at_epoch_ms: int

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Submission:
        """Reads the daemon's 200 or 202 body.

        Raises:
            Unreachable: a member is missing, so this was not a tpfd daemon.
        """
        try:
            return cls(
                execution_id=body["executionId"],
                duplicate=body["duplicate"],
                status_url=body["statusUrl"],
                submitted_at_epoch_ms=body["submittedAtEpochMs"],
            )
        except KeyError as missing:
            raise Unreachable(f"the answer to a submit has no {missing}; is this a tpfd daemon?") from missing


@frozen
class BatchEntry:
    """One input of a batch submit; None fields are left to the daemon's defaults."""

    payload: object
    key: str | None = None
    pipeline: str | None = None


@frozen
class Finished:
    """A result; ``value`` is JSON data, which may itself be null."""

    value: Any


@frozen
class Page:
    """One page of a listing; ``cursor`` is what to ask the next one with, None at the end."""

    items: list[JsonObject]
    cursor: str | None
