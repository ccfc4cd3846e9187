"""What stands around the processes of a scenario: a folder whose objects become executions, a receiver of webhooks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import trio
from attrs import define, field

from tests.engine.gate import Gate
from tests.engine.process import TENANT, Process
from tests.engine.provider import Envelope
from tests.objects.unasked import Unasked
from tpfd.core.records import ExecutionId, TenantId
from tpfd.objects.ingest import Ingest
from tpfd.objects.protocol import AfterAction, AfterKind, ListedObject, Page
from tpfd.program import Program
from tpfd.transports.webhook import WebhookSender
from tpfd.transports.webhook_message import WebhookMessage
from tpfd.transports.webhook_replies import NotNow, Reply, Taken
from tpfd.transports.webhook_target import WebhookTarget

HOOK = WebhookTarget(
    scheme="https",
    host="hooks.example",
    port=443,
    path="/ask",
    method="POST",
    headers=(),
    timeout_ms=2_000,
    callback=None,
)


@define(eq=False)
class Folder:
    """Objects that outlive every process.

    Attributes:
        done: keys of those that were deleted, in order.
    """

    objects: dict[str, Mapping[str, object]] = field(factory=dict)
    done: list[str] = field(factory=list)


@define(eq=False)
class FolderSource(Unasked):
    """A folder as one process sees it."""

    folder: Folder
    gate: Gate

    async def list_page(self, limit: int, after: str | None) -> Page:
        await trio.lowlevel.checkpoint()
        assert after is None
        assert len(self.folder.objects) < limit
        listed = tuple(
            ListedObject(key=key, size_bytes=1, modified_epoch_ms=0, etag="1", settled=True)
            for key in sorted(self.folder.objects)
        )
        return Page(objects=listed, next_after=None)

    async def identity(self, listed: ListedObject) -> str:
        await trio.lowlevel.checkpoint()
        return hashlib.sha256(listed.key.encode()).hexdigest()

    async def after(self, listed: ListedObject, action: AfterAction) -> bool:
        assert action.kind is AfterKind.DELETE

        async def delete() -> bool:
            if self.folder.objects.pop(listed.key, None) is None:
                return False
            self.folder.done.append(listed.key)
            return True

        return await self.gate.effect("delete", delete)

    async def read(self, listed: ListedObject) -> object:
        await trio.lowlevel.checkpoint()
        return self.folder.objects[listed.key]


def ingest(process: Process, folder: Folder, program: Program) -> Ingest:
    """What takes the objects of a folder in, in one process. They are deleted when their execution has succeeded."""
    objects = FolderSource(folder, process.gate)

    async def submit(
        tenant_id: TenantId, source: str, listed: ListedObject, data: object, identity: str
    ) -> tuple[ExecutionId, bool]:
        return await process.submitting.ingest(tenant_id, program, source, listed.key, data, identity, keep=False)

    return Ingest(
        name="test/folder",
        tenant_id=TENANT,
        source=objects,
        read=objects.read,
        submit=submit,
        store=process.runtime.store,
        after=AfterAction(kind=AfterKind.DELETE),
        poll_interval_ms=1_000,
        batch_size=50,
        trouble=process.runtime.trouble,
    )


@define(eq=False)
class Receiver:
    """Takes webhooks: each request the second time it comes, and answers it a while later, somewhere else.

    Attributes:
        answer: gives an answer to a process that takes calls.
        asked: how often each interaction came.
    """

    nursery: trio.Nursery
    answer: Callable[[Envelope], Awaitable[None]]
    asked: Counter[str] = field(factory=Counter)

    async def receive(self, gate: Gate, message: WebhookMessage) -> Reply:
        """A request as one process sends it."""
        envelope: Envelope = json.loads(message.body)

        async def arrive() -> Reply:
            self.asked[envelope["interactionId"]] += 1
            if self.asked[envelope["interactionId"]] == 1:
                return NotNow("503", floor_ms=0)
            self.nursery.start_soon(self._call_back, envelope)
            return Taken()

        return await gate.effect("send", arrive)

    async def _call_back(self, envelope: Envelope) -> None:
        await trio.sleep(2)
        await self.answer(envelope)

    async def serve(self, process: Process, program: Program, step_id: str) -> None:
        """Sends the webhooks of a process, for ever."""

        async def send(message: WebhookMessage) -> Reply:
            return await self.receive(process.gate, message)

        sender = WebhookSender(
            runtime=process.runtime,
            pipeline_id=program.pipeline_id,
            step_id=step_id,
            target=HOOK,
            envelopes=process.sockets.envelopes,
            send=send,
            give_up=process.coordinator.admission.give_up,
            concurrency=2,
        )
        async with trio.open_nursery() as work:
            await sender.run(work)
