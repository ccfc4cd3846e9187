"""One run of a scenario: processes that die and come back, and clients that ask again until they are answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

import trio
from attrs import define, evolve, field

from tests.engine.gate import Gate, When
from tests.engine.pipelines import Batch
from tests.engine.world import POLICY, SETTINGS, Envelope, Lost, Process, Provider, S, World, echo
from tests.faults.around import Folder, Receiver
from tests.faults.brokered import Topics
from tests.faults.invariants import Promises, check_invariants
from tests.faults.stores import Shared
from tpfd.bell import Bell, wait_for
from tpfd.core.events import ExecutionPolicy
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.records import ExecutionRecord, InteractionRecord
from tpfd.core.retry import Backoff
from tpfd.errors import Conflict
from tpfd.program import Program

T = TypeVar("T")
FAST = evolve(POLICY, max_retries=1, backoff=Backoff(5_000, 2.0, 60_000, 0.0))
LOOK_S = 1.0
NEWS_S = 0.2
"""Until a client knows of what has just been written."""
Point = tuple[int, When]
__all__ = ["Batch", "Point", "Scenario", "Stage", "row"]


def row(number: int, text: str) -> str:
    """An answer, as canonical JSON."""
    return f'{{"number":{number},"text":"{text}"}}'


@define
class Scenario:
    """Something that must come to the same end wherever a process dies on the way.

    Attributes:
        act: what clients and providers do; returns when the scenario has come to its end.
        expect: judges the end; raises AssertionError.
        beside: another process runs all the time and never dies.
        serve: what runs in each process besides, until it dies.
    """

    name: str
    programs: tuple[Program, ...]
    act: Callable[[Stage], Awaitable[None]]
    expect: Callable[[Stage], None]
    beside: bool = False
    serve: Callable[[Stage, Process], Awaitable[None]] | None = None
    policy: ExecutionPolicy = FAST
    quiet_s: float = 65.0  # two sweeps and a little


@define(eq=False)
class Stage:
    """The surroundings of one run.

    Attributes:
        current: the process that clients and providers turn to.
        folder: whose objects become executions, if the scenario takes them in.
        receiver: takes webhooks, if the scenario sends them.
        topics: between the processes and a provider, if the scenario asks through a broker.
    """

    world: World
    scenario: Scenario
    current: Process = field(init=False)
    promises: Promises = field(factory=Promises)
    folder: Folder = field(factory=Folder)
    receiver: Receiver = field(init=False)
    topics: Topics = field(init=False)
    effect_names: list[str] = field(factory=list)
    _crash_at: Point | None = None
    _count: int = 0
    _written: Bell = field(factory=Bell)

    def __attrs_post_init__(self) -> None:
        self.receiver = Receiver(self.world.nursery, self._call_back)
        self.topics = Topics(self.world.nursery, echo)
        self.world.observed.on_write = lambda _: self._written.ring()

    @classmethod
    async def play(
        cls, scenario: Scenario, crash_at: Point | None, opened: AbstractAsyncContextManager[Shared]
    ) -> tuple[Stage, list[str]]:
        """Runs a scenario with one crash (or none); the stage, and what is wrong with what is left."""
        async with opened as shared, trio.open_nursery() as nursery:
            world = World(
                nursery=nursery,
                store=shared.observed,
                connect=shared.connect,
                policy=scenario.policy,
                settings=evolve(SETTINGS, live_idle_ms=8_000),
            )
            world.load(*scenario.programs)
            stage = cls(world, scenario, crash_at=crash_at)
            await stage.start()
            if scenario.beside:
                await world.start("beside")
            nursery.start_soon(stage._supervise)
            with trio.fail_after(20_000):
                await scenario.act(stage)
                with trio.move_on_after(200):
                    await stage.until(stage.is_tidy)
            stage.effect_names = list(world.processes[0].gate.effects)
            stage.promises.removed = scenario.policy is not FAST
            await trio.sleep(scenario.quiet_s)
            for process in world.processes:
                process.kill()
            violations = check_invariants(world.observed, world.disk, world.letters.arrived, stage.promises)
            violations += [f"0: {difference}" for difference in await shared.differences()]
            nursery.cancel_scope.cancel("the run is over")
        return stage, violations

    async def start(self) -> None:
        """A new process; only the first one can be told to die."""
        name = f"p{self._count}"
        gate = Gate(name, crash_at=self._crash_at if self._count == 0 else None)
        self._count += 1
        self.current = await self.world.start(name, gate=gate)
        if self.scenario.serve is not None:
            self.world.nursery.start_soon(self._serve, self.scenario.serve, self.current)

    async def _serve(self, serve: Callable[[Stage, Process], Awaitable[None]], process: Process) -> None:
        with suppress(Lost):
            await process.call(serve, self, process)

    async def _supervise(self) -> None:
        while True:
            await self.current.ended.wait()
            await trio.sleep(1)
            await self.start()

    async def alive(self) -> Process:
        """A process that takes calls."""
        while self.current.gate.dead or self.current.draining.is_set():
            await trio.sleep(0.5)
        return self.current

    async def again(self, call: Callable[[Process], Awaitable[T]]) -> T:
        """A client's call, again until it is answered."""
        while True:
            try:
                return await call(await self.alive())
            except Lost:
                await trio.sleep(0.5)

    # ── clients ──

    async def submit(self, data: object, key: str = "k", pipeline: str | None = None) -> str:
        done = await self.again(lambda process: process.submit(data, key=key, pipeline=pipeline))
        self.promises.submitted.append(done.execution_id)
        return done.execution_id

    async def complete(self, interaction_id: str, text: str) -> None:
        """Answers with canonical JSON; whoever was answered before in the same words is content."""
        await self.again(lambda process: process.complete(interaction_id, json.loads(text)))
        self.promises.completed[interaction_id] = text

    async def _call_back(self, envelope: Envelope) -> None:
        asked = envelope["requestPayload"]
        await self.complete(envelope["interactionId"], row(asked["number"], f"ok {asked['text']}"))

    async def cancel(self, execution_id: str) -> None:
        try:
            await self.again(lambda process: process.cancel(execution_id))
        except Conflict:
            # The answer to the first call was lost, or it was too late.
            if self.record(execution_id).status is not S.CANCELLED:
                raise
        self.promises.cancelled.append(execution_id)

    async def redrive(self, execution_id: str) -> None:
        wanted = self.record(execution_id).redrive_count + 1
        while self.record(execution_id).redrive_count < wanted:
            with suppress(Conflict):  # it moved meanwhile (a dead letter was sent): look again
                await self.again(lambda process: process.redrive(self.record(execution_id)))
        self.promises.redriven[execution_id] = wanted

    def provider(self, answer: Callable[[Envelope], object] = echo, **settings: Any) -> list[Provider]:
        """A provider that attaches again wherever it can; all its attachments, as they come."""
        attached: list[Provider] = []

        async def serve() -> None:
            while True:
                provider = Provider(process=await self.alive(), answer=answer, **settings)
                attached.append(provider)
                await provider.run()
                await trio.sleep(0.5)

        self.world.nursery.start_soon(serve)
        return attached

    # ── looking ──

    def is_tidy(self) -> bool:
        """Nothing is left to do about anything that has ended."""
        return not any(one.cleanup_due or one.dead_letter_due for one in self.world.observed.rows(EXECUTION))

    def record(self, execution_id: str) -> ExecutionRecord:
        (found,) = (one for one in self.world.observed.rows(EXECUTION) if one.execution_id == execution_id)
        return found

    def interactions(self, *, is_open: bool | None = None) -> list[InteractionRecord]:
        rows = self.world.observed.rows(INTERACTION)
        return [one for one in rows if is_open is None or one.status.open is is_open]

    async def until(self, condition: Callable[[], bool], within_s: float = 3600.0) -> None:
        """Waits until something is so: it looks soon after a write, and now and then for what nobody writes down."""
        with trio.fail_after(within_s):
            while True:
                ticket = self._written.ticket()
                if condition():
                    return
                await wait_for(ticket, LOOK_S)
                await trio.sleep(NEWS_S)

    async def until_status(self, execution_id: str, *statuses: S) -> None:
        await self.until(lambda: self.record(execution_id).status in statuses)

    def lines(self) -> list[str]:
        """The rows of the only output object, by number."""
        (key,) = self.world.disk.objects
        return sorted(self.world.disk.lines(key), key=lambda line: int(line.partition(",")[0]))
