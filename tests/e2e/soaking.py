"""Two daemons of which one dies or freezes again and again, and everybody who works with them meanwhile.

The crowd behaves as good clients do: who got no answer, or was told to come again, asks the other daemon the same thing
under the same idempotency key. What was answered with success is written down, to be held against the store.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import httpx
import trio
from attrs import Factory, define, field

from tests.e2e.processes import Daemon, serving, write_payments

COME_AGAIN = {429, 503}
PENDING_PAGE = 100
ANSWERS_AT_A_TIME = 12
FROZEN_S = 2.6
ROUND_S = 0.2

ASKED = ("ask-live", "ask-first", "ask-again", "ask-all", "ask-for-one", "await-restaurant-decision")
"""The await steps that the crowd answers; payments have their own providers."""


# ── the daemons ──


@define(eq=False)
class Seat:
    """One of the daemons: where it listens, and the process that does so now."""

    config: Path
    address: str = ""
    daemon: Daemon | None = None
    ready: trio.Event = Factory(trio.Event)
    kill_count: int = 0
    leaving: bool = False

    async def keep_running(
        self, folder: Path, environ: Mapping[str, str], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Starts a process again whenever it was killed; any other end is a failure."""
        while not self.leaving:
            async with serving(folder, self.config, bind=self.address, **environ) as daemon:
                self.address, self.daemon = daemon.address, daemon
                self.ready.set()
                if self.kill_count == 0:
                    task_status.started()
                code = await daemon.process.wait()
                wanted = 0 if self.leaving else -signal.SIGKILL
                assert code == wanted, f"{daemon.name} ended with {code}:\n{daemon.text()[-3000:]}"

    async def kill(self) -> None:
        """SIGKILL; it is started again at once."""
        await self.ready.wait()
        assert self.daemon is not None
        self.ready = trio.Event()
        self.kill_count += 1
        await self.daemon.kill()

    async def freeze(self) -> None:
        """SIGSTOP for longer than a lease: when it goes on, what it was doing is somebody else's."""
        assert self.daemon is not None
        self.daemon.send(signal.SIGSTOP)
        try:
            await trio.sleep(FROZEN_S)
        finally:
            self.daemon.send(signal.SIGCONT)

    async def leave(self) -> None:
        """SIGTERM, once it is there."""
        await self.ready.wait()
        assert self.daemon is not None
        self.leaving = True
        await self.daemon.stop()


async def disturb(seats: Sequence[Seat], dice: random.Random, kill_count: int, freeze_count: int) -> None:
    """Kills and freezes the daemons in random order, each time one of them, a random while after it was ready."""
    blows = [Seat.kill] * kill_count + [Seat.freeze] * freeze_count
    dice.shuffle(blows)
    for blow in blows:
        seat = dice.choice(seats)
        await seat.ready.wait()
        await trio.sleep(dice.uniform(0.2, 1.2))
        await blow(seat)


# ── the crowd ──


@define
class Front:
    """The daemons as their clients see them: some of them answer."""

    clients: Sequence[httpx.AsyncClient]
    dice: random.Random

    async def call(self, method: str, path: str, *, first: int | None = None, **request: Any) -> httpx.Response:
        """Asks one after the other until one gives an answer that is final.

        Args:
            first: whom to ask first; None: anyone.
        """
        turn = self.dice.randrange(len(self.clients)) if first is None else first
        while True:
            with suppress(httpx.TransportError):
                answer = await self.clients[turn % len(self.clients)].request(method, path, **request)
                if answer.status_code not in COME_AGAIN:
                    return answer
            turn += 1
            await trio.sleep(0.05)


@define
class Crowd:
    """Submits, answers, and remembers what it was promised.

    Attributes:
        accepted: per idempotency key, the execution that a 2xx named.
        admitted: per interaction, the payload that a 2xx took.
        written: names of the payment files.
        closed: nothing more is submitted; what waits is still answered.
    """

    front: Front
    dice: random.Random
    accepted: dict[str, str] = field(factory=dict)
    admitted: dict[str, object] = field(factory=dict)
    written: list[str] = field(factory=list)
    closed: bool = False
    _taken: set[str] = field(factory=set)

    async def submit_now_and_then(self) -> None:
        number = 0
        while not self.closed:
            for pipeline in ("ask-live", "ask-twice", "ask-lists", "restaurant-approval"):
                await self._submit(pipeline, number)
                await trio.sleep(self.dice.uniform(0.05, 0.3))
            number += 1

    async def _submit(self, pipeline: str, number: int) -> None:
        key = f"{pipeline}-{number}"
        body = order_of(number) if pipeline == "restaurant-approval" else batch_of(key, number)
        repeats = self.dice.random() < 0.3
        for again in range(1 + repeats):
            answer = await self.front.call(
                "POST", "/pipeline/run-async", json=body, headers={"idempotency-key": key, "x-tpf-pipeline": pipeline}
            )
            assert answer.status_code in {200, 202}, answer.text
            assert answer.status_code == 200 or not again, f"{key} was accepted twice"
            found = str(answer.json()["executionId"])
            assert self.accepted.setdefault(key, found) == found, f"{key} names two executions"

    async def write_files(self, inbox: Path, row_count: int) -> None:
        """Puts payment files where the daemons look for them."""
        while not self.closed:
            name = f"payments-{len(self.written)}.csv"
            write_payments(inbox / name, row_count)
            self.written.append(name)
            await trio.sleep(self.dice.uniform(1.5, 2.5))

    async def answer(self, step: str) -> None:
        """Answers what waits at a step, some of it later than the rest, and everything twice."""
        limiter = trio.CapacityLimiter(ANSWERS_AT_A_TIME)
        while True:
            page = await self.front.call(
                "GET", "/pipeline/interactions/pending", params={"stepId": step, "limit": PENDING_PAGE}
            )
            assert page.status_code == 200, page.text
            async with trio.open_nursery() as nursery:
                for request in page.json():
                    if request["interactionId"] not in self._taken and self.dice.random() < 0.4:
                        self._taken.add(request["interactionId"])
                        nursery.start_soon(self._answer, request, limiter)
            await trio.sleep(ROUND_S)

    async def _answer(self, request: dict[str, Any], limiter: trio.CapacityLimiter) -> None:
        """Half of the time says the same twice; else contradicts itself, and only one of both may be taken."""
        payloads = [answer_to(request["stepId"], request["requestPayload"], yes=yes) for yes in (True, False)]
        self.dice.shuffle(payloads)
        agrees = self.dice.random() < 0.5
        said = [payloads[0], payloads[0] if agrees else payloads[1]]
        whom = self.dice.randrange(2)
        statuses: list[int] = []

        async def say(payload: object, first: int) -> None:
            body = {"interactionId": request["interactionId"], "responsePayload": payload}
            answer = await self.front.call("POST", "/pipeline/interactions/complete", json=body, first=first)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                admitted = self.admitted.setdefault(request["interactionId"], payload)
                assert admitted == payload, f"two answers to {request['interactionId']} were taken"
            else:
                assert answer.status_code == 409, answer.text
                assert answer.json()["code"] == "conflicting_completion", answer.text

        async with limiter, trio.open_nursery() as nursery:
            for turn, payload in enumerate(said):
                nursery.start_soon(say, payload, whom + turn)
        assert sorted(statuses) == ([200, 200] if agrees else [200, 409]), f"{request['interactionId']}: {statuses}"


def batch_of(name: str, number: int) -> dict[str, object]:
    """Every fourth batch has rows so long that a list of them does not stand in a record."""
    return {"name": name, "count": 3 + number % 9, "padding": "." * 20_000 if number % 4 == 3 else ""}


def order_of(number: int) -> dict[str, object]:
    return {
        "requestId": str(uuid5(NAMESPACE_OID, f"order {number}")),
        "customerName": "Zoë",
        "restaurantName": "Noodle Bar",
        "items": "2x udon",
        "totalAmount": "42.50",
        "currency": "EUR",
    }


def answer_to(step: str, request: Any, *, yes: bool) -> object:
    """One of the two answers that a question can get."""
    match step:
        case "ask-all":
            return [verdict(row, yes=yes == (row["number"] % 2 == 0)) for row in request]
        case "ask-for-one":
            return {"count": len(request), "yes": yes, "text": spoken(request)}
        case "await-restaurant-decision":
            decision = {"orderId": request["orderId"], "decidedAt": "2026-11-30T12:00:00Z", "note": ""}
            return {"accepted": decision} if yes else {"declined": {**decision, "declineReason": "closed"}}
        case _:
            return verdict(request, yes=yes)


def verdict(row: Mapping[str, Any], *, yes: bool) -> dict[str, object]:
    return {"number": row["number"], "yes": yes, "text": row["text"]}


def spoken(lines: Sequence[Mapping[str, Any]]) -> str:
    """Lines as the pipelines add them up."""
    return " ".join(f"{line['number']}:{'yes' if line['yes'] else 'no'}" for line in lines)
