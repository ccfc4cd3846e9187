"""Which stored work a replica may take up: only what was stored under the contract that it has loaded.

An execution carries the version of the contract that it was submitted under (types, steps, their order and
cardinalities). Under another one its step index may mean another step and its values another type. So it is left alone,
as if its pipeline were not loaded, until a replica has the pipeline file of its time again. It stays where it is and
keeps its status: nothing of it is read, run, failed or lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpfd.core.records import ExecutionRecord, InteractionRecord

Contracts = Mapping[str, str]
"""What a replica has loaded: pipeline id -> contract version."""

SHORT = 12
"""Characters of a contract version that people are shown."""

WAY_OUT = (
    "put the pipeline file of its time back, or run one replica with that file until what was submitted under it is "
    "done; or cancel it"
)


def runs_here(record: ExecutionRecord | InteractionRecord, contracts: Contracts) -> bool:
    """Whether the contract that something was stored under is the one that is loaded."""
    return contracts.get(record.pipeline_id) == record.contract_version


def held_reason(record: ExecutionRecord | InteractionRecord, contracts: Contracts) -> str | None:
    """Why a replica leaves something to others, for a person; None when it does not."""
    loaded = contracts.get(record.pipeline_id)
    if loaded == record.contract_version:
        return None
    if loaded is None:
        return f"pipeline {record.pipeline_id} is not loaded at this replica, which leaves it to those that have it"
    return (
        f"it was submitted under contract {record.contract_version[:SHORT]} of pipeline {record.pipeline_id}, and this "
        f"replica has loaded {loaded[:SHORT]} and leaves it to those that have the other: {WAY_OUT}"
    )
