"""Processes that tell each other of work over one queue."""

from __future__ import annotations

from attrs import define, field

from tests.dispatch.fake_sqs import FakeSqs, queue_over
from tests.engine.gate import Gate
from tests.engine.world import World
from tpfd.aws.sqs_held import HeldMessages
from tpfd.aws.sqs_queue import SqsQueue
from tpfd.daemon.dispatching import Hinting
from tpfd.dispatch.sqs_work import SqsWorkQueue
from tpfd.engine.hints import HintSender
from tpfd.runtime import Runtime


@define(eq=False, kw_only=True)
class HintedWorld(World):
    """See `World`.

    Attributes:
        visibility_s: of the queue.
    """

    sqs: FakeSqs = field(factory=FakeSqs)
    visibility_s: int = 60
    wait_s: int = 20

    def make_hinting(self, runtime: Runtime, gate: Gate) -> Hinting:
        held = HeldMessages(
            name="work_queue", queue=self.queue(gate), visibility_s=self.visibility_s, trouble=runtime.trouble
        )
        work = SqsWorkQueue(held=held, wait_s=self.wait_s)
        return Hinting(work, HintSender(runtime=runtime, queue=work))

    def queue(self, gate: Gate) -> SqsQueue:
        """A process' way to the queue."""
        return queue_over(self.sqs, gate)
