"""The load client, a process of its own: ``python -m tests.bench.load KIND URL …``; prints what it measured as JSON.

::

    submit URL COUNT IN_FLIGHT BATCH     submits tickets, one per request or BATCH per request
    complete URL FILE IN_FLIGHT          completes the interactions that stand in the file, over HTTP
    stream URL FILE IN_FLIGHT STEP       the same over one provider socket, in arrays
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import trio
from trio_websocket import open_websocket

from tests.bench.figures import percentile
from tests.bench.http_client import Exchange, address

INPUT_BYTES = 200
FRAME_COUNT = 64
DECISION = {"outcome": "approved"}


def ticket(number: int) -> dict[str, str]:
    """An input whose JSON has `INPUT_BYTES`."""
    value = {"id": f"ticket-{number:09d}", "note": ""}
    value["note"] = "n" * (INPUT_BYTES - len(json.dumps(value, separators=(",", ":"))))
    return value


def read_names(file: str) -> list[str]:
    """The interaction ids that stand in a file."""
    return Path(file).read_text(encoding="utf-8").split()


def completion(interaction_id: str) -> dict[str, object]:
    """The answer to one interaction."""
    return {"interactionId": interaction_id, "responsePayload": {"id": interaction_id, **DECISION}}


async def post_all(url: str, path: str, bodies: Sequence[bytes], in_flight: int, expected: int) -> list[float]:
    """Sends all bodies over `in_flight` connections; seconds until each answer."""
    took_s: list[float] = []
    waiting: Iterator[bytes] = iter(bodies)

    async def work() -> None:
        async with Exchange(url) as exchange:
            for body in waiting:
                began_s = time.perf_counter()
                status, answer = await exchange.post(path, body)
                took_s.append(time.perf_counter() - began_s)
                if status != expected:
                    raise SystemExit(f"{path}: {status} {answer[:500]!r}")
                if expected == 200 and b'"status":4' in answer:
                    raise SystemExit(f"{path}: one of the batch was refused: {answer[:500]!r}")

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(work)
    return took_s


async def submit(url: str, count: str, in_flight: str, batch: str) -> dict[str, float]:
    """Submits tickets."""
    inputs, size = [ticket(number) for number in range(int(count))], int(batch)
    if size == 1:
        path, expected = "/pipeline/run-async", 202
        bodies = [json.dumps(one).encode() for one in inputs]
    else:
        path, expected = "/pipeline/run-async/batch", 200
        bodies = [
            json.dumps([{"input": one} for one in inputs[first : first + size]]).encode()
            for first in range(0, len(inputs), size)
        ]
    return await timed(url, path, bodies, int(in_flight), expected)


async def complete(url: str, file: str, in_flight: str) -> dict[str, float]:
    """Completes interactions over HTTP."""
    names = read_names(file)
    bodies = [json.dumps(completion(name)).encode() for name in names]
    return await timed(url, "/pipeline/interactions/complete", bodies, int(in_flight), 200)


async def timed(url: str, path: str, bodies: Sequence[bytes], in_flight: int, expected: int) -> dict[str, float]:
    """Sends all bodies and measures."""
    began_epoch_ms = time.time() * 1000
    took_s = await post_all(url, path, bodies, in_flight, expected)
    return {
        "beganEpochMs": began_epoch_ms,
        "endedEpochMs": time.time() * 1000,
        "p50Ms": percentile(took_s, 0.5) * 1000,
        "p99Ms": percentile(took_s, 0.99) * 1000,
    }


async def stream(url: str, file: str, in_flight: str, step: str) -> dict[str, float]:
    """Completes interactions over a provider socket; at most `in_flight` are unanswered."""
    names = read_names(file)
    places = trio.Semaphore(int(in_flight))
    unanswered = len(names)
    host, port = address(url)
    async with open_websocket(
        host, port, "/pipeline/interactions/stream", use_ssl=False, max_message_size=2**24
    ) as socket:
        await socket.send_message(json.dumps({"type": "subscribe", "stepIds": [step], "credit": 1}))

        async def send() -> None:
            for first in range(0, len(names), FRAME_COUNT):
                page = names[first : first + FRAME_COUNT]
                for _ in page:
                    await places.acquire()
                await socket.send_message(json.dumps([{"type": "complete", **completion(name)} for name in page]))

        began_epoch_ms = time.time() * 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while unanswered:
                message = json.loads(await socket.get_message())
                for one in message if isinstance(message, list) else [message]:
                    if one["type"] != "completed":
                        raise SystemExit(f"the daemon said {one}")
                    unanswered -= 1
                    places.release()
        ended_epoch_ms = time.time() * 1000
    return {"beganEpochMs": began_epoch_ms, "endedEpochMs": ended_epoch_ms}


Load = Callable[..., Awaitable[dict[str, float]]]
KINDS: dict[str, Load] = {"submit": submit, "complete": complete, "stream": stream}


def main() -> None:
    """Runs one kind of load."""
    kind, *arguments = sys.argv[1:]
    measured = trio.run(KINDS[kind], *arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    measured["cpuS"] = used.ru_utime + used.ru_stime
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
