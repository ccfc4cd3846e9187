"""One attempt: from a claimed execution to the one transaction that ends the claim.

Whatever happens inside becomes a value first and then one event under the attempt's fence. Three ways out have no
event: the lease was lost (whoever holds it now decides), the store did not answer in time (the lease will run out and
somebody takes over), and a drain that ran out of time to hand back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import BinaryIO

import trio
from attrs import define, field

from tpfd import payloads
from tpfd.boundaries import contained
from tpfd.codec.digests import digest
from tpfd.core import dispatching, ids, itemised
from tpfd.core.awaits import NOTHING, AwaitTerms, Request
from tpfd.core.events import (
    AttemptEvent,
    Break,
    Complete,
    Fail,
    HandBack,
    NoteFact,
    PreparePublication,
    Suspend,
)
from tpfd.core.execution import Refused, Transition
from tpfd.core.failures import Failure
from tpfd.core.kinds import EXECUTION, UNIT
from tpfd.core.records import (
    ExecutionRecord,
    FactType,
    JsonText,
    Payload,
    Publication,
    PublicationState,
    UnitStatus,
)
from tpfd.engine.calls import Caller
from tpfd.engine.leases import Lease, LeaseKeeper
from tpfd.engine.plan import plan
from tpfd.engine.ports import LiveAwait, Publisher, RejectSink
from tpfd.engine.segment import AskedItems, AskOne, Collected, Done, Dropped, Published, Segment
from tpfd.errors import LostLease, NonRetryableError, StoreError
from tpfd.ops.logs import Log, get_logger
from tpfd.runtime import Runtime
from tpfd.steps import no_source

COMMIT_TRIES_S = (0.1, 0.5, 2.0)
"""Waits between tries of the last commit while the store is away; the lease bounds them all."""


@define(eq=False, kw_only=True)
class Attempts:
    """Runs attempts.

    Attributes:
        publishers: by pipeline id, for those that publish their output.
        openers: by pipeline id, for those that have an object source: opens its objects for their step functions.
    """

    runtime: Runtime
    keeper: LeaseKeeper
    live: LiveAwait
    publishers: Mapping[str, Publisher]
    rejects: RejectSink
    openers: Mapping[str, Callable[[str], BinaryIO]] = field(factory=dict)
    _live_released: bool = field(default=False, init=False)
    _log: Log = field(factory=lambda: get_logger("tpfd.attempt"), init=False)

    async def run(self, record: ExecutionRecord, sent_at: float) -> None:
        """Runs one claimed execution to its commit.

        Args:
            record: RUNNING, under our fence.
            sent_at: Trio's time from before the claim was sent.

        **Cancellation**: the execution is handed back, uncharged, in a short shielded scope.
        """
        lease = self.keeper.take(record, sent_at)
        committed = False
        try:
            with lease.scope, lease.release_scope:
                event = await self._event(lease)
                if event is not None:
                    await self._commit(lease, event)
                committed = True
            if lease.ended:
                self._log.warning(
                    "attempt_without_lease",
                    execution_id=record.execution_id,
                    transition_key=record.last_transition_key,
                    reason=lease.lost or "the lease could not be renewed in time",
                )
        finally:
            if not committed and not lease.ended:
                await self.hand_back(lease, "drain")
            self.keeper.drop(lease)

    def release_live(self) -> None:
        """Hands back the attempts that wait for the outside or are going to: in a drain nobody can answer them here."""
        self._live_released = True
        for lease in self.keeper.held():
            if lease.live:
                lease.release_scope.cancel("drain")

    async def hand_back(self, lease: Lease, reason: str) -> None:
        """Gives the execution back, uncharged; at most `hand_back_ms`, whatever is being cancelled around it."""
        record = lease.record
        with trio.move_on_after(self.runtime.settings.hand_back_ms / 1000, shield=True):
            try:
                event = HandBack(fence=record.fence, reason=reason)
                done = await self.runtime.commit(record.tenant_id, record.execution_id, event)
            except StoreError as error:
                self._log.error("hand_back_failed", execution_id=record.execution_id, message=error.message)
                return
            if isinstance(done.outcome, Transition):
                self._log.info("handed_back", execution_id=record.execution_id, reason=reason)

    async def _event(self, lease: Lease) -> AttemptEvent | None:
        """Runs the segment; what is left to commit, None if that is done already."""
        done = await contained(functools.partial(self._segment, lease))
        # A step that swallowed a cancel must not go on as if nothing had happened.
        await trio.lowlevel.checkpoint_if_cancelled()
        if not isinstance(done, Failure):
            return done
        record = lease.record
        if isinstance(done.error, LostLease):
            lease.lose(done.message)
            return None
        fields = {"execution_id": record.execution_id, "code": done.code, "message": done.message}
        if done.internal:
            self._log.exception("execution_broken", done.error, **fields)
            return Break(fence=record.fence, message=done.message)
        self._log.info("attempt_failed", retryable=done.retryable, attempt=record.attempt, **fields)
        return Fail(
            fence=record.fence,
            code=done.code,
            message=done.message,
            retryable=done.retryable,
            reason=done.reason,
            draw=self.runtime.random.random(),
            floor_ms=done.floor_ms,
        )

    async def _segment(self, lease: Lease) -> AttemptEvent | None:
        record, runtime = lease.record, self.runtime
        program = runtime.program(record.pipeline_id)
        if record.input == NOTHING:
            return Complete(fence=record.fence, result=None)
        publisher = self.publishers.get(record.pipeline_id) if record.parent_execution_id is None else None
        if publisher is not None and await self._adopted(publisher, record):
            return Complete(fence=record.fence, result=None, published=True)
        if await self._parked_again(record):
            return None
        planned = plan(program, record)
        lease.live = planned.live is not None
        if lease.live and self._live_released:
            lease.release_scope.cancel("drain")
        segment = Segment(
            program=program,
            plan=planned,
            caller=Caller(
                program,
                record,
                runtime.policy,
                runtime.threads,
                runtime.now,
                runtime.random,
                self._log.bind(execution_id=record.execution_id, transition_key=record.last_transition_key),
                self.openers.get(record.pipeline_id, no_source),
            ),
            live=self.live,
            publisher=publisher,
            rejects=self.rejects,
            note=functools.partial(self._note, lease),
            prepare=functools.partial(self._prepare, lease),
            max_result_items=runtime.settings.max_result_items,
            max_input_items=runtime.settings.max_input_items,
            channels=runtime.channels,
        )
        if record.input.item_count is None:
            value = await payloads.value_of(runtime, program, record.tenant_id, record.input)
            outcome = await segment.run(value, None)
        else:
            outcome = await segment.run(None, payloads.items_of(runtime, program, record.tenant_id, record.input))
        match outcome:
            case Dropped():
                return Complete(fence=record.fence, result=None)
            case Published():
                return Complete(fence=record.fence, result=None, published=True)
            case Done(value):
                result = program.payload(segment.plan.stop, value)
            case Collected(values):
                text = JsonText("[" + ",".join(values) + "]")
                result = Payload(type_name=program.type_at(segment.plan.stop), json=text, item_count=len(values))
            case AskOne(step):
                await self._ask_one(record, program.terms[step.index], outcome)
                return None
            case AskedItems(step, count):
                await self._park(record, step.index, count)
                return None
        result = await payloads.stored(runtime, record.tenant_id, record.execution_id, "result", result)
        return Complete(fence=record.fence, result=result)

    async def _adopted(self, publisher: Publisher, record: ExecutionRecord) -> bool:
        """Whether an earlier attempt's publication is in place; then nothing is run again."""
        if record.publication is None:
            return False
        return record.publication.state is PublicationState.COMPLETED or await publisher.adopt(record)

    async def _parked_again(self, record: ExecutionRecord) -> bool:
        """After a re-drive: a unit whose items were all asked is parked again, not asked again."""
        if record.await_unit_id is None or not record.redrive_count:
            return False
        unit = await self.runtime.store.get(UNIT.key(record.tenant_id, record.await_unit_id))
        if unit is None or not unit.itemised or not unit.dispatch_complete or unit.status is UnitStatus.COMPLETED:
            return False
        await self._park(record, unit.step_index, unit.expected_item_count or 0)
        return True

    async def _ask_one(self, record: ExecutionRecord, terms: AwaitTerms, ask: AskOne) -> None:
        runtime = self.runtime
        payload = Payload(type_name=terms.input_type, json=ask.text, item_count=ask.item_count)
        slot = f"request.{terms.step_index}.0"
        payload = await payloads.stored(runtime, record.tenant_id, record.execution_id, slot, payload)
        request = Request(0, payload.json, digest(ask.text), ask.business_key, payload.stored_id, ask.item_count)
        parked = await runtime.store.transact(
            dispatching.scalar_reads(record, ids.unit_id(record.execution_id, terms.step_index)),
            functools.partial(
                dispatching.park_scalar,
                claimed=record,
                terms=terms,
                request=request,
                now=runtime.now(),
                policy=runtime.policy,
            ),
        )
        self._done(parked.outcome)
        if parked.asked is not None and parked.asked.first_out:
            # One that waits is counted by whoever takes it.
            runtime.metrics.interactions_dispatched.add(record.pipeline_id, terms.step_id)
        runtime.bells.queue.ring()

    async def _park(self, record: ExecutionRecord, await_index: int, count: int) -> None:
        runtime = self.runtime
        unit_id = ids.unit_id(record.execution_id, await_index)
        event = Suspend(fence=record.fence, unit_id=unit_id, step_index=record.step_index, input=record.input)
        outcome = await runtime.store.transact(
            dispatching.stream_reads(record, unit_id),
            functools.partial(
                itemised.park,
                key=EXECUTION.key_of(record),
                unit_key=UNIT.key(record.tenant_id, unit_id),
                event=event,
                expected_item_count=count,
                now=runtime.now(),
                policy=runtime.policy,
            ),
        )
        self._done(outcome)
        runtime.metrics.dispatches_complete.add(
            record.pipeline_id, runtime.program(record.pipeline_id).step(await_index).step_id
        )
        runtime.bells.sweep.ring()
        runtime.bells.queue.ring()

    def _done(self, outcome: Transition | Refused) -> None:
        if isinstance(outcome, Refused):
            if outcome.code == "source_changed":
                raise NonRetryableError(outcome.message, code=outcome.code)
            raise LostLease(outcome.message)
        self.runtime.announce(outcome.record)

    async def _note(self, lease: Lease, fact_type: FactType, key: str) -> None:
        event = NoteFact(fence=lease.record.fence, type=fact_type, key=key)
        await self._owned(lease, event)

    async def _prepare(self, lease: Lease, publication: Publication) -> None:
        await self._owned(lease, PreparePublication(fence=lease.record.fence, publication=publication))

    async def _owned(self, lease: Lease, event: AttemptEvent) -> None:
        """Commits something inside the attempt; LostLease when the fence moved."""
        done = await self.runtime.commit(lease.record.tenant_id, lease.record.execution_id, event)
        if isinstance(done.outcome, Refused):
            raise LostLease(done.outcome.message)

    async def _commit(self, lease: Lease, event: AttemptEvent) -> None:
        """The last transaction of the attempt; tried again while the store is away and the lease lasts."""
        record = lease.record
        waits = iter(COMMIT_TRIES_S)
        while True:
            try:
                done = await self.runtime.commit(record.tenant_id, record.execution_id, event)
                break
            except StoreError as error:
                wait_s = next(waits, COMMIT_TRIES_S[-1])
                self._log.warning("commit_failed", execution_id=record.execution_id, message=error.message)
                await trio.sleep(wait_s)
        if isinstance(done.outcome, Refused):
            self._log.debug("commit_refused", execution_id=record.execution_id, why=done.outcome.message)
            lease.lost = done.outcome.message
            return
        after = done.outcome.record
        if after.status.terminal and after.terminal_reason is not None:
            self._log.warning(
                "execution_ended",
                execution_id=record.execution_id,
                status=after.status,
                reason=after.terminal_reason,
                code=after.error_code,
                message=after.error_message,
            )
