"""The stream for providers: requests out, completions in, both as single messages or arrays of them.

::

    reader ──completions──▶ admissions (at most ADMITTED_AT_ONCE) ──answers──┐
                                                                             ├──▶ outbox ──▶ writer
    the service's requests ──▶ pusher ──────────────────────────────────────┘

Everything between is bounded: a provider that does not read stops the writer, then the admissions, then the reader,
and is dropped when it has taken nothing within the send timeout. One socket holds at most one message of the size
limit, COMPLETIONS_WAITING completions, its credit's worth of requests, and the answers to what it sent.

Completions are admitted side by side, because the store commits together what comes together. What a provider had
sent before it went away is admitted all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import trio

from tpfd.codec.strict_json import parse_json
from tpfd.core.records import TenantId
from tpfd.errors import Conflict, MalformedError, NotFound, PayloadError, TimedOut, TpfdError
from tpfd.http.bodies import Members
from tpfd.http.envelopes import read_completion
from tpfd.http.guard import outcome
from tpfd.http.problems import RequestRefused, error_message, status_of
from tpfd.http.routing import Call
from tpfd.http.service import Completed, Completion, ProviderSocket
from tpfd.http.websocket import INVALID_PAYLOAD, FrameRefused, WebSocket

ADMITTED_AT_ONCE = 64
COMPLETIONS_WAITING = 256
BATCHES_WAITING = 64
MAX_FRAME_MESSAGES = 256
LINGER_S = 0.001
"""What the writer waits for company: at thousands of messages a second, arrays cost a fraction of single frames."""
MAX_CREDIT = 10_000
USUAL_CREDIT = 100
MAX_STEPS = 100


async def provider_stream(call: Call, socket: WebSocket) -> None:
    """Serves one provider until either side ends it."""
    messages: list[object] = []
    with trio.move_on_after(call.edge.settings.header_timeout_s):
        messages = _messages(await _receive_or_nothing(socket))
    if not messages:
        raise RequestRefused(408, "no_subscription", "no subscribe message came in time")
    if not isinstance(messages[0], dict) or messages[0].get("type") != "subscribe":
        raise MalformedError('the first message must be {"type":"subscribe",…}', code="not_subscribed")
    members = Members(messages[0])
    pipeline, step_ids = members.text("pipeline"), members.texts("stepIds", highest_count=MAX_STEPS)
    credit = members.whole("credit", lowest=1, highest=MAX_CREDIT, default=USUAL_CREDIT)
    tenant = call.tenant_with(members.text("tenantId"))
    members.check()
    async with call.service.attach(tenant, pipeline=pipeline, step_ids=step_ids, credit=credit) as provider:
        await _Stream(call, socket, tenant, provider).run(messages[1:])


async def _receive_or_nothing(socket: WebSocket) -> str:
    try:
        return await socket.receive()
    except trio.EndOfChannel:
        return "[]"


class _Stream:
    def __init__(self, call: Call, socket: WebSocket, tenant: TenantId, provider: ProviderSocket) -> None:
        self._service = call.service
        self._usual_actor = call.caller.name
        self._socket = socket
        self._tenant = tenant
        self._provider = provider
        self._outbox_send, self._outbox_recv = trio.open_memory_channel[list[bytes]](BATCHES_WAITING)
        self._completion_send, self._completion_recv = trio.open_memory_channel[Completion](COMPLETIONS_WAITING)
        self._admitting = 0
        self._reading_is_over = False
        self._receiving = trio.CancelScope()
        self._pushing = trio.CancelScope()
        self._failure: TpfdError | None = None

    async def run(self, messages: list[object]) -> None:
        """Runs until the provider is gone, breaks the protocol, or its requests cannot be had."""
        async with trio.open_nursery() as delivery:
            delivery.start_soon(self._write)
            async with self._outbox_send, trio.open_nursery() as work:
                work.start_soon(self._push)
                try:
                    await self._read(messages, work)
                except trio.EndOfChannel:
                    pass
                except FrameRefused as refused:
                    self._failure = refused
                self._pushing.cancel("the provider is gone")
        if self._failure is not None:
            raise self._failure

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _read(self, messages: list[object], work: trio.Nursery) -> None:
        while True:
            for message in messages:
                await self._take(message, work)
            with trio.CancelScope() as self._receiving:
                if self._reading_is_over:
                    return
                messages = _messages(await self._socket.receive())
            if self._receiving.cancelled_caught:
                return

    def _stop_reading(self, reason: str) -> None:
        """Ends the waiting for the next frame; what has come already is taken to its end."""
        self._reading_is_over = True
        self._receiving.cancel(reason)

    async def _take(self, message: object, work: trio.Nursery) -> None:
        kind = message.get("type") if isinstance(message, dict) else None
        members = Members(message)
        if kind == "complete":
            try:
                if members.text("tenantId") not in {None, self._tenant}:
                    raise NotFound("no such interaction")  # as for any other tenant's
                completion = read_completion(members, self._tenant, usual_actor=self._usual_actor)
            except TpfdError as error:
                await self._say(_rejected(members.text("interactionId"), members.text("correlationId"), error))
                return
            await self._completion_send.send(completion)
            if self._admitting < ADMITTED_AT_ONCE:
                self._admitting += 1
                work.start_soon(self._admit)
        elif kind == "credit":
            count = members.whole("credit", lowest=1, highest=MAX_CREDIT)
            if members.problems:
                await self._say(error_message(PayloadError(members.problems)))
            else:
                self._provider.add_credit(count)
        elif kind == "subscribe":
            await self._say(error_message(Conflict("this socket has subscribed already", code="already_subscribed")))
        else:
            unknown = MalformedError('"type" must be complete, credit or subscribe', code="unknown_message")
            await self._say(error_message(unknown))

    async def _admit(self) -> None:
        """Admits completions as long as some are waiting."""
        try:
            while True:
                try:
                    completion = self._completion_recv.receive_nowait()
                except trio.WouldBlock:
                    return
                await self._say(await self._answer(completion))
        finally:
            self._admitting -= 1

    async def _answer(self, completion: Completion) -> Mapping[str, object]:
        done = await outcome(self._service.complete(completion), "completion on a WebSocket")
        if isinstance(done, Completed):
            self._provider.answered(done.interaction_id)
            return {
                "type": "completed",
                "interactionId": done.interaction_id,
                "executionId": done.execution_id,
                "duplicate": done.duplicate,
            }
        if isinstance(done, (NotFound, Conflict, TimedOut)) and completion.interaction_id is not None:
            self._provider.answered(completion.interaction_id)  # it takes no other answer either
        return _rejected(completion.interaction_id, completion.correlation_id, done)

    # --- out --------------------------------------------------------------------------------------------------------

    async def _say(self, message: Mapping[str, object]) -> None:
        await self._outbox_send.send([orjson.dumps(message)])

    async def _push(self) -> None:
        """Passes the service's requests on."""
        with self._pushing:
            try:
                while True:
                    await self._outbox_send.send(await self._provider.next_requests())
            except TpfdError as error:
                self._failure = error
                self._stop_reading("there are no more requests to be had")

    async def _write(self) -> None:
        """Sends what is ready together. Once the provider is gone, what is left is dropped."""
        gone = False
        async for batch in self._outbox_recv:
            if gone:
                continue
            await trio.sleep(LINGER_S)
            while len(batch) < MAX_FRAME_MESSAGES:
                try:
                    batch.extend(self._outbox_recv.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            try:
                for start in range(0, len(batch), MAX_FRAME_MESSAGES):
                    await self._socket.send(_frame(batch[start : start + MAX_FRAME_MESSAGES]))
            except trio.BrokenResourceError:
                gone = True
                self._stop_reading("the provider is gone")


def _messages(frame: str) -> list[object]:
    try:
        data = parse_json(frame)
    except MalformedError as error:
        raise FrameRefused(INVALID_PAYLOAD, error.code, error.message) from error
    return data if isinstance(data, list) else [data]


def _frame(messages: list[bytes]) -> str:
    return (messages[0] if len(messages) == 1 else b"[%b]" % b",".join(messages)).decode()


def _rejected(interaction_id: str | None, correlation_id: str | None, error: TpfdError) -> dict[str, object]:
    return {
        **error_message(error),
        "type": "rejected",
        "interactionId": interaction_id,
        "correlationId": correlation_id,
        "status": status_of(error),
    }
