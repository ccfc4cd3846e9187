"""The fact feed: facts as they happen, resumable by their sequence numbers.

The feed is pulled: the next page is read from the journal only when the one before was taken by the client. So a
client that does not read costs one page; when it has not taken it within the send timeout it is dropped, and may come
back with the last sequence number that it saw.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import trio

from tpfd.core.records import SequencedFact
from tpfd.errors import TpfdError
from tpfd.http.envelopes import fact_view
from tpfd.http.routing import Call
from tpfd.http.websocket import FrameRefused, WebSocket

PAGE_COUNT = 256
FILTERED_PAUSE_S = 0.1
"""Pause after facts that were all for others, so that their pace is not ours."""


async def event_stream(call: Call, socket: WebSocket) -> None:
    """Sends facts until either side ends it."""
    await _Feed(call, socket).run()


class _Feed:
    """Reads the journal on from where it stopped."""

    def __init__(self, call: Call, socket: WebSocket) -> None:
        self._service = call.service
        self._socket = socket
        self._tenant = call.tenant
        self._execution_id = call.query.text("executionId")
        self._pipeline = call.query.text("pipeline")
        self._from_now = call.query.text("after") == "now"
        self._after = 0 if self._from_now else call.query.sequence("after")
        self._failure: TpfdError | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            try:
                if self._from_now:
                    self._after = await self._service.journal_end()
                    # A client that is cut off before its first fact can then come back to this place.
                    await self._socket.send(orjson.dumps({"type": "FeedStarted", "seq": self._after}).decode())
                while True:
                    await self._socket.send(_message(await self._next_facts()))
            except trio.BrokenResourceError:
                pass  # the client is gone or does not read
            except TpfdError as error:
                self._failure = error
            nursery.cancel_scope.cancel("the feed has ended")
        if self._failure is not None:
            raise self._failure

    async def _listen(self, feed_scope: trio.CancelScope) -> None:
        """Answers pings and notices the close; a feed has nothing else to be told."""
        try:
            while True:
                await self._socket.receive()
        except trio.EndOfChannel:
            pass
        except FrameRefused as refused:
            self._failure = refused
        feed_scope.cancel("the client has ended the feed")

    async def _next_facts(self) -> tuple[SequencedFact, ...]:
        """Waits for the next facts that pass the filter; at least one."""
        while True:
            page = await self._service.feed(
                self._tenant,
                execution_id=self._execution_id,
                pipeline=self._pipeline,
                after=self._after,
                limit=PAGE_COUNT,
            )
            for_others_only = page.scanned_seq > self._after
            self._after = page.scanned_seq
            if page.facts:
                return page.facts
            if for_others_only:
                await trio.sleep(FILTERED_PAUSE_S)
            else:
                await self._service.wait_facts(self._after)


def _message(facts: Sequence[SequencedFact]) -> str:
    views = [fact_view(fact) for fact in facts]
    return orjson.dumps(views[0] if len(views) == 1 else views).decode()
