"""A pipeline file is changed while an execution waits: the new daemon leaves it, the old file brings it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.processes import Daemon, configure, running, serving, wait_until

TYPES = "types: {Ask: {fields: [[name, string]]}, Verdict: {fields: [[yes, bool]]}}"
WAIT = "timeout: PT30M, await: {transport: {type: interaction-api}}"
ASK = f"{{name: Ask, kind: await, input: Ask, output: Verdict, {WAIT}}}"
OLD = f"""
version: 3
appName: desk
{TYPES}
steps:
  - {ASK}
  - {{name: Close, input: Verdict, output: Verdict, python: "desk:same"}}
"""
NEW = OLD.replace(
    f"  - {ASK}", f'  - {{name: Look, input: Ask, output: Ask, python: "desk:same"}}\n  - {ASK}'
)


async def answer(daemon: Daemon, interaction_id: str) -> tuple[int, dict[str, Any]]:
    body = {"interactionId": interaction_id, "responsePayload": {"yes": True}}
    replied = await daemon.client.post("/pipeline/interactions/complete", json=body)
    return replied.status_code, replied.json()


async def doctor(folder: Path, config: Path) -> dict[str, Any]:
    """What the doctor says of the contract."""
    async with running("doctor", ["--output", "json", "doctor", "--config", str(config)], folder) as process:
        await process.ended()
        (found,) = [one for one in process.printed()["findings"] if one["about"] == "desk: contract"]
        return dict(found)


async def test_an_execution_in_flight_waits_for_the_file_of_its_time(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text("def same(value):\n    return value\n")
    pipeline = tmp_path / "desk-pipeline.yaml"
    pipeline.write_text(OLD)
    config = configure(tmp_path, "a", str(pipeline))
    async with serving(tmp_path, config) as daemon:
        execution = await daemon.submit({"name": "first"})
        await daemon.wait_status(execution, "WAITING_EXTERNAL")
        pending = await daemon.client.get("/pipeline/interactions/pending")
        (asked,) = [one["interactionId"] for one in json.loads(pending.text)]
        assert (await daemon.status(execution))["heldReason"] is None
        assert await daemon.stop() == 0
    pipeline.write_text(NEW)
    async with serving(tmp_path, config) as daemon:

        async def told() -> bool:
            return bool(daemon.events("contract_changed"))

        await wait_until("the warning", told)
        (event,) = daemon.events("contract_changed")
        assert (event["pipeline"], event["execution_id"]) == ("desk", execution)
        code, problem = await answer(daemon, asked)
        assert (code, problem["code"]) == (409, "contract_changed")
        status = await daemon.status(execution)
        assert status["status"] == "WAITING_EXTERNAL"
        assert "put the pipeline file of its time back" in status["heldReason"]
        found = await doctor(tmp_path, config)
        assert not found["ok"]
        assert execution in found["said"]
        fresh = await daemon.submit({"name": "second"})
        await daemon.wait_status(fresh, "WAITING_EXTERNAL")
        assert (await daemon.client.get("/q/health/ready")).status_code == 200
        assert await daemon.stop() == 0
    pipeline.write_text("# as it was\n" + OLD)
    async with serving(tmp_path, config) as daemon:
        assert (await answer(daemon, asked))[0] == 200
        await daemon.wait_status(execution, "SUCCEEDED")
        assert "submitted under contract" in (await daemon.status(fresh))["heldReason"]
        assert await daemon.stop() == 0
