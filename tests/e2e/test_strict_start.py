"""A strict start ends with 78 while something that the configuration names is missing; another one says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.aws.standin import StandIn
from tests.config.test_baseline import BASELINE
from tests.e2e.processes import Daemon, configure, running, serving
from tests.e2e.test_refused_starts import refused

NOWHERE = "http://127.0.0.1:9"


def queues(aws: StandIn, **changes: str) -> dict[str, Any]:
    """A dispatcher over a queue that nobody has made."""
    sqs = {"queue-url": f"{aws.endpoint}/000000000000/{aws.name('work')}", "region": aws.region, **changes}
    return {"provider": "sqs", "sqs": {"endpoint": aws.endpoint, **sqs}}


def advice(daemon: Daemon) -> list[str]:
    """What it says of the queue when it starts."""
    told = daemon.events("startup_advice")
    return [one["message"] for one in told if one["path"] == "$.dispatcher.sqs.queue-url"]


async def test_a_queue_that_is_not_there_is_named_with_the_command_that_makes_it(
    aws: StandIn, tmp_path: Path
) -> None:
    dispatcher = queues(aws)
    config = configure(tmp_path, "a", "hold.yaml", dispatcher=dispatcher)
    text = f"strict-startup: true\n{config.read_text()}"
    config.write_text(text)
    said = await refused(tmp_path, config)
    name = dispatcher["sqs"]["queue-url"].rpartition("/")[2]
    assert f"queue {name}: is not there; run: tpfd provision @ $.dispatcher.sqs.queue-url" in said
    async with running("provision", ["provision", "--config", str(config)], tmp_path) as process:
        assert await process.ended() == 0, process.text()
    async with serving(tmp_path, config) as daemon:
        assert advice(daemon) == []
        assert await daemon.stop() == 0


async def test_a_service_that_cannot_be_reached_ends_a_strict_start(aws: StandIn, tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml", dispatcher=queues(aws, endpoint=NOWHERE))
    config.write_text(f"strict-startup: true\n{config.read_text()}")
    said = await refused(tmp_path, config)
    assert "sqs get_queue_url failed (unreached)" in said
    assert "see that region and endpoint are right" in said


async def test_without_it_the_daemon_starts_and_says_what_is_missing(aws: StandIn, tmp_path: Path) -> None:
    config = configure(tmp_path, "a", "hold.yaml", dispatcher=queues(aws))
    async with serving(tmp_path, config) as daemon:
        (missing,) = advice(daemon)
        assert "is not there; run: tpfd provision" in missing
        assert await daemon.stop() == 0


async def test_the_baseline_as_it_is_written_starts_when_it_was_provisioned(aws: StandIn, tmp_path: Path) -> None:
    endpoints = {
        "TPFD_STORE__DYNAMODB__ENDPOINT": aws.endpoint,
        "TPFD_DISPATCHER__SQS__ENDPOINT": aws.endpoint,
        "AWS_ACCESS_KEY_ID": "123456789012",  # the stand-in takes it for the account
    }
    config = tmp_path / "ha.yaml"
    config.write_text(f"{BASELINE}pipelines: ['example:deliver-order']\nhttp: {{bind: '127.0.0.1:0'}}\n")
    said = await refused(tmp_path, config, **endpoints)
    for name in ("table tpf_execution", "table tpf_journal", "queue tpf-work", "queue tpf-dlq"):
        assert f"{name}: is not there; run: tpfd provision" in said
    async with running("made", ["provision", "--config", str(config)], tmp_path, **endpoints) as process:
        assert await process.ended() == 0, process.text()
    async with serving(tmp_path, config, **endpoints) as daemon:
        order = {"orderNumber": "1", "customer": "Ada", "address": "here", "courier": "swift", "packingMs": 0}
        execution = await daemon.submit(order, key="1")
        await daemon.wait_status(execution, "SUCCEEDED")
        unnamed = await daemon.client.post("/pipeline/run-async", json=order)
        assert (unnamed.status_code, unnamed.json()["code"]) == (400, "idempotency_key_required")
        assert await daemon.stop() == 0
        assert daemon.complained() == []
    async with running("doctor", ["doctor", "--config", str(config)], tmp_path, **endpoints) as process:
        assert await process.ended() == 0, process.log.with_suffix(".out").read_text()


async def test_production_refuses_everything_at_once(tmp_path: Path) -> None:
    everything = {
        "node": {"production": True},
        "store": {"provider": "memory"},
        "http": {"bind": "0.0.0.0:0"},
        "await": {"resume-token-secrets": [{"file": str(tmp_path / "none")}]},
    }
    said = await refused(tmp_path, configure(tmp_path, "a", "hold.yaml", **everything))
    assert "none" in said
    del everything["await"]
    said = await refused(tmp_path, configure(tmp_path, "a", "hold.yaml", **everything))
    assert "memory forgets all work" in said
    assert "there is no token" in said
