"""Looks at a live store and says what an operator should look at. Reads only, and only so many rows of each kind.

Whatever is *due* is done within a sweep when any daemon works, so rows that are overdue by more than a few sweeps say
that none does, or that it cannot. What merely waits (for a person, for a provider) is shown and is in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import define, field, frozen

from tpfd.config.model import Config
from tpfd.core.budget import is_held
from tpfd.core.contracts import SHORT, WAY_OUT, Contracts, runs_here
from tpfd.core.kinds import (
    DUE_PARTITION,
    EXECUTION_BY_STATUS,
    EXECUTION_DUE,
    INTERACTION,
    INTERACTION_BY_STEP,
    INTERACTION_DUE,
    LATE_BY_EXECUTION,
    PERMIT_BY_SCOPE,
    SOCKET_DUE,
    TIDY_PARTITION,
    UNIT_DUE,
    late_partition,
    pending_partition,
    status_partition,
)
from tpfd.core.records import ExecutionRecord, ExecutionStatus, SequencedFact, TenantId
from tpfd.core.transact import Index, Key, Page, Sort
from tpfd.daemon.findings import Finding
from tpfd.durations import format_duration
from tpfd.pipeline.model import Step, StepKind
from tpfd.program import Program

R = TypeVar("R")

COUNTED_MAX = 1_000
"""Rows read of one status or one step; more are shown as ``1000+``."""
SHOWN_MAX = 100
"""Overdue rows read of each kind."""
CLOCK_TOLERANCE_MS = 1_000


class Shelves(Protocol):
    """The reading half of a store."""

    async def query(
        self, index: Index[R], partition: str, *, limit: int, last: Sort | None = None, descending: bool = False
    ) -> Page[R]:
        """See ``tpfd.stores.protocol.Store``."""

    async def get_many(self, keys: Sequence[Key[R]]) -> list[R | None]:
        """See ``tpfd.stores.protocol.Store``."""

    async def feed(self, *, after: int, limit: int) -> list[SequencedFact]:
        """See ``tpfd.stores.protocol.Store``."""

    async def last_seq(self) -> int:
        """See ``tpfd.stores.protocol.Store``."""


@frozen
class Count:
    """Executions of one pipeline in one status; `more` says that there are more than were counted."""

    pipeline_id: str
    status: ExecutionStatus
    count: int
    more: bool


@define(eq=False, kw_only=True)
class Doctor:
    """One look at a store.

    Attributes:
        tenant_id: whose executions and interactions are counted; what is due is looked at for all tenants.
        now: wall-clock epoch milliseconds here.
    """

    store: Shelves
    config: Config
    programs: Mapping[str, Program]
    tenant_id: TenantId
    now: int
    counts: list[Count] = field(factory=list, init=False)
    _held: list[Finding] = field(factory=list, init=False)

    @property
    def patience_ms(self) -> int:
        """Overdue by more than this, a row was not just about to be done."""
        return 3 * self.config.sweep.interval_ms + self.config.lease.skew_ms

    async def look(self) -> list[Finding]:
        """Everything there is to say; fills `counts`.

        Raises:
            StoreError: the store cannot be read.
        """
        await self._count()
        return [
            *self._ended_badly(),
            *self._held,
            *await self._due(),
            await self._overdue(INTERACTION_DUE, "interactions", "deadlines, reminders and sends are late"),
            await self._overdue(UNIT_DUE, "await units", "answers wait to be used"),
            await self._overdue(SOCKET_DUE, "provider sockets", "what dead sockets held is not given to others"),
            *await self._tidy(),
            *[await self._parked(program, step) for program, step in self._await_steps()],
            *await self._budgets(),
            await self._orphans(),
            await self._clock(),
        ]

    async def _count(self) -> None:
        for pipeline_id in sorted(self.programs):
            held: list[ExecutionRecord] = []
            more = False
            for status in ExecutionStatus:
                partition = status_partition(self.tenant_id, pipeline_id, status)
                page = await self.store.query(EXECUTION_BY_STATUS, partition, limit=COUNTED_MAX)
                if page.records:
                    self.counts.append(Count(pipeline_id, status, len(page.records), page.cursor is not None))
                if not status.terminal:
                    held.extend(record for record in page.records if not runs_here(record, self._contracts))
                    more = more or page.cursor is not None
            self._held.append(self._of_other_contracts(pipeline_id, held, more=more))

    @property
    def _contracts(self) -> Contracts:
        return {name: program.pipeline.contract_version for name, program in self.programs.items()}

    def _of_other_contracts(self, pipeline_id: str, held: list[ExecutionRecord], *, more: bool) -> Finding:
        """Executions in flight that daemons with this pipeline file leave alone."""
        about = f"{pipeline_id}: contract"
        loaded = self.programs[pipeline_id].pipeline.contract_version[:SHORT]
        if not held:
            return Finding(about, f"{loaded}, that of all that is in flight")
        oldest = min(held, key=lambda record: record.execution_id)
        others = ", ".join(sorted({record.contract_version[:SHORT] for record in held}))
        said = (
            f"{loaded}, and {_amount(len(held), more=more)} in flight were submitted under {others}: a daemon with "
            f"this file leaves them; the oldest is {oldest.execution_id}"
        )
        return Finding(about, said, WAY_OUT)

    def _ended_badly(self) -> list[Finding]:
        unknown = [one for one in self.counts if one.status is ExecutionStatus.REMOTE_OUTCOME_UNKNOWN]
        return [
            Finding(
                f"{one.pipeline_id}: outcome unknown",
                f"{_amount(one.count, more=one.more)} wait for a person: nobody knows what a remote worker did",
                f"find out, then: tpfd redrive --pipeline {one.pipeline_id} …  or  tpfd cancel ID",
            )
            for one in unknown
        ]

    async def _due(self) -> list[Finding]:
        """What could run, and what ran where its process has gone."""
        page = await self.store.query(EXECUTION_DUE, DUE_PARTITION, limit=SHOWN_MAX, last=self.now)
        waiting = [record for record in page.records if record.status is not ExecutionStatus.RUNNING]
        expired = [record for record in page.records if record.status is ExecutionStatus.RUNNING]
        more = page.cursor is not None
        return [self._late("due executions", waiting, more=more), self._late("expired leases", expired, more=more)]

    def _late(self, about: str, records: list[ExecutionRecord], *, more: bool) -> Finding:
        """What is late, oldest first."""
        if not records:
            return Finding(about, "none")
        oldest = records[0]
        late_ms = self.now - (self.now if oldest.next_check_epoch_ms is None else oldest.next_check_epoch_ms)
        owner = f", leased to {oldest.lease_owner}" if oldest.lease_owner else ""
        said = f"{_amount(len(records), more=more)}; the oldest since {_time(late_ms)}: {_name(oldest)}{owner}"
        return Finding(about, said, _TOO_LATE if late_ms > self.patience_ms else "")

    async def _overdue(self, index: Index[R], what: str, meaning: str) -> Finding:
        page = await self.store.query(index, DUE_PARTITION, limit=SHOWN_MAX, last=self.now - self.patience_ms)
        if not page.records:
            return Finding(f"overdue {what}", "none")
        said = f"{_amount(len(page.records), more=page.cursor is not None)}: {meaning}"
        return Finding(f"overdue {what}", said, _NOBODY_SWEEPS)

    async def _tidy(self) -> list[Finding]:
        last = self.now - self.patience_ms
        page = await self.store.query(EXECUTION_DUE, TIDY_PARTITION, limit=SHOWN_MAX, last=last)
        letters = [record for record in page.records if record.dead_letter_due]
        others = len(page.records) - len(letters)
        more = page.cursor is not None
        found = []
        if letters:
            said = f"{_amount(len(letters), more=more)} cannot be sent; the oldest is of {_name(letters[0])}"
            advice = "look at /q/health/ready for the reason, and at dead-letters in the configuration"
            found.append(Finding("dead letters", said, advice, "$.dead-letters.provider"))
        else:
            found.append(Finding("dead letters", "none is overdue"))
        if others:
            found.append(Finding("ended executions", f"{_amount(others, more=more)} are to be tidied", _NOBODY_SWEEPS))
        return found

    async def _parked(self, program: Program, step: Step) -> Finding:
        about = f"{program.pipeline_id}: waiting at {step.step_id}"
        partition = pending_partition(self.tenant_id, "step", step.step_id)
        page = await self.store.query(INTERACTION_BY_STEP, partition, limit=COUNTED_MAX)
        # The index knows the step's name alone: another pipeline may have a step of that name.
        mine = [record for record in page.records if record.pipeline_id == program.pipeline_id]
        if not mine:
            return Finding(about, "nothing")
        oldest = min(mine, key=lambda record: record.created_epoch_ms)
        age = _time(self.now - oldest.created_epoch_ms)
        said = f"{_amount(len(mine), more=page.cursor is not None)}; the oldest since {age}: {oldest.interaction_id}"
        return Finding(about, said)

    async def _budgets(self) -> list[Finding]:
        found = []
        for program, step in self._await_steps():
            terms = program.terms[step.index]
            if terms.budget_scope is None:
                continue
            about, size = f"{program.pipeline_id}: budget of {step.step_id}", program.budget_size(step)
            page = await self.store.query(PERMIT_BY_SCOPE, terms.budget_scope, limit=max(size, COUNTED_MAX))
            keys = [INTERACTION.key(permit.owner_tenant_id, permit.interaction_id) for permit in page.records]
            owners = await self.store.get_many(keys)
            held = [permit for permit, owner in zip(page.records, owners, strict=True) if is_held(permit, owner)]
            if not held:
                found.append(Finding(about, f"0 of {size} taken"))
                continue
            age_ms = self.now - min(permit.acquired_epoch_ms for permit in held)
            said = f"{len(held)} of {size} taken; the longest since {_time(age_ms)}"
            stuck = age_ms > terms.timeout_ms + self.patience_ms
            found.append(Finding(about, said, _NOBODY_SWEEPS if stuck else ""))
        return found

    async def _orphans(self) -> Finding:
        page = await self.store.query(LATE_BY_EXECUTION, late_partition(self.tenant_id, None), limit=COUNTED_MAX)
        if not page.records:
            return Finding("orphans", "none")
        said = f"{_amount(len(page.records), more=page.cursor is not None)} completions met no interaction"
        return Finding("orphans", said, "tpfd orphans  shows them; tpfd orphans match  gives one to its interaction")

    async def _clock(self) -> Finding:
        last = await self.store.last_seq()
        facts = await self.store.feed(after=max(0, last - 1), limit=1)
        if not facts:
            return Finding("clocks", "no fact is kept to compare with")
        ahead_ms = facts[-1].fact.at_epoch_ms - self.now
        if ahead_ms <= max(CLOCK_TOLERANCE_MS, self.config.lease.skew_ms):
            return Finding("clocks", f"the newest fact is {_time(max(0, -ahead_ms))} old")
        said = f"the newest fact is {_time(ahead_ms)} in the future: this clock is behind, or a replica's is ahead"
        return Finding("clocks", said, "synchronise them (chronyc tracking); lease.skew must cover the difference")

    def _await_steps(self) -> list[tuple[Program, Step]]:
        return [
            (program, step)
            for _, program in sorted(self.programs.items())
            for step in program.pipeline.steps
            if step.kind is StepKind.AWAIT
        ]


_NOBODY_SWEEPS = "see that a daemon runs and is ready: GET /q/health/ready says what it cannot do"
_TOO_LATE = f"{_NOBODY_SWEEPS}; if all are busy, add replicas or raise worker.max-in-flight"


def _name(record: ExecutionRecord) -> str:
    return f"{record.execution_id} of {record.pipeline_id}"


def _amount(count: int, *, more: bool) -> str:
    return f"{count}+" if more else str(count)


def _time(ms: int) -> str:
    return format_duration(ms if ms < 10_000 else ms // 1000 * 1000)
