"""Links to a broker: those of each replica, and topics that take requests, refuse them, or lose the word of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import trio
from attrs import define

from tests.engine.world import Lost, Process
from tests.sim.coverage import Fault
from tests.sim.faults import Dice
from tests.sim.pipelines import Scenario
from tests.sim.providers import Answers
from tpfd.transports.broker import Confirmed, Outcome, Outgoing, Postponed, Unsendable
from tpfd.transports.broker_link import BrokerLink

LATENCY_S = 0.5
CREDIT = 3


@define(eq=False, kw_only=True)
class Links:
    """Sends what asks through a broker; the provider behind it answers as one that is called by webhook does."""

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
        async with trio.open_nursery() as intake:
            for scenario in self.scenarios.values():
                for step_id in scenario.steps.get("kafka", ()):
                    intake.start_soon(self._link(process, scenario, step_id).run)
            await process.draining.wait()
            intake.cancel_scope.cancel("drain")

    def _link(self, process: Process, scenario: Scenario, step_id: str) -> BrokerLink:
        budget = scenario.budget(step_id)
        return BrokerLink(
            runtime=process.runtime,
            sockets=process.sockets,
            pipeline_id=scenario.name,
            step_id=step_id,
            transport="kafka",
            wire=_Topic(self, scenario, process),
            envelopes=process.sockets.envelopes,
            give_up=process.coordinator.admission.give_up,
            credit=CREDIT if budget is None else budget,
            let_go_ms=0 if budget is None else self.dice.random.choice((500, 3_000)),
        )


@define(eq=False)
class _Topic:
    """The broker, as one process sees it."""

    links: Links
    scenario: Scenario
    process: Process
    batch_count: int = 2
    parallel_count: int = 2

    async def send(self, requests: Sequence[Outgoing]) -> Sequence[Outcome]:
        await trio.sleep(self.links.dice.between(0, LATENCY_S))
        return [self._taken(request) for request in requests]

    def _taken(self, request: Outgoing) -> Outcome:
        dice, envelope = self.links.dice, json.loads(request.body)
        name = envelope["interactionId"]
        if dice.happens(Fault.HOOK_REFUSED, 0.2, name):
            return Postponed("the brokers are away")
        if dice.happens(Fault.HOOK_NEVER, 0.04, name):
            return Unsendable("it is too large")
        self.links.answers.to(self.scenario, envelope, self.process, None)
        if dice.happens(Fault.HOOK_LOST, 0.15, name):
            return Postponed("no report in time")
        return Confirmed()
