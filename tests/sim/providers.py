"""The outside: providers at sockets, people at the list of pending questions, and the way that answers take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import trio
from attrs import define, field, frozen

from tests.engine.world import TENANT, Lost, Process
from tests.sim.coverage import Case, Coverage, Fault
from tests.sim.faults import Dice
from tests.sim.pipelines import Scenario, respond
from tests.sim.replicas import Replica
from tpfd import payloads
from tpfd.core.awaits import question_of
from tpfd.core.records import InteractionRecord
from tpfd.errors import Conflict, StoreError, TimedOut
from tpfd.http.service import Completed, ProviderSocket

RETRY_S = 0.7
SETTLED_LATENCY_S = 0.3


@define(eq=False, kw_only=True)
class Hosts:
    """Which replica a call goes to."""

    replicas: list[Replica]
    dice: Dice

    def now_ms(self) -> int:
        """Wall-clock time of the first replica."""
        return self.replicas[0].clock.now_ms()

    async def any(self, but: Process | None = None) -> Process:
        """One that is up, another than `but` if there is one; waits for the first to come up."""
        while True:
            up = [one.process for one in self.replicas if one.up]
            others = [one for one in up if one is not but]
            if up:
                return self.dice.random.choice(others or up)
            await trio.sleep(RETRY_S)


@frozen
class _Way:
    """How one answer travels.

    Attributes:
        straight: back to the process that has asked.
    """

    number: int
    delay_s: float
    process: Process
    straight: bool
    socket: ProviderSocket | None
    token: str | None


@define(eq=False, kw_only=True)
class Channel:
    """The way of answers back to the cluster: like a broker's, it delays, doubles, reorders and drops.

    Attributes:
        nursery: answers that are on their way outlive who sent them.
        admitted: what was acknowledged as admitted, by interaction.
        refused: interactions of which an answer was refused.
    """

    nursery: trio.Nursery
    hosts: Hosts
    dice: Dice
    coverage: Coverage
    admitted: dict[str, object] = field(factory=dict)
    refused: set[str] = field(factory=set)
    _sent_count: int = 0
    _arrived: int = 0

    def send(
        self,
        interaction_id: str,
        payload: object,
        process: Process,
        socket: ProviderSocket | None = None,
        token: str | None = None,
    ) -> None:
        """Sends an answer on its way.

        Args:
            process: that it was asked by.
            socket: it was asked on; its place there is then free.
            token: its resume token, if it has one.
        """
        dice = self.dice
        if dice.happens(Fault.BROKER_DROPS, 0.04, interaction_id):
            return
        copies = 2 if dice.happens(Fault.BROKER_DOUBLES, 0.1, interaction_id) else 1
        for _ in range(copies):
            self._sent_count += 1
            delay_s = dice.between(1, 15) if dice.happens(Fault.BROKER_DELAYS, 0.1, interaction_id) else 0.0
            elsewhere = dice.happens(Fault.ANSWER_ELSEWHERE, 0.3, interaction_id)
            way = _Way(self._sent_count, delay_s, process, not elsewhere, socket, token)
            self.nursery.start_soon(self._carry, interaction_id, payload, way)

    async def _carry(self, interaction_id: str, payload: object, way: _Way) -> None:
        await trio.sleep(way.delay_s)
        if way.number < self._arrived:
            self.dice.happens(Fault.BROKER_REORDERS, 1, interaction_id)
        self._arrived = max(self._arrived, way.number)
        straight = way.straight
        while True:
            straight = straight and not way.process.gate.dead
            process = way.process if straight else await self.hosts.any(way.process)
            try:
                done = await process.complete(interaction_id, payload, actor="provider", token=way.token)
            except (Lost, StoreError):
                # Nobody has told us that it was taken: tell it again, perhaps elsewhere.
                straight = False
                await trio.sleep(RETRY_S)
                continue
            except (Conflict, TimedOut) as refusal:
                self._refused(interaction_id, refusal)
            else:
                self._taken(done, payload)
            if straight and way.socket is not None:
                way.socket.answered(interaction_id)
            return

    def _taken(self, done: Completed, payload: object) -> None:
        self.dice.trace.note(f"answered: {done.interaction_id}{' again' if done.duplicate else ''}")
        if done.duplicate:
            self.coverage.add(Case.DUPLICATE)
        self.admitted[done.interaction_id] = payload

    def _refused(self, interaction_id: str, refusal: Conflict | TimedOut) -> None:
        self.dice.trace.note(f"refused: {interaction_id} {refusal.code}")
        self.refused.add(interaction_id)
        if refusal.code == "conflicting_completion":
            self.coverage.add(Case.CONFLICTING)


@define(eq=False, kw_only=True)
class Answers:
    """How providers answer what they are asked, by socket or by webhook."""

    channel: Channel
    dice: Dice
    _keys: dict[str, str] = field(factory=dict)

    def to(
        self, scenario: Scenario, envelope: Mapping[str, Any], process: Process, socket: ProviderSocket | None
    ) -> None:
        """Thinks about a request, however long it takes.

        Args:
            process: it was asked by.
            socket: it came on; None: it came by webhook.
        """
        self.channel.nursery.start_soon(self._think, scenario, envelope, process, socket)

    async def _think(
        self, scenario: Scenario, envelope: Mapping[str, Any], process: Process, socket: ProviderSocket | None
    ) -> None:
        name, dice = envelope["interactionId"], self.dice
        first = self._keys.setdefault(name, envelope["idempotencyKey"])
        assert first == envelope["idempotencyKey"], f"{name} was asked under another key"
        if dice.happens(Fault.ANSWER_NEVER, 0.05, name):
            return
        await trio.sleep(self._latency_s(envelope, process))
        says = dice.random.choice(("yes", "no")) if dice.active else "yes"
        answer = respond(envelope["requestPayload"], scenario.gives_many(envelope["stepId"]), says)
        self.channel.send(name, answer, process, socket, envelope["resumeToken"])
        again(self.channel, dice, name, answer, process)

    def _latency_s(self, envelope: Mapping[str, Any], process: Process) -> float:
        dice, name = self.dice, envelope["interactionId"]
        if not dice.active:
            return SETTLED_LATENCY_S
        if dice.happens(Fault.ANSWER_EARLY, 0.2, name):
            return 0.0
        if dice.happens(Fault.ANSWER_LATE, 0.05, name):
            left_s = float(envelope["deadlineEpochMs"] - process.runtime.now()) / 1000
            return max(0.0, left_s) + dice.between(0, 3)
        if dice.happens(Fault.ANSWER_SLOW, 0.15, name):
            return dice.between(4, 12)
        return dice.between(0.05, 1.0)


@define(eq=False, kw_only=True)
class SocketProvider:
    """Attaches to one replica after another and answers what it is asked."""

    scenario: Scenario
    hosts: Hosts
    answers: Answers
    dice: Dice

    async def run(self) -> NoReturn:
        while True:
            process = await self.hosts.any()
            try:
                await process.call(self._serve, process)
            except (Lost, StoreError):
                self.dice.trace.note(f"a provider of {self.scenario.name} has lost {process.gate.name}")
            await trio.sleep(self.dice.between(0.1, 2.0))

    async def _serve(self, process: Process) -> None:
        steps = self.scenario.steps["websocket"]
        credit = self.dice.random.randint(1, 6)
        attach = process.coordinator.attach(TENANT, pipeline=self.scenario.name, step_ids=steps, credit=credit)
        async with attach as socket, trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_at_drain, process, nursery.cancel_scope)
            while True:
                for raw in await socket.next_requests():
                    self.answers.to(self.scenario, json.loads(raw), process, socket)
                if self.dice.happens(Fault.DISCONNECT, 0.1, self.scenario.name):
                    break
            nursery.cancel_scope.cancel("the provider leaves")

    async def _leave_at_drain(self, process: Process, scope: trio.CancelScope) -> None:
        await process.draining.wait()
        scope.cancel("the daemon drains")


@define(eq=False, kw_only=True)
class People:
    """Look at what is pending, now here and now there, and answer some of it."""

    scenarios: Mapping[str, Scenario]
    hosts: Hosts
    channel: Channel
    dice: Dice

    async def run(self) -> NoReturn:
        step_ids = sorted({step for one in self.scenarios.values() for step in one.steps.get("interaction-api", ())})
        while True:
            await trio.sleep(self.dice.between(0.3, 3.0))
            for step_id in step_ids:
                process = await self.hosts.any()
                try:
                    await process.call(self._look, process, step_id)
                except (Lost, StoreError):
                    continue

    async def _look(self, process: Process, step_id: str) -> None:
        page = await process.coordinator.pending(
            TENANT, step_id=step_id, assignee=None, group=None, limit=8, cursor=None
        )
        for record in page.records:
            if record.transport_type != "interaction-api" or self.dice.random.random() < 0.4:
                continue
            await self._answer(process, record)

    async def _answer(self, process: Process, record: InteractionRecord) -> None:
        dice, name = self.dice, record.interaction_id
        question = json.loads(await payloads.text_of(process.runtime, record.tenant_id, question_of(record)))
        says = dice.random.choice(("yes", "no")) if dice.active else "yes"
        answer = respond(question, self.scenarios[record.pipeline_id].gives_many(record.step_id), says)
        self.channel.send(name, answer, process)
        again(self.channel, dice, name, answer, process)


def again(channel: Channel, dice: Dice, name: str, answer: Any, process: Process) -> None:
    """Perhaps it is said twice, or taken back and said differently."""
    if dice.happens(Fault.ANSWER_TWICE, 0.1, name):
        channel.send(name, answer, process)
    if dice.happens(Fault.ANSWER_DIFFERENT, 0.1, name):
        other = json.loads(json.dumps(answer).replace('"yes ', '"changed ').replace('"no ', '"changed '))
        channel.send(name, other, process)
