"""Gauges that must move also when nothing else does: ages of the oldest work, sampled on a timer."""

from __future__ import annotations

from typing import NoReturn

import trio
from attrs import define, field

from tpfd.boundaries import one_pass
from tpfd.core.kinds import DUE_PARTITION, EXECUTION_DUE, INTERACTION_BY_STEP, pending_partition
from tpfd.core.records import ExecutionStatus, TenantId
from tpfd.engine.leases import LeaseKeeper
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating
from tpfd.pipeline.model import StepKind
from tpfd.runtime import Runtime

SAMPLE_S = 15.0


@define(eq=False, kw_only=True)
class Sampler:
    """Samples for ``/q/metrics``. Reads one row per gauge.

    Attributes:
        tenant_id: whose parked interactions are looked at: with a gauge per tenant, their number would be unbounded.
    """

    runtime: Runtime
    keeper: LeaseKeeper
    tenant_id: TenantId
    _repeating: Repeating = field(factory=lambda: Repeating(get_logger("tpfd.sampler")), init=False)

    async def run(self) -> NoReturn:
        """Samples for ever."""
        while True:
            await one_pass("sampler", self._repeating, self.runtime.trouble, self._sample)
            await trio.sleep(SAMPLE_S)

    async def _sample(self) -> None:
        runtime = self.runtime
        metrics, now = runtime.metrics, runtime.now()
        held = [lease.record for lease in self.keeper.held()]
        metrics.in_flight.set(len(held))
        metrics.oldest_leased_s.clear()
        for record in held:
            age_s = (now - record.updated_epoch_ms) / 1000
            metrics.oldest_leased_s.set(age_s, record.pipeline_id, self._step(record.pipeline_id, record.step_index))
        metrics.oldest_due_s.clear()
        due = await runtime.store.query(EXECUTION_DUE, DUE_PARTITION, limit=1, last=now)
        for record in due.records:
            if record.status is not ExecutionStatus.RUNNING:
                age_s = (now - (record.next_check_epoch_ms or now)) / 1000
                metrics.oldest_due_s.set(age_s, record.pipeline_id, self._step(record.pipeline_id, record.step_index))
        await self._parked(now)

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
