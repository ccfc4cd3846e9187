"""Replicas: places where a process runs, dies, and comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio
from attrs import define, field

from tests.engine.world import Lost, Process, World
from tests.sim.clock import WallClock
from tests.sim.coverage import Fault
from tests.sim.faults import Dice, FaultyGate
from tests.sim.hinted import note_death
from tpfd.core.publication import OnExisting
from tpfd.core.tokens import SigningKey

KEY = SigningKey(None, b"the secret of the simulation")


@define(eq=False, kw_only=True)
class Replica:
    """One of the cluster's processes, whichever runs at the time.

    Attributes:
        watches: it hears of other processes' commits.
        latency_s: longest time of a call's way to the store, and of the way back.
        beside: what else runs in each process, until it dies or drains.
        dead: names of all processes that are gone, of every replica.
        drained: told of a process that has ended in good order.
    """

    name: str
    world: World
    dice: Dice
    clock: WallClock
    watches: bool
    latency_s: float
    on_existing: OnExisting
    beside: tuple[Callable[[Process], Awaitable[None]], ...]
    dead: set[str]
    drained: Callable[[Process], None]
    process: Process = field(init=False)
    gate: FaultyGate = field(init=False)
    _incarnation: int = field(default=0, init=False)
    _down: trio.Event = field(factory=trio.Event, init=False)

    @property
    def up(self) -> bool:
        """Whether it takes calls."""
        return not self.gate.dead and not self.process.draining.is_set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Starts a process whenever there is none."""
        await self._start()
        task_status.started()
        while True:
            await self._down.wait()
            await trio.sleep(self.dice.between(0.2, 12.0) if self.dice.active else 0.2)
            await self._start()

    async def _start(self) -> None:
        self._incarnation += 1
        name = f"{self.name}{self._incarnation}"
        node = name
        if self._incarnation > 1 and self.dice.happens(Fault.SAME_NAME, 0.5, name):
            node = self.name
        elif self._incarnation > 1:
            self.dice.happens(Fault.NEW_NAME, 1, name)
        self.gate = FaultyGate(name, dice=self.dice, latency_s=self.latency_s)
        self._down = trio.Event()
        self.process = self.world.build(
            node, clock=self.clock, gate=self.gate, on_existing=self.on_existing, keys=(KEY,)
        )
        # A new process has new random numbers, also under an old name.
        self.process.runtime.random.seed(self.dice.random.getrandbits(64))
        self.process.grace_s = self.dice.between(0.5, 5.0)
        self.gate.on_death = self._died
        self.dice.trace.note(f"{name} starts as {node}, clock ahead {self.clock.ahead_ms} ms")
        await self.world.nursery.start(self.process.run)
        for serve in self.beside:
            self.world.nursery.start_soon(serve, self.process)
        if self.watches:
            self.world.nursery.start_soon(self._watch, self.process)

    async def _watch(self, process: Process) -> None:
        try:
            await process.call(process.runtime.store.watch, process.runtime.bells.ring_all)
        except Lost:
            return

    def kill(self) -> None:
        """Its process is gone."""
        self.process.kill()
        self._died()

    def _died(self) -> None:
        self.dice.trace.note(f"{self.gate.name} is gone")
        note_death(self.process, self.dice)
        self.process.vanish()
        self.dead.add(self.gate.name)
        self._down.set()

    async def drain(self) -> None:
        """Its process ends in good order, unless it is killed meanwhile."""
        process = self.process
        await process.drain()
        if process is self.process and not self.gate.dead:
            self.drained(process)
            self.kill()
