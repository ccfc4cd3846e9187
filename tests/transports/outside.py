"""Processes with a webhook sender, and the other side of their requests, in memory and on virtual time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from attrs import define, field

from tests.engine.pipelines import BEGIN, FINISH, PARSE, batch, begin, finish, parse, program, waiting
from tests.engine.world import Lost, Process, World
from tpfd.core.kinds import INTERACTION
from tpfd.core.tokens import SigningKey
from tpfd.program import Program
from tpfd.transports.webhook import WebhookSender
from tpfd.transports.webhook_message import WebhookMessage
from tpfd.transports.webhook_replies import Reply, Taken
from tpfd.transports.webhook_target import WebhookTarget

KEY = SigningKey("k1", b"first secret of the webhooks")
TARGET = WebhookTarget(
    scheme="https", host="pay.example.org", port=443, path="/hooks", method="POST", headers=(), timeout_ms=30_000,
    callback=None,
)  # fmt: skip

Say = Callable[["Asked"], Awaitable[Reply]]


@define(eq=False)
class Asked:
    """One request as it arrived."""

    at_s: float
    message: WebhookMessage

    @property
    def envelope(self) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(self.message.body)
        return envelope

    @property
    def interaction_id(self) -> str:
        return str(self.envelope["interactionId"])

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.message.headers)

    @property
    def answer(self) -> dict[str, Any]:
        """What a good provider says to it."""
        asked = self.envelope["requestPayload"]
        return {"number": asked["number"], "text": f"ok {asked['text']}"}


async def taken(_asked: Asked) -> Reply:
    return Taken()


@define(eq=False)
class Outside:
    """The other side.

    Attributes:
        say: what it says to each request.
        asked: all requests in the order they came.
        latency_s: time each takes.
        most_at_once: most requests that were there at the same time.
    """

    say: Say = taken
    asked: list[Asked] = field(factory=list)
    latency_s: float = 0.0
    most_at_once: int = 0
    _at_once: int = 0

    async def send(self, message: WebhookMessage) -> Reply:
        asked = Asked(trio.current_time(), message)
        self.asked.append(asked)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await trio.sleep(self.latency_s)
            return await self.say(asked)
        finally:
            self._at_once -= 1

    @property
    def ids(self) -> list[str]:
        return [one.interaction_id for one in self.asked]

    async def until_asked(self, count: int, within_s: float = 3600.0) -> None:
        with trio.fail_after(within_s):
            while len(self.asked) < count:
                await trio.sleep(0.01)


def scalar(settings: str = "", timeout: str = "PT10M") -> Program:
    """One question, then its answer as the result."""
    return program(BEGIN + _ask(settings, timeout) + FINISH, {"begin": begin, "finish": finish})


def stream(settings: str = "", timeout: str = "PT10M", *, more: str = "") -> Program:
    """A question for each row, and the answers as a file."""
    steps = PARSE + _ask(settings, timeout, more) + FINISH
    return program(steps, {"parse": parse, "finish": finish}, publish=True)


def _ask(settings: str, timeout: str, more: str = "") -> str:
    return waiting(transport="webhook", timeout=timeout, settings=settings, more=more)


@define(eq=False)
class Sending:
    """A process whose sender runs."""

    process: Process
    sender: WebhookSender
    intake: trio.CancelScope = field(factory=trio.CancelScope)

    async def run(self) -> None:
        with contextlib.suppress(Lost):
            await self.process.call(self._run)

    async def _run(self) -> None:
        async with trio.open_nursery() as work:
            with self.intake:
                await self.sender.run(work)
            await self.sender.idle()


async def start(
    world: World,
    outside: Outside,
    name: str = "a",
    *,
    keys: tuple[SigningKey, ...] = (KEY,),
    concurrency: int = 8,
    **settings: Any,
) -> Sending:
    """A process with a sender for the step `ask`."""
    process = world.build(name, keys=keys, **settings)
    sending = Sending(
        process,
        WebhookSender(
            runtime=process.runtime,
            pipeline_id="test",
            step_id="ask",
            target=TARGET,
            envelopes=process.sockets.envelopes,
            send=outside.send,
            give_up=process.coordinator.admission.give_up,
            concurrency=concurrency,
        ),
    )
    world.nursery.start_soon(sending.run)
    await world.nursery.start(process.run)
    return sending


async def submitted(sending: Sending, count: int = 1) -> str:
    return (await sending.process.submit(batch(count))).execution_id


def answering(outside: Outside, *through: Sending) -> None:
    """The other side answers every request from within the request call."""

    async def say(asked: Asked) -> Reply:
        for sending in through:
            if not sending.process.gate.dead:
                await sending.process.complete(asked.interaction_id, asked.answer)
                return Taken()
        raise AssertionError("nobody is there")

    outside.say = say


def refusing(outside: Outside, *replies: Reply) -> None:
    """Says these in order, then takes everything."""
    left = list(replies)

    async def say(_asked: Asked) -> Reply:
        return left.pop(0) if left else Taken()

    outside.say = say


def letters(world: World, count: int) -> Callable[[], Awaitable[bool]]:
    async def arrived() -> bool:
        return len(world.letters.arrived) == count

    return arrived


def nothing_open(world: World) -> Callable[[], Awaitable[bool]]:
    async def closed() -> bool:
        return not any(record.status.open for record in world.observed.rows(INTERACTION))

    return closed
