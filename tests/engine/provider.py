"""An outside actor: it attaches to a process, is asked, and answers, or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio
from attrs import define, field

from tests.engine.process import TENANT, Lost, Process
from tpfd.core.records import InteractionId
from tpfd.errors import AdmissionError, Conflict, TpfdError

Envelope = dict[str, Any]


def echo(envelope: Envelope) -> object:
    """Answers with what was asked."""
    request = envelope["requestPayload"]
    return {"number": request["number"], "text": f"ok {request['text']}"}


@define(eq=False, kw_only=True)
class Provider:
    """An outside actor attached to one process; it answers through another if it is told so.

    Attributes:
        answer: the payload for a request; None: it keeps silent.
        latency_s: time it takes, in seconds.
        asked: how often it was asked each interaction.
        refused: answers that came too late, or that differed.
        outstanding_max: most requests it had in hand at once.
    """

    process: Process
    through: Process | None = None
    step: str = "ask"
    credit: int = 100
    latency_s: float = 0.02
    answer: Callable[[Envelope], object] = echo
    asked: Counter[InteractionId] = field(factory=Counter)
    envelopes: list[Envelope] = field(factory=list)
    refused: list[TpfdError] = field(factory=list)
    outstanding: int = 0
    outstanding_max: int = 0
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    detached: trio.Event = field(factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until its process dies or `scope` is cancelled."""
        with self.scope, suppress(Lost):
            await self.process.call(self._serve, task_status)
        self.detached.set()

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        attach = self.process.coordinator.attach(TENANT, pipeline=None, step_ids=[self.step], credit=self.credit)
        async with attach as socket, trio.open_nursery() as nursery:
            task_status.started()
            while True:
                for raw in await socket.next_requests():
                    envelope = json.loads(raw)
                    self.envelopes.append(envelope)
                    self.asked[InteractionId(envelope["interactionId"])] += 1
                    self.outstanding += 1
                    self.outstanding_max = max(self.outstanding_max, self.outstanding)
                    nursery.start_soon(self._answer, socket, envelope)

    async def _answer(self, socket: Any, envelope: Envelope) -> None:
        await trio.sleep(self.latency_s)
        payload = self.answer(envelope)
        if payload is None:
            return
        self.outstanding -= 1
        through = self.through or self.process
        try:
            await through.complete(envelope["interactionId"], payload, actor="provider")
        except (AdmissionError, Conflict) as error:
            self.refused.append(error)
        socket.answered(envelope["interactionId"])
