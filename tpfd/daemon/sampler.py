"""Gauges that must move also when nothing else does: ages of the oldest work, sampled on a timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

import trio
from attrs import define, field

from tpfd.boundaries import one_pass
from tpfd.core.kinds import (
    DUE_PARTITION,
    EXECUTION_BY_STATUS,
    EXECUTION_DUE,
    INTERACTION_BY_STEP,
    pending_partition,
    status_partition,
)
from tpfd.core.records import ExecutionStatus, TenantId
from tpfd.engine.leases import LeaseKeeper
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.pipeline.model import StepKind
from tpfd.runtime import Runtime
from tpfd.transports.permits import read_slots

SAMPLE_S = 15.0


class StoreStatistics(Protocol):
    """What a store says of its writer."""

    @property
    def member_count(self) -> int:
        """Decisions taken."""

    @property
    def commit_count(self) -> int:
        """Commits with something to write."""

    @property
    def largest_group_count(self) -> int:
        """Most decisions in one commit."""

    @property
    def waiting_count(self) -> int:
        """Decisions queued now."""


@define(eq=False, kw_only=True)
class Sampler:
    """Samples for ``/q/metrics``. Reads one row per gauge.

    Attributes:
        statistics: of the store; None: it has none.
        tenant_id: whose parked interactions are looked at: with a gauge per tenant, their number would be unbounded.
    """

    runtime: Runtime
    keeper: LeaseKeeper
    tenant_id: TenantId
    statistics: Callable[[], StoreStatistics] | None
    _held_told: bool = field(default=False, init=False)
    _repeating: Repeating = field(factory=lambda: Repeating(get_logger("tpfd.sampler")), init=False)

    async def run(self) -> NoReturn:
        """Samples for ever."""
        while True:
            await one_pass("sampler", self._repeating, self.runtime.trouble, self._sample)
            await trio.sleep(SAMPLE_S)

    async def _sample(self) -> None:
        runtime = self.runtime
        if not self._held_told:
            await self._tell_held()
            self._held_told = True
        metrics, now = runtime.metrics, runtime.now()
        held = [lease.record for lease in self.keeper.held()]
        metrics.in_flight.set(len(held))
        metrics.oldest_leased_s.clear()
        # The youngest first, so that the oldest of each step is what remains.
        for record in sorted(held, key=lambda record: record.updated_epoch_ms, reverse=True):
            age_s = (now - record.updated_epoch_ms) / 1000
            metrics.oldest_leased_s.set(age_s, record.pipeline_id, self._step(record.pipeline_id, record.step_index))
        metrics.oldest_due_s.clear()
        due = await runtime.store.query(EXECUTION_DUE, DUE_PARTITION, limit=1, last=now)
        for record in due.records:
            if record.status is not ExecutionStatus.RUNNING:
                age_s = (now - (record.next_check_epoch_ms or now)) / 1000
                metrics.oldest_due_s.set(age_s, record.pipeline_id, self._step(record.pipeline_id, record.step_index))
        self._channels()
        self._store()
        await self._parked(now)
        await self._permits()

    async def _tell_held(self) -> None:
        """Warns, once after the start, of executions in flight that were submitted under another pipeline file.

        Such a file was loaded before this one, or after it: the oldest or the youngest of a status shows it.
        """
        runtime = self.runtime
        for pipeline_id in runtime.programs:
            for status in ExecutionStatus:
                if status.terminal:
                    continue
                partition = status_partition(self.tenant_id, pipeline_id, status)
                for descending in (False, True):
                    page = await runtime.store.query(EXECUTION_BY_STATUS, partition, limit=1, descending=descending)
                    for record in page.records:
                        runtime.held.tell(record, runtime.contracts)

    def _channels(self) -> None:
        metrics = self.runtime.metrics
        metrics.channel_items.clear()
        metrics.channel_capacity.clear()
        for channel, step in self.runtime.channels.items():
            statistics = channel.statistics()
            metrics.channel_items.move(statistics.current_buffer_used, *step)
            metrics.channel_capacity.move(statistics.max_buffer_size, *step)

    def _store(self) -> None:
        if self.statistics is None:
            return
        metrics, statistics = self.runtime.metrics, self.statistics()
        metrics.store_decisions.set(statistics.member_count)
        metrics.store_commits.set(statistics.commit_count)
        metrics.store_largest_group.set(statistics.largest_group_count)
        metrics.store_waiting.set(statistics.waiting_count)

    async def _permits(self) -> None:
        """Counts the slots in use; a budget is small, so it is read whole."""
        for program in self.runtime.programs.values():
            for terms in program.terms.values():
                if terms.budget_scope is None:
                    continue
                _, held = await read_slots(self.runtime, terms.budget_scope)
                self.runtime.metrics.permits_taken.set(len(held), program.pipeline_id, terms.step_id)

    async def _parked(self, now: int) -> None:
        metrics = self.runtime.metrics
        metrics.oldest_parked_s.clear()
        for program in self.runtime.programs.values():
            for step in program.pipeline.steps:
                if step.kind is not StepKind.AWAIT:
                    continue
                partition = pending_partition(self.tenant_id, "step", step.step_id)
                page = await self.runtime.store.query(INTERACTION_BY_STEP, partition, limit=1)
                for record in page.records:
                    age_s = (now - record.created_epoch_ms) / 1000
                    metrics.oldest_parked_s.set(age_s, program.pipeline_id, step.step_id)

    def _step(self, pipeline_id: str, index: int) -> str:
        program = self.runtime.programs.get(pipeline_id)
        if program is None or index >= program.end:
            return "publication"
        return program.step(index).step_id
