"""One daemon without its HTTP edge, and a client's way to it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from attrs import define, field

from tests.engine.gate import Gate
from tpfd.awaits.sessions import Sessions
from tpfd.core.records import ExecutionId, ExecutionRecord, TenantId
from tpfd.daemon.dispatching import Hinting
from tpfd.dispatch.memory import MemoryRejects
from tpfd.engine.attempts import Attempts
from tpfd.engine.claims import ClaimLoop
from tpfd.engine.hints import HintPoller
from tpfd.engine.leases import LeaseKeeper
from tpfd.engine.sweeper import Sweeper
from tpfd.engine.tidying import Tidying
from tpfd.http.service import Completed, Completion, SubmitItem, Submitted
from tpfd.runtime import Runtime
from tpfd.service.coordinator import Coordinator
from tpfd.service.submitting import Submitting
from tpfd.transports.websocket import ProviderSockets

if TYPE_CHECKING:
    from tests.engine.world import World

T = TypeVar("T")
TENANT = TenantId("t1")


class Lost(Exception):
    """The process died during the call."""


@define(eq=False, kw_only=True)
class Process:
    """One daemon without its edge.

    Attributes:
        hinting: work over hints between processes; None: it stays in this one.
        hints: receives them.
    """

    world: World
    gate: Gate
    runtime: Runtime
    sessions: Sessions
    keeper: LeaseKeeper
    attempts: Attempts
    claims: ClaimLoop
    sweeper: Sweeper
    tidying: Tidying
    sockets: ProviderSockets
    rejects: MemoryRejects
    submitting: Submitting
    coordinator: Coordinator
    hinting: Hinting | None
    hints: HintPoller | None
    draining: trio.Event
    grace_s: float = 20.0
    ended: trio.Event = field(factory=trio.Event)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _connections: list[trio.CancelScope] = field(factory=list)

    async def run(self, *, task_status: trio.TaskStatus[Process] = trio.TASK_STATUS_IGNORED) -> None:
        """The nursery tree of the daemon, with its drain."""
        with self._scope:
            async with trio.open_nursery() as services:
                services.start_soon(self.keeper.run)
                services.start_soon(self.sockets.run)
                if self.hinting is not None:
                    services.start_soon(self.hinting.run)
                async with trio.open_nursery() as work:
                    async with trio.open_nursery() as intake:
                        intake.start_soon(self.claims.run, work)
                        if self.hints is not None:
                            work.start_soon(self.hints.run, work)
                        intake.start_soon(self.sweeper.run)
                        intake.start_soon(self.tidying.run)
                        task_status.started(self)
                        await self.draining.wait()
                        self.runtime.bells.ring_all()
                        self.attempts.release_live()
                        intake.cancel_scope.cancel("drain")
                    with trio.move_on_after(self.grace_s):
                        await self.claims.idle()
                        if self.hints is not None:
                            await self.hints.idle()
                    await self._close_edge()
                    work.cancel_scope.cancel("the drain's grace is over")
                services.cancel_scope.cancel("the daemon has drained")
        self.ended.set()

    async def _close_edge(self) -> None:
        """Ends what clients have asked for; as in the daemon, no request outlives the nursery of the work."""
        for connection in self._connections:
            connection.cancel("the edge is closed")
        while self._connections:
            await trio.sleep(0.01)

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
