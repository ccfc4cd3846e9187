"""Daemons as processes over a real queue: work goes round by hints, and what failed for good is told over a queue."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from tests.aws.standin import CLIENT_ENVIRONMENT, StandIn
from tests.e2e.processes import Daemon, configure, serving, wait_until
from tests.e2e.test_drain import wait_started, work

UNTOLD: dict[str, Any] = {"sweep": {"interval": "PT1H"}, "drain": {"grace": "PT10S"}}
"""Nothing is found by sweeping."""


@frozen
class Queues:
    """The queues of one test, and what the daemons are told of them."""

    standin: StandIn
    work: str
    letters: str

    @classmethod
    def make(cls, aws: StandIn) -> Queues:
        sqs = aws.client("sqs")
        work, letters = (sqs.create_queue(QueueName=aws.name(use))["QueueUrl"] for use in ("work", "letters"))
        return cls(aws, work, letters)

    def sections(self) -> dict[str, Any]:
        place = {"endpoint": self.standin.endpoint, "queue-url": self.work, "wait": "1s", "visibility": "2s"}
        return {
            **UNTOLD,
            "dispatcher": {"provider": "sqs", "sqs": place},
            "dead-letters": {"provider": "sqs", "sqs": {"queue-url": self.letters}},
        }

    def waiting(self, url: str) -> tuple[int, int]:
        """Messages that can be received, and those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.standin.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    @asynccontextmanager
    async def serve(self, folder: Path, name: str, *pipelines: str, **sections: Any) -> AsyncIterator[Daemon]:
        config = configure(folder, name, *pipelines, **{**self.sections(), **sections})
        async with serving(folder, config, **CLIENT_ENVIRONMENT) as daemon:
            yield daemon


async def all_settled(queues: Queues) -> None:
    async def look() -> bool:
        return await trio.to_thread.run_sync(queues.waiting, queues.work) == (0, 0)

    await wait_until("the queue to be empty", look)


ONE_PLACE: dict[str, Any] = {"worker": {"max-in-flight": 1}}


async def test_what_one_daemon_has_no_place_for_the_other_runs(aws: StandIn, tmp_path: Path) -> None:
    queues = Queues.make(aws)
    async with (
        queues.serve(tmp_path, "a", "hold.yaml", **ONE_PLACE) as a,
        queues.serve(tmp_path, "b", "hold.yaml", **ONE_PLACE) as b,
    ):
        held = [await a.submit(work(tmp_path, name)) for name in ("one", "two")]
        await wait_started(tmp_path, 2)
        (tmp_path / "open").touch()
        for execution in held:
            await b.wait_status(execution, "SUCCEEDED")
        await all_settled(queues)
        assert sorted((tmp_path / "started").read_text().splitlines()) == ["one", "two"]
        for daemon in (a, b):
            metrics = (await daemon.client.get("/q/metrics")).text
            assert 'tpf_work_hints_total{outcome="claimed"} 1.0' in metrics
            assert 'tpf_aws_requests_total{operation="receive_message",outcome="ok",service="sqs"}' in metrics
            assert await daemon.stop() == 0
            assert {event["event"] for event in daemon.complained()} == {"startup_advice"}


async def test_a_drained_daemon_hands_its_work_on_over_the_queue(aws: StandIn, tmp_path: Path) -> None:
    queues = Queues.make(aws)
    async with queues.serve(tmp_path, "a", "hold.yaml", drain={"grace": "PT1S"}) as a:
        execution = await a.submit(work(tmp_path))
        await wait_started(tmp_path)
        async with queues.serve(tmp_path, "b", "hold.yaml") as b:
            assert await a.stop() == 0
            await wait_started(tmp_path, 2)
            (tmp_path / "open").touch()
            ended = await b.wait_status(execution, "SUCCEEDED")
            assert (ended["attempt"], ended["workerLosses"]) == (0, 0)
            await all_settled(queues)
            assert await b.stop() == 0


async def test_a05_a_killed_daemon_leaves_its_message_to_come_back_and_its_end_is_told_over_a_queue(
    aws: StandIn, tmp_path: Path
) -> None:
    queues = Queues.make(aws)
    async with queues.serve(tmp_path, "a", "hold.yaml") as a:
        execution = await a.submit(work(tmp_path))
        await wait_started(tmp_path)

        async def in_flight() -> bool:
            return await trio.to_thread.run_sync(queues.waiting, queues.work) == (0, 1)

        await wait_until("the message to be in flight", in_flight)
        await a.kill()

    async def back() -> bool:
        return await trio.to_thread.run_sync(queues.waiting, queues.work) == (1, 0)

    await wait_until("the message to be back", back)
    lost = {"retry": {"max-worker-losses": 1}, "sweep": {"interval": "PT1S"}}
    async with queues.serve(tmp_path, "b", "hold.yaml", **lost) as b:
        await wait_started(tmp_path, 2)
        await b.kill()
    async with queues.serve(tmp_path, "c", "hold.yaml", **lost) as c:
        await c.wait_status(execution, "DLQ")
        await all_settled(queues)

        async def told() -> dict[str, Any] | None:
            receive = functools.partial(aws.client("sqs").receive_message, QueueUrl=queues.letters)
            messages = (await trio.to_thread.run_sync(receive)).get("Messages", [])
            return json.loads(messages[0]["Body"]) if messages else None

        letter = await wait_until("the dead letter", told)
        assert (letter["executionId"], letter["terminalReason"]) == (execution, "worker_lost")
        assert await c.stop() == 0
