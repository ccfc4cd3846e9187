"""Processes that tell each other of work over one queue."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, field

from tests.dispatch.fake_sqs import FakeSqs, queue_over
from tests.engine.gate import GatedStore
from tests.engine.world import Process, World
from tpfd.aws.sqs_held import HeldMessages
from tpfd.daemon.dispatching import Hinting, TellingStore
from tpfd.dispatch.sqs_work import SqsWorkQueue
from tpfd.engine.hints import HintPoller, HintSender


class Noting(TellingStore):
    """Passes on who writes."""

    def note_writer(self, name: str) -> None:
        self.inner.note_writer(name)  # type: ignore[attr-defined]


@define(eq=False, kw_only=True)
class HintedWorld(World):
    """See `World`.

    Attributes:
        visibility_s: of the queue.
        pollers: by the name of their process.
    """

    sqs: FakeSqs = field(factory=FakeSqs)
    visibility_s: int = 60
    wait_s: int = 20
    pollers: dict[str, HintPoller] = field(factory=dict)

    def build(self, name: str = "a", **settings: Any) -> Process:
        process = World.build(self, name, **settings)
        queue = queue_over(self.sqs, process.gate)
        trouble = process.runtime.trouble
        held = HeldMessages(name="work_queue", queue=queue, visibility_s=self.visibility_s, trouble=trouble)
        work = SqsWorkQueue(held=held, wait_s=self.wait_s)
        hinting = Hinting(work, HintSender(runtime=process.runtime, queue=work))
        gated = process.runtime.store
        assert isinstance(gated, GatedStore)
        gated._inner = Noting(gated._inner, hinting.sender.offer)
        process.claims.hinted = True
        self.pollers[name] = hinting.poller(process.claims, process.draining)
        self.nursery.start_soon(self._run_hints, process, hinting, self.pollers[name])
        return process

    async def _run_hints(self, process: Process, hinting: Hinting, poller: HintPoller) -> None:
        """As the daemon runs them: the queue outlives the work, the work the receives. A killed process has none."""
        async with trio.open_nursery() as services:
            services.start_soon(hinting.run)
            services.start_soon(self._work, process, poller, services.cancel_scope)
            await process.ended.wait()
            if process.gate.dead:
                services.cancel_scope.cancel("killed")

    async def _work(self, process: Process, poller: HintPoller, services: trio.CancelScope) -> None:
        async with trio.open_nursery() as work:
            work.start_soon(poller.run, work)
            await process.draining.wait()
            with trio.move_on_after(process.grace_s):
                await process.claims.idle()
                await poller.idle()
            work.cancel_scope.cancel("the drain's grace is over")
        services.cancel("the process has drained")
