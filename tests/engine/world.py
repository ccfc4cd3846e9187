"""Processes over one store, on virtual time: the daemon's parts, wired as the daemon wires them, without threads.

A ``World`` holds what outlives processes: the store, the disk, the dead letters. A ``Process`` is one daemon without
its HTTP edge. It can be killed (it then does nothing any more), drained, cut off from the store, and given a clock of
its own.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any, TypeVar

import trio
from attrs import define, evolve, field

from tests.engine.disk import Disk, MemoryTarget
from tests.engine.gate import Gate, GatedRejects, GatedStore
from tests.engine.observed import ObservedStore
from tests.engine.process import TENANT, Lost, Process
from tests.engine.provider import Envelope, Provider, echo
from tpfd.awaits.admission import Admission
from tpfd.awaits.live import LiveAwaits
from tpfd.awaits.sessions import Sessions
from tpfd.clock import Clock, TrioClock
from tpfd.core.deadletter import DeadLetter
from tpfd.core.events import ExecutionPolicy
from tpfd.core.kinds import EXECUTION, INTERACTION
from tpfd.core.publication import OnExisting
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    Fact,
    InteractionRecord,
)
from tpfd.core.tokens import SigningKey
from tpfd.daemon.dispatching import Hinting
from tpfd.dispatch.memory import MemoryRejects
from tpfd.engine.attempts import Attempts
from tpfd.engine.claims import ClaimLoop
from tpfd.engine.continuations import Continuations
from tpfd.engine.leases import LeaseKeeper
from tpfd.engine.rejecting import Rejecting
from tpfd.engine.sweeper import Sweeper
from tpfd.engine.tidying import Tidying
from tpfd.errors import DispatchError
from tpfd.metrics import Metrics
from tpfd.objects.formats import make_encoder
from tpfd.objects.publisher import ObjectPublisher
from tpfd.pipeline.model import ObjectFormat
from tpfd.program import Program
from tpfd.runtime import EngineSettings, Runtime
from tpfd.service.coordinator import Coordinator
from tpfd.service.listing import Listing
from tpfd.service.submitting import KeyPolicy, Submitting
from tpfd.stores.protocol import Store
from tpfd.transports.envelopes import EnvelopeWriter
from tpfd.transports.held import take_back
from tpfd.transports.websocket import ProviderSockets

__all__ = [
    "POLICY",
    "SETTINGS",
    "START_EPOCH_MS",
    "TENANT",
    "Envelope",
    "Letters",
    "Lost",
    "Process",
    "Provider",
    "S",
    "SkewedClock",
    "World",
    "echo",
]

S = ExecutionStatus
POLICY = ExecutionPolicy()
SETTINGS = EngineSettings(live_idle_ms=60_000)
START_EPOCH_MS = 1_800_000_000_000


@define(eq=False)
class SkewedClock:
    """A wall clock that is off, and may be moved."""

    ahead_ms: int = 0
    _true: Clock = field(factory=TrioClock)

    def now_ms(self) -> int:
        return self._true.now_ms() + self.ahead_ms


@define(eq=False)
class Letters:
    """Dead letters that arrived."""

    arrived: list[DeadLetter] = field(factory=list)
    failing: str | None = None

    async def publish(self, letter: DeadLetter) -> None:
        await trio.lowlevel.checkpoint()
        if self.failing is not None:
            raise DispatchError(self.failing)
        self.arrived.append(letter)


@define(eq=False, kw_only=True)
class World:
    """What outlives processes.

    Attributes:
        nursery: runs processes and providers.
        programs: loaded by every process, if it is not told otherwise.
        store: of all processes.
        connect: opens a process's own store, by its name, which is closed when it has ended; None: they share one.
    """

    nursery: trio.Nursery
    programs: Mapping[str, Program] = field(factory=dict)
    store: Store = field(factory=ObservedStore)
    connect: Callable[[str], AbstractAsyncContextManager[Store]] | None = None
    disk: Disk = field(factory=Disk)
    letters: Letters = field(factory=Letters)
    policy: ExecutionPolicy = POLICY
    settings: EngineSettings = SETTINGS
    processes: list[Process] = field(factory=list)

    def load(self, *programs: Program) -> None:
        self.programs = {**self.programs, **{one.pipeline_id: one for one in programs}}

    @property
    def observed(self) -> ObservedStore:
        assert isinstance(self.store, ObservedStore)
        return self.store

    async def start(self, name: str = "a", **settings: Any) -> Process:
        """A new process; keywords as in `build`."""
        process: Process = await self.nursery.start(self._run, name, settings)
        return process

    async def _run(self, name: str, settings: Mapping[str, Any], *, task_status: trio.TaskStatus[Process]) -> None:
        if self.connect is None:
            await self.build(name, **settings).run(task_status=task_status)
        else:
            async with self.connect(name) as own:
                process = self.build(name, store=own, **settings)
                try:
                    await process.run(task_status=task_status)
                finally:
                    process.gate.dead = True  # whoever still asks for it would meet a store that is being closed

    def build(
        self,
        name: str = "a",
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        gate: Gate | None = None,
        programs: Mapping[str, Program] | None = None,
        on_existing: OnExisting = OnExisting.FAIL,
        key_policy: KeyPolicy = KeyPolicy.OPTIONAL_CLIENT_KEY,
        keys: tuple[SigningKey, ...] = (),
        fail_pipeline: bool = False,
        **settings: Any,
    ) -> Process:
        """Wires a process that does not run yet."""
        gate = gate or Gate(name)
        clock = clock or TrioClock(START_EPOCH_MS)
        runtime = Runtime(
            node=name,
            store=GatedStore(self.store if store is None else store, gate),
            policy=self.policy,
            settings=evolve(self.settings, **settings),
            clock=clock,
            random=Random(name),
            programs=self.programs if programs is None else programs,
            metrics=Metrics(),
            threads=trio.CapacityLimiter(1),
        )
        hinting = self.make_hinting(runtime, gate)
        if hinting is not None:
            runtime = hinting.told_by(runtime)
        sessions = Sessions()
        sockets = ProviderSockets(runtime=runtime, envelopes=EnvelopeWriter(keys[0] if keys else None))
        keeper = LeaseKeeper(runtime)
        rejects = MemoryRejects(1000)
        sink = GatedRejects(rejects, gate)
        rejecting = Rejecting(runtime=runtime, sink=sink, include_payload=True, fail_pipeline=fail_pipeline)
        attempts = Attempts(
            runtime=runtime,
            keeper=keeper,
            live=LiveAwaits(runtime=runtime, sessions=sessions, outlet=sockets),
            publishers={
                one.pipeline_id: self._publisher(one, gate, clock, on_existing)
                for one in runtime.programs.values()
                if one.pipeline.output is not None
            },
            rejects=rejecting,
        )
        claims = ClaimLoop(runtime, attempts.run, hinted=hinting is not None)
        admission = Admission(
            runtime=runtime, sessions=sessions, outlet=sockets, commit=claims.commit, rejects=rejecting, keys=keys
        )
        sweeper = Sweeper(
            runtime=runtime,
            deadlines=admission,
            continuations=Continuations(runtime=runtime),
            take_back=functools.partial(take_back, runtime, closing=False),
        )
        draining = trio.Event()
        submitting = Submitting(runtime=runtime, key_policy=key_policy, commit=claims.commit)
        process = Process(
            world=self,
            gate=gate,
            runtime=runtime,
            sessions=sessions,
            keeper=keeper,
            attempts=attempts,
            claims=claims,
            sweeper=sweeper,
            tidying=Tidying(
                runtime=runtime,
                dead_letters=self.letters,
                settled=sockets.settled,
                forget=runtime.store.forget,
            ),
            sockets=sockets,
            rejects=rejects,
            submitting=submitting,
            coordinator=Coordinator(
                runtime=runtime,
                submitting=submitting,
                listing=Listing(runtime),
                admission=admission,
                sockets=sockets,
                draining=draining,
            ),
            hinting=hinting,
            hints=None if hinting is None else hinting.poller(claims, draining),
            draining=draining,
        )
        gate.on_death = process.vanish
        self.processes.append(process)
        return process

    def make_hinting(self, runtime: Runtime, gate: Gate) -> Hinting | None:
        """How a process tells others of work; here not at all."""
        return None

    def _publisher(self, program: Program, gate: Gate, clock: Clock, on_existing: OnExisting) -> ObjectPublisher:
        output = program.pipeline.output
        assert output is not None
        columns = [one.name for one in program.pipeline.types.record(program.pipeline.output_type).fields]
        return ObjectPublisher(
            target=MemoryTarget(self.disk, gate),
            name=output.target,
            key_template=program.pipeline.publish[output.target].key_template,
            on_existing=on_existing,
            make_encoder=lambda: make_encoder(ObjectFormat.CSV, columns, formula_safe=False),
            now_epoch_ms=clock.now_ms,
        )

    # ── looking ──

    async def execution(self, execution_id: str) -> ExecutionRecord:
        record = await self.store.get(EXECUTION.key(TENANT, execution_id))
        assert record is not None, f"{execution_id} is gone"
        return record

    async def interaction(self, interaction_id: str) -> InteractionRecord:
        record = await self.store.get(INTERACTION.key(TENANT, interaction_id))
        assert record is not None, f"{interaction_id} is gone"
        return record

    async def facts(self, execution_id: str) -> list[Fact]:
        return [one.fact for one in await self.store.history(TENANT, ExecutionId(execution_id), after=0, limit=100_000)]

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float = 3600.0) -> None:
        """Lets virtual time pass until something is so; fails after `within_s`."""
        began = trio.current_time()
        with trio.fail_after(within_s):
            while not await condition():
                await trio.sleep(_pause_s(began))

    async def until_status(
        self, execution_id: str, *statuses: ExecutionStatus, within_s: float = 3600.0
    ) -> ExecutionRecord:
        """Waits until an execution has one of the statuses."""
        record = await self.execution(execution_id)
        began = trio.current_time()
        try:
            with trio.fail_after(within_s):
                while (record := await self.execution(execution_id)).status not in statuses:
                    assert not record.status.terminal, f"ended: {record}"
                    await trio.sleep(_pause_s(began))
        except trio.TooSlowError:
            raise AssertionError(f"after {within_s} s still {record}") from None
        return record


def _pause_s(began: float) -> float:
    """Looks often at first; hours of virtual time need not be looked through so closely."""
    return 0.05 if trio.current_time() - began < 60 else 0.5


W = TypeVar("W", bound=World)


@asynccontextmanager
async def living(world: W) -> AsyncIterator[W]:
    """A world whose processes end with the block."""
    yield world
    for process in world.processes:
        process.kill()
    world.nursery.cancel_scope.cancel("the test is over")
