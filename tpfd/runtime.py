"""What every part of the engine is given: one frozen bag, made by the daemon."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from random import Random
from typing import Protocol, TypeVar

import trio
from attrs import define, field, frozen

from tpfd.bell import Bell
from tpfd.clock import Clock
from tpfd.core.commit import Committed, commit
from tpfd.core.contracts import Contracts, held_reason
from tpfd.core.events import Event, ExecutionPolicy
from tpfd.core.kinds import EXECUTION
from tpfd.core.records import ExecutionId, ExecutionRecord, TenantId
from tpfd.core.transact import Decide, Read
from tpfd.errors import NotFound
from tpfd.items import Item
from tpfd.metrics import Metrics
from tpfd.ops.logs import get_logger
from tpfd.program import Program
from tpfd.stores.protocol import Store

T = TypeVar("T")
log = get_logger("tpfd.contracts")


@frozen(kw_only=True)
class EngineSettings:
    """Settings that tasks need and transitions do not.

    Attributes:
        max_in_flight: attempts at a time.
        sweep_interval_ms: time between sweeps when nothing wakes them.
        sweep_limit: records per page of a sweep.
        live_idle_ms: a live session whose source has ended is parked when no answer came for so long.
        live_poll_ms: how often a live session looks for answers that came through another process.
        max_result_items: items that a MANY result, or an aggregate answer, may hold; 0: no guard.
        max_input_items: items that an aggregate await may ask about; 0: no guard.
        max_payload_bytes: largest payload.
        hand_back_ms: time that handing back may take at the end of a drain.
    """

    max_in_flight: int = 64
    sweep_interval_ms: int = 30_000
    sweep_limit: int = 100
    live_idle_ms: int = 300_000
    live_poll_ms: int = 500
    max_result_items: int = 10_000
    max_input_items: int = 10_000
    max_payload_bytes: int = 16 * 2**20
    hand_back_ms: int = 3_000


@define(eq=False, kw_only=True)
class Bells:
    """The hints of one process.

    Attributes:
        work: an execution may be claimable.
        sweep: something else may be due in time: a unit, an interaction.
        tidy: an execution ended and left something to do.
        ended: an execution may have ended (for those who wait for results).
        facts: the journal may have grown.
        queue: a request may wait for a socket.
        elsewhere: another process committed.
    """

    work: Bell = field(factory=Bell)
    sweep: Bell = field(factory=Bell)
    tidy: Bell = field(factory=Bell)
    ended: Bell = field(factory=Bell)
    facts: Bell = field(factory=Bell)
    queue: Bell = field(factory=Bell)
    elsewhere: Bell = field(factory=Bell)

    def ring_all(self) -> None:
        """Another process committed something; nobody knows what."""
        for bell in (self.work, self.sweep, self.tidy, self.ended, self.facts, self.queue, self.elsewhere):
            bell.ring()


@define(eq=False)
class HeldLog:
    """Tells the log of work that this process leaves to others, once per contract: there may be any number of it.

    What it remembers grows with the contracts that people have made, not with executions.
    """

    _told: set[tuple[str, str]] = field(factory=set, init=False)

    def tell(self, record: ExecutionRecord, contracts: Contracts) -> None:
        """Warns of an execution that is not run here, as an example for all of its contract."""
        reason = held_reason(record, contracts)
        loaded = contracts.get(record.pipeline_id)
        known = (record.pipeline_id, "" if loaded is None else record.contract_version)
        if reason is None or known in self._told:
            return
        self._told.add(known)
        log.warning(
            "pipeline_not_loaded" if loaded is None else "contract_changed",
            pipeline=record.pipeline_id,
            execution_id=record.execution_id,
            contract_version=record.contract_version,
            loaded_version=loaded,
            message=reason,
        )


class CommitDue(Protocol):
    """Commits a decision that makes executions due; who does it may begin with them at once."""

    async def __call__(self, reads: Iterable[Read], decide: Decide[T], count: int) -> T:
        """As ``Store.transact``. `count`: executions that become due, at most."""


@frozen(kw_only=True)
class Runtime:
    """The surroundings of the engine in one process.

    Attributes:
        node: name of this process, for people.
        threads: bounds the threads of step functions.
        channels: the channels of the segments that run, with the pipeline and step that read them; for the metrics.
        trouble: loops that fail right now, with the reason; what readiness shows.
        contracts: of the pipelines that are loaded, and so what can be taken up here.
        held: tells of work that cannot.
    """

    node: str
    store: Store
    policy: ExecutionPolicy
    settings: EngineSettings
    clock: Clock
    random: Random
    programs: Mapping[str, Program]
    metrics: Metrics
    threads: trio.CapacityLimiter
    bells: Bells = field(factory=Bells)
    trouble: dict[str, str] = field(factory=dict)
    channels: dict[trio.MemoryReceiveChannel[Item], tuple[str, str]] = field(factory=dict)
    held: HeldLog = field(factory=HeldLog)
    contracts: Contracts = field(init=False)

    @contracts.default
    def _contracts(self) -> Contracts:
        return {name: program.pipeline.contract_version for name, program in self.programs.items()}

    def now(self) -> int:
        """Wall-clock epoch milliseconds."""
        return self.clock.now_ms()

    def program(self, pipeline_id: str) -> Program:
        """A loaded pipeline.

        Raises:
            NotFound: this process has not loaded it.
        """
        try:
            return self.programs[pipeline_id]
        except KeyError:
            known = ", ".join(sorted(self.programs)) or "none"
            message = f"no pipeline {pipeline_id!r} is loaded here; loaded: {known}"
            raise NotFound(message, code="pipeline_not_loaded") from None

    async def commit(self, tenant_id: TenantId, execution_id: ExecutionId, event: Event) -> Committed:
        """Applies one event to one execution and rings for what it made due.

        Raises:
            StoreError: nothing was committed.
        """
        key = EXECUTION.key(tenant_id, execution_id)
        done = await self.store.transact(
            (Read(key),), functools.partial(commit, key=key, event=event, now=self.now(), policy=self.policy)
        )
        if (record := done.record) is not None:
            self.announce(record)
        if done.unit_due:
            self.bells.sweep.ring()
        return done

    def announce(self, record: ExecutionRecord) -> None:
        """Rings for an execution as it now stands."""
        self.metrics.transitions.add(record.pipeline_id, record.status)
        self.bells.facts.ring()
        if record.status.terminal:
            self.bells.ended.ring()
            if record.dead_letter_due or record.cleanup_due:
                self.bells.tidy.ring()
        elif record.next_check_epoch_ms is not None:
            self.bells.work.ring()
