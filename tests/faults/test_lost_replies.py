"""A store call that fails after its effect: what a socket was given then is in its provider's hands all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest
import trio
from attrs import define

from tests.engine import virtual
from tests.engine.asking import LIVE, attach, lines, whole
from tests.engine.gate import Gate
from tests.engine.pipelines import batch
from tests.engine.world import World
from tpfd.core.kinds import INTERACTION
from tpfd.core.records import ExecutionRecord
from tpfd.core.records import ExecutionStatus as S
from tpfd.errors import StoreError

T = TypeVar("T")
RENEWED_S = 10.0
"""How often a process looks through what its sockets hold, with a lease of 30 s."""


@define(eq=False)
class LossyGate(Gate):
    """Its store's answer is lost or late, once, when an effect has made something so.

    Attributes:
        late_s: so many seconds; None: it is lost.
    """

    meets: Callable[[], bool] = lambda: False
    late_s: float | None = None
    met_count: int = 0

    async def effect(self, name: str, call: Callable[[], Awaitable[T]], *, store: bool = False) -> T:
        before = self.meets()
        done = await super().effect(name, call, store=store)
        if self.meets() and not before:
            self.met_count += 1
            if self.late_s is None:
                raise StoreError("the answer was lost")
            with trio.CancelScope(shield=True):
                await trio.sleep(self.late_s)
        return done


async def no_attempts(record: ExecutionRecord, sent_at: float) -> None:
    await trio.sleep_forever()


async def delivery(*, runs_there: bool, late_s: float | None) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery=nursery)
        world.load(LIVE)
        gate = LossyGate("a", meets=lambda: any(one.delivery for one in world.observed.rows(INTERACTION)))
        gate.late_s = late_s
        a, b = await world.start("a", gate=gate), await world.start("b")
        (b if runs_there else a).claims.run_attempt = no_attempts
        provider = await attach(world, a)
        await trio.sleep(RENEWED_S - 2.5)
        done = await (a if runs_there else b).submit(batch(5))
        # A lost session is retried after 5 s or so; what it had opened is then attached to, not sent.
        await world.until_status(done.execution_id, S.SUCCEEDED, within_s=2 * RENEWED_S + 10)
        await trio.sleep(RENEWED_S)
        assert gate.met_count == 1
        assert lines(world, done.execution_id) == whole(5)
        assert sorted(provider.asked.values()) == [1] * 5
        for process in world.processes:
            process.kill()
        nursery.cancel_scope.cancel("the test is over")


IDS = ["by a live session", "by a pump"]


@pytest.mark.parametrize("runs_there", [True, False], ids=IDS)
def test_what_was_delivered_without_our_knowing_is_sent(*, runs_there: bool) -> None:
    virtual.run(partial(delivery, runs_there=runs_there, late_s=None))


@pytest.mark.parametrize("runs_there", [True, False], ids=IDS)
def test_what_is_being_delivered_is_not_taken_for_lost(*, runs_there: bool) -> None:
    virtual.run(partial(delivery, runs_there=runs_there, late_s=5.0))
