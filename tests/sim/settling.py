"""Peace: nothing goes wrong any more. Everything must come to its end, and the account must be right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import trio
from attrs import define, field

from tests.engine.world import TENANT, World
from tests.sim.clients import Accepted, Clients
from tests.sim.hinted import UnreliableSqs, held_by
from tests.sim.invariants import Invariants
from tests.sim.nemesis import Nemesis
from tests.sim.pipelines import Scenario
from tests.sim.providers import Channel
from tests.sim.watched import WatchedStore
from tpfd import payloads
from tpfd.core.awaits import answer_of
from tpfd.core.kinds import EXECUTION, INTERACTION, KINDS, LATE, PERMIT, SOCKET, UNIT
from tpfd.core.records import (
    ExecutionId,
    ExecutionRecord,
    ExecutionStatus,
    FactType,
    InteractionStatus,
    JsonText,
    UnitStatus,
)

S = ExecutionStatus
ROUND_S = 240.0
"""Time in which everything must have ended: the longest deadline, and what clocks that were ahead have left behind."""
IDLE_S = 60.0
"""Time in which the last hints must have gone: pollers that met failures pause for half of it."""
ROUNDS = 4
"""Re-drives after which an execution that can succeed has."""


@define(eq=False, kw_only=True)
class Settling:
    """Brings a run to its end and checks what has come of it."""

    store: WatchedStore
    world: World
    scenarios: Mapping[str, Scenario]
    clients: Clients
    channel: Channel
    nemesis: Nemesis
    invariants: Invariants
    sqs: UnreliableSqs | None
    _answers: dict[str, Any] = field(factory=dict)

    async def run(self) -> None:
        """Re-drives what has failed until everything has succeeded or was cancelled, then checks."""
        while len(self.clients.accepted) < len(self.clients.batches):
            # The last submits may still be on their way.
            await trio.sleep(1.0)
        for _ in range(ROUNDS):
            if not await self._ended():
                return
            bad = [one for one in self._roots() if one.status in (S.FAILED, S.DLQ, S.REMOTE_OUTCOME_UNKNOWN)]
            for record in bad:
                await self.nemesis.redrive(record)
            if not bad:
                break
        for record in self._roots():
            if record.status not in (S.SUCCEEDED, S.CANCELLED):
                self._violate(f"cannot be brought to its end: {record}")
        # What sockets and sweeps have still to put away.
        await trio.sleep(2 * self.world.policy.lease_ms / 1000)
        await self._no_hint_is_left()
        await self._check()

    async def remove(self) -> None:
        """Waits until everything is too old to be kept; then nothing may be left of it."""
        policy = self.world.policy
        await trio.sleep(max(policy.succeeded_ttl_ms, policy.failed_ttl_ms) / 1000 + ROUND_S)
        for kind in KINDS:
            if kind is PERMIT:
                continue  # as many rows as there are slots, whatever runs
            for record in self.store.rows(kind):
                if kind is SOCKET and record.socket_id in self._living():
                    continue  # a link lives as long as its process
                self._violate(f"its time is over, and it is still there: {record}")
        for sequenced in await self.store.feed(after=0, limit=1):
            self._violate(f"its time is over, and its history is still there: {sequenced}")

    def _violate(self, what: str) -> None:
        self.invariants.violate(what)

    def _roots(self) -> list[ExecutionRecord]:
        return [one for one in self.store.rows(EXECUTION) if one.parent_execution_id is None]

    async def _ended(self) -> bool:
        with trio.move_on_after(ROUND_S):
            while busy := self._busy():
                await trio.sleep(1.0)
            return True
        self._violate("after all this time there is still work to do:\n    " + "\n    ".join(busy))
        return False

    def _busy(self) -> list[str]:
        return [
            str(one)
            for one in self.store.rows(EXECUTION)
            if not (one.status.terminal or one.status is S.REMOTE_OUTCOME_UNKNOWN)
            or one.dead_letter_due
            or one.cleanup_due
        ]

    async def _no_hint_is_left(self) -> None:
        """Nothing is to be done any more, so hints that arrive are deleted, and nobody holds one."""
        if self.sqs is None:
            return
        with trio.move_on_after(IDLE_S):
            while self._hints_left():
                await trio.sleep(1.0)
            return
        self._violate("hints of what has ended are left:\n    " + "\n    ".join(self._hints_left()))

    def _hints_left(self) -> list[str]:
        assert self.sqs is not None
        left = [str(one) for one in self.sqs.shown()]
        for replica in self.nemesis.hosts.replicas:
            held = held_by(replica.process)
            assert held is not None
            left += [f"{replica.name} holds {message}" for message, _ in held._held.values()]
        return left

    # ── the account ──

    async def _check(self) -> None:
        for trouble in self.clients.trouble:
            self._violate(trouble)
        await self._read_answers()
        self._nothing_is_left_open()
        self._what_was_told_is_true()
        for execution_id, accepted in self.clients.accepted.items():
            record = self.store.get_now(EXECUTION.key(TENANT, execution_id))
            if record is None:
                self._violate(f"{execution_id} was accepted and is gone")
                continue
            await self._check_history(record)
            if record.status is S.SUCCEEDED:
                await self._check_output(record, accepted)

    async def _check_history(self, record: ExecutionRecord) -> None:
        """What a person reads tells of its beginning and its end, once each."""
        facts = await self.store.history(TENANT, record.execution_id, after=0, limit=10_000)
        told = Counter(sequenced.fact.type for sequenced in facts)
        succeeded, cancelled = record.status is S.SUCCEEDED, record.status is S.CANCELLED
        for fact_type, count in (
            (FactType.RUN_SUBMITTED, 1),
            (FactType.RUN_SUCCEEDED, int(succeeded)),
            (FactType.RUN_CANCELLED, int(cancelled)),
            (FactType.PUBLICATION_COMPLETED, int(succeeded and record.publication is not None)),
            (FactType.RUN_REDRIVEN, record.redrive_count),
        ):
            if told[fact_type] != count:
                self._violate(f"its history tells of {told[fact_type]} {fact_type}, and it is {record}")

    def _nothing_is_left_open(self) -> None:
        for interaction in self.store.rows(INTERACTION):
            if interaction.status.open:
                self._violate(f"open below an execution that has ended: {interaction}")
        for unit in self.store.rows(UNIT):
            if unit.status is UnitStatus.WAITING_EXTERNAL:
                self._violate(f"a unit still waits: {unit}")
        living = self._living()
        for row in self.store.rows(SOCKET):
            # One that was written by a clock that ran ahead may have to wait still.
            over = row.expires_epoch_ms + self.world.settings.sweep_interval_ms < self.nemesis.hosts.now_ms()
            if over and row.socket_id not in living:
                self._violate(f"a socket's row has outlived it: {row}")

    def _living(self) -> set[str]:
        """The sockets of the processes that run."""
        return {
            socket.socket_id
            for replica in self.nemesis.hosts.replicas
            for socket in replica.process.sockets._sockets.values()
        }

    def _what_was_told_is_true(self) -> None:
        for execution_id in self.nemesis.cancelled:
            record = self.store.get_now(EXECUTION.key(TENANT, execution_id))
            if record is None or record.status is not S.CANCELLED:
                self._violate(f"its cancel was acknowledged, but it is {record}")
        for execution_id, redrive_count in self.nemesis.redriven.items():
            record = self.store.get_now(EXECUTION.key(TENANT, execution_id))
            if record is None or record.redrive_count < redrive_count:
                self._violate(f"its re-drive {redrive_count} was acknowledged, but it is {record}")
        kept = {late.interaction_id for late in self.store.rows(LATE)}
        for name in sorted(self.channel.refused - kept):
            self._violate(f"an answer to {name} was refused and not kept")
        for name, payload in self.channel.admitted.items():
            if self._answers.get(name) != payload:
                self._violate(f"{name}: {payload} was acknowledged, {self._answers.get(name)} stands")

    async def _read_answers(self) -> None:
        process = await self.nemesis.hosts.any()
        for record in self.store.rows(INTERACTION):
            if record.status is InteractionStatus.COMPLETED:
                text = await payloads.text_of(process.runtime, TENANT, answer_of(record))
                self._answers[record.interaction_id] = json.loads(text)

    async def _check_output(self, record: ExecutionRecord, accepted: Accepted) -> None:
        scenario = self.scenarios[accepted.pipeline]
        wanted = scenario.expected(
            ExecutionId(record.execution_id), accepted.name, accepted.count, self._answers.__getitem__
        )
        rows = await self._rows(record)
        if not scenario.ordered:
            wanted, rows = (sorted(some, key=json.dumps) for some in (wanted, rows))
        if rows != wanted:
            self._violate(f"the output of {record.execution_id} is\n    {rows}\nand should be\n    {wanted}")

    async def _rows(self, record: ExecutionRecord) -> list[Any]:
        """The output as rows, wherever it is."""
        if record.publication is not None:
            key = record.publication.object_key
            placed_count = [one.key for one in self.world.disk.placed].count(key)
            if placed_count != 1:
                self._violate(f"{key} was put in place {placed_count} times")
            lines = [line.split(",", 1) for line in self.world.disk.lines(key)]
            return [{"number": int(number), "text": text.strip('"')} for number, text in lines]
        process = await self.nemesis.hosts.any()
        text: str | None = await process.coordinator.result_json(record)
        found = json.loads(JsonText(text or "null"))
        return found if isinstance(found, list) else [found]
