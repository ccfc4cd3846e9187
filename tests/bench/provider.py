"""A lean provider, a process of its own: ``python -m tests.bench.provider URL STEP CREDIT LATENCY_S``.

It answers every request so long after it came, in arrays of what is due together, and prints its processor time at
its end. It thinks of nothing, so that the daemon is what is measured.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

import orjson
import trio
from trio_websocket import WebSocketConnection, open_websocket

from tests.bench.http_client import address


async def serve(url: str, step: str, credit: int, latency_s: float) -> None:
    """Answers until the process is told to stop."""
    host, port = address(url)
    due_send, due_recv = trio.open_memory_channel[tuple[float, list[str]]](credit)
    async with open_websocket(
        host, port, "/pipeline/interactions/stream", use_ssl=False, max_message_size=2**24
    ) as socket:
        await socket.send_message(json.dumps({"type": "subscribe", "stepIds": [step], "credit": credit}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
            nursery.start_soon(_answer, socket, due_recv)
            while True:
                message = orjson.loads(await socket.get_message())
                came_at = trio.current_time()
                asked = [
                    one["interactionId"]
                    for one in (message if isinstance(message, list) else [message])
                    if one["type"] == "request"
                ]
                if asked:
                    await due_send.send((came_at + latency_s, asked))


async def _answer(socket: WebSocketConnection, due: trio.MemoryReceiveChannel[tuple[float, list[str]]]) -> None:
    async for due_at, asked in due:
        await trio.sleep_until(due_at)
        answers = [
            {
                "type": "complete",
                "tenantId": "default",
                "interactionId": one,
                "responsePayload": {"id": one, "outcome": "approved"},
            }
            for one in asked
        ]
        await socket.send_message(orjson.dumps(answers).decode())


async def _stop_on_signal(everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            everything.cancel("told to stop")


def main() -> None:
    """Runs the provider."""
    url, step, credit, latency_s = sys.argv[1:]
    trio.run(serve, url, step, int(credit), float(latency_s))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpuS": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
