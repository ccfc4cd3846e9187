"""Webhooks: the senders of each replica, and an endpoint that takes requests, refuses them, or loses its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping

import trio
from attrs import define

from tests.engine.world import Lost, Process
from tests.sim.coverage import Fault
from tests.sim.faults import Dice
from tests.sim.pipelines import Scenario
from tests.sim.providers import Answers
from tpfd.transports.webhook import WebhookSender
from tpfd.transports.webhook_message import WebhookMessage
from tpfd.transports.webhook_replies import Never, NotNow, Reply, Taken
from tpfd.transports.webhook_target import WebhookTarget

TARGET = WebhookTarget(
    scheme="https",
    host="hooks.example",
    port=443,
    path="/ask",
    method="POST",
    headers=(),
    timeout_ms=2_000,
    callback=None,
)


@define(eq=False, kw_only=True)
class Hooks:
    """Sends and takes the webhooks of a run."""

    scenarios: Mapping[str, Scenario]
    answers: Answers
    dice: Dice

    async def serve(self, process: Process) -> None:
        """Sends the requests of one process until it dies or drains."""
        try:
            await process.call(self._send_all, process)
        except Lost:
            return

    async def _send_all(self, process: Process) -> None:
        async with trio.open_nursery() as work, trio.open_nursery() as intake:
            for scenario in self.scenarios.values():
                for step_id in scenario.steps.get("webhook", ()):
                    sender = WebhookSender(
                        runtime=process.runtime,
                        pipeline_id=scenario.name,
                        step_id=step_id,
                        target=TARGET,
                        envelopes=process.sockets.envelopes,
                        send=_Endpoint(self, scenario, process).send,
                        give_up=process.coordinator.admission.give_up,
                        concurrency=3,
                    )
                    intake.start_soon(sender.run, work)
            await process.draining.wait()
            intake.cancel_scope.cancel("drain")


@define(eq=False)
class _Endpoint:
    """The other side, as one process sees it."""

    hooks: Hooks
    scenario: Scenario
    process: Process

    async def send(self, message: WebhookMessage) -> Reply:
        dice, envelope = self.hooks.dice, json.loads(message.body)
        name = envelope["interactionId"]
        await trio.sleep(dice.between(0, TARGET.timeout_ms / 1000))
        if dice.happens(Fault.HOOK_REFUSED, 0.2, name):
            return NotNow("it is busy", floor_ms=dice.random.choice((0, 3_000)))
        if dice.happens(Fault.HOOK_NEVER, 0.04, name):
            return Never("it does not want this")
        self.hooks.answers.to(self.scenario, envelope, self.process, None)
        if dice.happens(Fault.HOOK_LOST, 0.15, name):
            return NotNow("no answer in time")
        return Taken()
