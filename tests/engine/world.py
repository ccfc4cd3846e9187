"""Processes over one store, on virtual time: the daemon's parts, wired as the daemon wires them, without threads.

A ``World`` holds what outlives processes: the store, the disk, the dead letters. A ``Process`` is one daemon without
its HTTP edge. It can be killed (it then does nothing any more), drained, cut off from the store, and given a clock of
its own.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import trio
from attrs import define, evolve, field

from tests.engine.disk import Disk, MemoryTarget
from tests.engine.gate import Gate, GatedStore
from tests.engine.observed import ObservedStore
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
    InteractionId,
    InteractionRecord,
    TenantId,
)
from tpfd.core.tokens import SigningKey
from tpfd.dispatch.memory import MemoryRejects
from tpfd.engine.attempts import Attempts
from tpfd.engine.claims import ClaimLoop
from tpfd.engine.continuations import Continuations
from tpfd.engine.leases import LeaseKeeper
from tpfd.engine.rejecting import Rejecting
from tpfd.engine.sweeper import Sweeper
from tpfd.engine.tidying import Tidying
from tpfd.errors import AdmissionError, Conflict, DispatchError, TpfdError
from tpfd.http.service import Completed, Completion, SubmitItem, Submitted
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
from tpfd.transports.websocket import ProviderSockets, take_back

T = TypeVar("T")
S = ExecutionStatus
TENANT = TenantId("t1")
POLICY = ExecutionPolicy()
SETTINGS = EngineSettings(live_idle_ms=60_000)
START_EPOCH_MS = 1_800_000_000_000


class Lost(Exception):
    """The process died during the call."""


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
    """

    nursery: trio.Nursery
    programs: Mapping[str, Program] = field(factory=dict)
    store: Store = field(factory=ObservedStore)
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
        process = self.build(name, **settings)
        await self.nursery.start(process.run)
        return process

    def build(
        self,
        name: str = "a",
        *,
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
            store=GatedStore(self.store, gate),
            policy=self.policy,
            settings=evolve(self.settings, **settings),
            clock=clock,
            random=Random(name),
            programs=self.programs if programs is None else programs,
            metrics=Metrics(),
            threads=trio.CapacityLimiter(1),
        )
        sessions = Sessions()
        sockets = ProviderSockets(runtime=runtime, envelopes=EnvelopeWriter(keys[0] if keys else None))
        admission = Admission(runtime=runtime, sessions=sessions, outlet=sockets, keys=keys)
        keeper = LeaseKeeper(runtime)
        rejects = MemoryRejects(1000)
        attempts = Attempts(
            runtime=runtime,
            keeper=keeper,
            live=LiveAwaits(runtime=runtime, sessions=sessions, outlet=sockets),
            publishers={
                one.pipeline_id: self._publisher(one, gate, clock, on_existing)
                for one in runtime.programs.values()
                if one.pipeline.output is not None
            },
            rejects=Rejecting(runtime=runtime, sink=rejects, include_payload=True, fail_pipeline=fail_pipeline),
        )
        sweeper = Sweeper(
            runtime=runtime,
            deadlines=admission,
            continuations=Continuations(runtime=runtime),
            tidying=Tidying(
                runtime=runtime,
                dead_letters=self.letters,
                settled=sockets.settled,
                forget=runtime.store.forget,
            ),
            take_back=functools.partial(take_back, runtime, closing=False),
        )
        draining = trio.Event()
        submitting = Submitting(runtime=runtime, key_policy=key_policy)
        process = Process(
            world=self,
            gate=gate,
            runtime=runtime,
            sessions=sessions,
            keeper=keeper,
            attempts=attempts,
            claims=ClaimLoop(runtime, attempts.run),
            sweeper=sweeper,
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
            draining=draining,
        )
        gate.on_death = process.vanish
        self.processes.append(process)
        return process

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


@define(eq=False, kw_only=True)
class Process:
    """One daemon without its edge."""

    world: World
    gate: Gate
    runtime: Runtime
    sessions: Sessions
    keeper: LeaseKeeper
    attempts: Attempts
    claims: ClaimLoop
    sweeper: Sweeper
    sockets: ProviderSockets
    rejects: MemoryRejects
    submitting: Submitting
    coordinator: Coordinator
    draining: trio.Event
    grace_s: float = 20.0
    ended: trio.Event = field(factory=trio.Event)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _connections: list[trio.CancelScope] = field(factory=list)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The nursery tree of the daemon, with its drain."""
        with self._scope:
            async with trio.open_nursery() as services:
                services.start_soon(self.keeper.run)
                services.start_soon(self.sockets.run)
                async with trio.open_nursery() as work:
                    async with trio.open_nursery() as intake:
                        intake.start_soon(self.claims.run, work)
                        intake.start_soon(self.sweeper.run)
                        task_status.started()
                        await self.draining.wait()
                        self.runtime.bells.ring_all()
                        self.attempts.release_live()
                        intake.cancel_scope.cancel("drain")
                    with trio.move_on_after(self.grace_s):
                        await self.claims.idle()
                    work.cancel_scope.cancel("the drain's grace is over")
                services.cancel_scope.cancel("the daemon has drained")
        self.ended.set()

    def kill(self) -> None:
        """The process is gone between two instructions."""
        self.gate.dead = True
        self.vanish()

    def vanish(self) -> None:
        self._scope.cancel("killed")
        for connection in self._connections:
            connection.cancel("killed")

    async def drain(self) -> None:
        """Drains it and waits until it has ended."""
        self.draining.set()
        await self.ended.wait()

    async def call(self, request: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
        """A client's call. Raises Lost when the process dies meanwhile."""
        with trio.CancelScope() as scope:
            self._connections.append(scope)
            if self.gate.dead:
                scope.cancel("nobody there")
            try:
                return await request(*args, **named)
            finally:
                self._connections.remove(scope)
        raise Lost

    async def submit(self, data: object, *, key: str | None = None, pipeline: str | None = None) -> Submitted:
        item = SubmitItem(input=data, key=key, pipeline=pipeline)
        return await self.call(self.coordinator.submit, TENANT, item, trace_parent=None)

    async def complete(
        self, interaction_id: str, payload: object, *, actor: str = "somebody", token: str | None = None
    ) -> Completed:
        completion = Completion(
            tenant_id=TENANT,
            interaction_id=interaction_id,
            correlation_id=None,
            resume_token=token,
            idempotency_key=None,
            payload=payload,
            actor=actor,
        )
        return await self.call(self.coordinator.complete, completion)

    async def redrive(self, record: ExecutionRecord, *, allow_failed: bool = True) -> ExecutionRecord:
        return await self.call(
            self.coordinator.redrive,
            TENANT,
            record.execution_id,
            expected_version=record.version,
            reason="mended",
            allow_failed=allow_failed,
            confirmed_stopped=False,
            actor="ops",
        )

    async def cancel(self, execution_id: str) -> ExecutionRecord:
        return await self.call(self.coordinator.cancel, TENANT, execution_id, reason="not wanted", actor="ops")

    async def result(self, execution_id: str) -> Any:
        text = await self.coordinator.result_json(await self.world.execution(execution_id))
        return None if text is None else json.loads(text)

    def running(self) -> list[ExecutionId]:
        return [lease.record.execution_id for lease in self.keeper.held()]


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
