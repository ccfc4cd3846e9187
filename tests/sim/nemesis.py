"""What strikes the cluster from time to time: deaths, drains, a store out of reach, clocks, operators' mistakes."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio
from attrs import define, field

from tests.dispatch.fake_sqs import refusal
from tests.engine.gate import When
from tests.engine.pipelines import Batch, Row
from tests.engine.world import TENANT, Lost, Process, World
from tests.sim.coverage import Fault
from tests.sim.faults import Dice
from tests.sim.hinted import UnreliableSqs
from tests.sim.pipelines import begun, grown
from tests.sim.providers import Hosts
from tests.sim.replicas import Replica
from tests.sim.watched import WatchedStore
from tpfd.core.events import Advance, AttemptEvent, Defer, LoseOutcome
from tpfd.core.kinds import EXECUTION
from tpfd.core.records import ExecutionId, ExecutionRecord, ExecutionStatus
from tpfd.errors import Conflict, StoreError

S = ExecutionStatus
OPEN = (S.QUEUED, S.RUNNING, S.WAIT_RETRY, S.WAITING_EXTERNAL, S.REMOTE_OUTCOME_UNKNOWN)


@define(eq=False, kw_only=True)
class Nemesis:
    """Strikes at random until it is cancelled.

    Attributes:
        pause_s: mean time between two strikes.
        sqs: carries work hints, where there are any.
        cancelled: executions whose cancel was acknowledged.
        redriven: acknowledged re-drives, by execution.
    """

    world: World
    store: WatchedStore
    hosts: Hosts
    dice: Dice
    pause_s: float
    sqs: UnreliableSqs | None
    cancelled: set[ExecutionId] = field(factory=set)
    redriven: dict[ExecutionId, int] = field(factory=dict)

    async def run(self) -> NoReturn:
        strikes = [strike for fault, strike in self._strikes().items() if fault in self.dice.faults]
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self.dice.random.expovariate(1 / self.pause_s))
                if strikes:
                    nursery.start_soon(self.dice.random.choice(strikes))

    def _strikes(self) -> dict[Fault, Callable[[], Awaitable[None]]]:
        windows = {
            Fault.STORE_ERROR_BEFORE: "flaky",
            Fault.STORE_ERROR_AFTER: "flaky",
            Fault.SLOW_STORE: "slow_store",
            Fault.SLOW_DISK: "slow_disk",
        }
        return {
            Fault.KILL: self._kill,
            Fault.KILL_BEFORE_EFFECT: functools.partial(self._kill_at_effect, Fault.KILL_BEFORE_EFFECT, When.BEFORE),
            Fault.KILL_AFTER_EFFECT: functools.partial(self._kill_at_effect, Fault.KILL_AFTER_EFFECT, When.AFTER),
            Fault.DRAIN: self._drain,
            Fault.DRAIN_ALL: self._drain_all,
            Fault.FROZEN: self._freeze,
            Fault.CUT_OFF: self._cut_off,
            **{fault: functools.partial(self._window, fault, name) for fault, name in windows.items()},
            Fault.CLOCK_STEPS: self._clock_steps,
            Fault.OUTCOME_LOST: functools.partial(self._adapter, Fault.OUTCOME_LOST, self._lost),
            Fault.DEFERRED: functools.partial(self._adapter, Fault.DEFERRED, self._deferred),
            Fault.ADVANCED: functools.partial(self._adapter, Fault.ADVANCED, self._advanced),
            Fault.CANCELLED: self._cancel,
            Fault.CANCELLED_CHILD: self._cancel_child,
            Fault.REDRIVEN: self._redrive,
            Fault.REDRIVEN_STALE: self._redrive_stale,
            Fault.LETTERS_FAIL: self._letters_fail,
            Fault.QUEUE_AWAY: self._queue_away,
        }

    # ── replicas ──

    async def _busy(self) -> Replica:
        """A replica that has work in hand, if there is one soon: there it hurts most."""
        for _ in range(20):
            busy = [one for one in self.hosts.replicas if one.up and one.process.keeper.held()]
            if busy:
                return self.dice.random.choice(busy)
            await trio.sleep(0.1)
        return self.dice.random.choice(self.hosts.replicas)

    async def _kill(self) -> None:
        replica = await self._busy()
        if not replica.gate.dead:
            self.dice.note(Fault.KILL, replica.gate.name)
            replica.kill()

    async def _kill_at_effect(self, fault: Fault, when: When) -> None:
        gate = (await self._busy()).gate
        if not gate.dead and gate.crash_at is None:
            gate.crash_at = (len(gate.effects) + self.dice.random.randint(1, 12), when)
            self.dice.note(fault, gate.name)

    async def _drain(self) -> None:
        replica = await self._busy()
        if replica.up:
            self.dice.note(Fault.DRAIN, replica.gate.name)
            self.world.nursery.start_soon(replica.drain)

    async def _drain_all(self) -> None:
        self.dice.note(Fault.DRAIN_ALL)
        for replica in self.hosts.replicas:
            if replica.up:
                self.world.nursery.start_soon(replica.drain)

    async def _clock_steps(self) -> None:
        replica = self.dice.random.choice(self.hosts.replicas)
        replica.clock.ahead_ms = self.dice.random.randint(-20_000, 20_000)
        self.dice.note(Fault.CLOCK_STEPS, f"{replica.name} is ahead {replica.clock.ahead_ms} ms")

    # ── the store and the disk ──

    async def _freeze(self) -> None:
        gate = (await self._busy()).gate
        self.dice.note(Fault.FROZEN, gate.name)
        gate.frozen_until_s = trio.current_time() + self.dice.between(4, 18)

    async def _cut_off(self) -> None:
        gate = (await self._busy()).gate
        self.dice.note(Fault.CUT_OFF, gate.name)
        gate.failing = "the store is out of reach"
        await trio.sleep(self.dice.between(0.5, 10))
        gate.failing = None

    async def _window(self, fault: Fault, name: str) -> None:
        gate = (await self._busy()).gate
        if fault not in (Fault.STORE_ERROR_BEFORE, Fault.STORE_ERROR_AFTER):
            self.dice.note(fault, gate.name)
        setattr(gate, name, True)
        await trio.sleep(self.dice.between(1, 12))
        setattr(gate, name, False)

    async def _letters_fail(self) -> None:
        self.dice.note(Fault.LETTERS_FAIL)
        self.world.letters.failing = "nobody takes letters"
        await trio.sleep(self.dice.between(1, 12))
        self.world.letters.failing = None

    async def _queue_away(self) -> None:
        assert self.sqs is not None
        self.dice.note(Fault.QUEUE_AWAY)
        self.sqs.away(refusal("ServiceUnavailable"))
        await trio.sleep(self.dice.between(1, 20))
        self.sqs.away(None)

    # ── what remote workers and circuit breakers will commit; here somebody commits it under the attempt's fence ──

    async def _adapter(
        self, fault: Fault, event_of: Callable[[Process, ExecutionRecord], AttemptEvent | None]
    ) -> None:
        for _ in range(50):
            process = await self.hosts.any()
            leases = process.keeper.held()
            lease = self.dice.random.choice(leases) if leases else None
            event = None if lease is None else event_of(process, lease.record)
            if lease is not None and event is not None:
                self.dice.note(fault, lease.record.execution_id)
                await self._call(process, process.runtime.commit, TENANT, lease.record.execution_id, event)
                return
            await trio.sleep(0.1)

    def _lost(self, process: Process, record: ExecutionRecord) -> AttemptEvent | None:
        is_child = record.parent_execution_id is not None
        return None if is_child else LoseOutcome(fence=record.fence, message="the connection broke")

    def _deferred(self, process: Process, record: ExecutionRecord) -> AttemptEvent:
        at = process.runtime.now() + self.dice.random.randint(0, 20_000)
        return Defer(fence=record.fence, code="circuit_open", message="not now", not_before_epoch_ms=at)

    def _advanced(self, process: Process, record: ExecutionRecord) -> AttemptEvent | None:
        """Only over a step whose result can be told here."""
        program = process.runtime.program(record.pipeline_id)
        if record.step_index >= program.end or record.input.json is None:
            return None
        data, index = json.loads(record.input.json), record.step_index + 1
        match program.step(record.step_index).step_id:
            case "begin":
                row = begun(Batch(**data))
            case "grow" | "more":
                row = grown(Row(**data))
            case _:
                return None
        return Advance(fence=record.fence, step_index=index, input=program.payload(index, row))

    # ── operators ──

    async def _call(self, process: Process, request: Callable[..., Awaitable[object]], *args: object) -> bool:
        """Whether a call came back with what was asked for."""
        try:
            await process.call(request, *args)
        except (Lost, StoreError, Conflict):
            return False
        return True

    def _some(self, *statuses: ExecutionStatus, children: bool = False) -> ExecutionRecord | None:
        """An execution in one of the statuses; one that few are in is drawn as often as one that many are in."""
        found: dict[ExecutionStatus, list[ExecutionRecord]] = {}
        for record in self.store.rows(EXECUTION):
            if record.status in statuses and (record.parent_execution_id is not None) == children:
                found.setdefault(record.status, []).append(record)
        return self.dice.random.choice(self.dice.random.choice(list(found.values()))) if found else None

    async def _cancel(self) -> None:
        if self.dice.random.random() < 0.5:
            return
        # Also what has ended: that must be refused.
        record = self._some(*(S if self.dice.random.random() < 0.3 else OPEN))
        if record is not None:
            self.dice.note(Fault.CANCELLED, f"{record.execution_id} {record.status}")
            process = await self.hosts.any()
            if await self._call(process, process.cancel, record.execution_id):
                self.cancelled.add(record.execution_id)

    async def _cancel_child(self) -> None:
        record = self._some(S.QUEUED, S.RUNNING, S.WAIT_RETRY, S.WAITING_EXTERNAL, children=True)
        if record is not None:
            self.dice.note(Fault.CANCELLED_CHILD, record.execution_id)
            process = await self.hosts.any()
            await self._call(process, process.cancel, record.execution_id)

    async def _redrive(self) -> None:
        record = self._some(S.FAILED, S.DLQ, S.REMOTE_OUTCOME_UNKNOWN)
        if record is not None:
            self.dice.note(Fault.REDRIVEN, record.execution_id)
            await self.redrive(record)

    async def _redrive_stale(self) -> None:
        record = self._some(S.FAILED, S.DLQ, S.REMOTE_OUTCOME_UNKNOWN)
        if record is not None:
            self.dice.note(Fault.REDRIVEN_STALE, record.execution_id)
            await trio.sleep(self.dice.between(0, 3))
            await self.redrive(record)

    async def redrive(self, record: ExecutionRecord) -> bool:
        """An operator states that whatever ran is over; False when it was refused or got lost."""
        process = await self.hosts.any()
        redrive = functools.partial(
            process.coordinator.redrive,
            TENANT,
            record.execution_id,
            expected_version=record.version,
            reason="mended",
            allow_failed=True,
            confirmed_stopped=True,
            actor="operator",
        )
        if not await self._call(process, redrive):
            return False
        self.redriven[record.execution_id] = record.redrive_count + 1
        return True
