"""Following the fact feed: in order, each once, over lost connections."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from tpfd.client import ServerRefused
from tpfd.client.feed import Fact, Feed
from tpfd.client.sockets import NotConnected, backoff_s

Script = Callable[[WebSocketConnection, str], Awaitable[None]]


def fact(seq: int, fact_type: str = "SegmentCompleted") -> Fact:
    return {
        "seq": seq,
        "type": fact_type,
        "atEpochMs": 1_700_000_000_000 + seq,
        "executionId": "e-1",
        "pipelineId": "p",
        "key": str(seq),
        "data": {},
    }


@asynccontextmanager
async def events(*scripts: Script) -> AsyncIterator[tuple[str, list[str]]]:
    """A daemon's feed: its address, and the paths it was asked for."""
    paths: list[str] = []

    async def attend(request: WebSocketRequest) -> None:
        script = scripts[min(len(paths), len(scripts) - 1)]
        paths.append(request.path)
        socket = await request.accept()
        with contextlib.suppress(ConnectionClosed):  # the client has seen enough
            await script(socket, request.path)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, attend, "127.0.0.1", 0, None)
        yield f"http://127.0.0.1:{server.port}", paths
        nursery.cancel_scope.cancel(reason="the test is over")


async def send(socket: WebSocketConnection, frame: Any) -> None:
    await socket.send_message(orjson.dumps(frame).decode())


def feed(url: str, *, after: int | None = 0, said: list[str] | None = None) -> Feed:
    return Feed(
        url=url,
        tenant="t",
        token=None,
        execution_id="e-1",
        pipeline=None,
        after=after,
        say=(said if said is not None else []).append,
        dice=random.Random(1),
    )


async def until(count: int, subject: Feed) -> list[int]:
    seen: list[int] = []

    async def take(facts: list[Fact]) -> bool:
        seen.extend(one["seq"] for one in facts)
        return len(seen) >= count

    with trio.fail_after(30):
        await subject.follow(take)
    return seen


async def test_facts_come_alone_and_in_arrays_and_a_loss_goes_on_where_it_was() -> None:
    async def first(socket: WebSocketConnection, path: str) -> None:
        await send(socket, fact(4))
        await send(socket, [fact(5), fact(6)])
        await socket.aclose(1012, "the daemon restarts")

    async def second(socket: WebSocketConnection, path: str) -> None:
        await send(socket, [fact(7)])
        await socket.get_message()

    said: list[str] = []
    async with events(first, second) as (url, paths):
        assert await until(4, feed(url, after=3, said=said)) == [4, 5, 6, 7]
    assert paths == ["/pipeline/events?after=3&executionId=e-1", "/pipeline/events?after=6&executionId=e-1"]
    assert said == ["the daemon closed the connection (1012 the daemon restarts); trying until it is back"]


async def test_a_feed_from_now_comes_back_to_where_it_began_though_it_had_no_fact_yet() -> None:
    async def first(socket: WebSocketConnection, path: str) -> None:
        await send(socket, {"type": "FeedStarted", "seq": 41})
        await socket.aclose(1012)

    async def second(socket: WebSocketConnection, path: str) -> None:
        await send(socket, fact(42))
        await socket.get_message()

    async with events(first, second) as (url, paths):
        assert await until(1, feed(url, after=None)) == [42]
    assert [path.partition("&")[0] for path in paths] == ["/pipeline/events?after=now", "/pipeline/events?after=41"]


async def test_a_daemon_that_is_not_there_at_the_start_is_an_error() -> None:
    async def nothing(socket: WebSocketConnection, path: str) -> None:
        await socket.get_message()

    async with events(nothing) as (url, _):
        pass
    with pytest.raises(NotConnected, match="cannot reach"):
        await until(1, feed(url))


@pytest.mark.parametrize(
    ("status", "error"), [(401, ServerRefused), (404, ServerRefused), (429, NotConnected), (503, NotConnected)]
)
async def test_a_refused_handshake_is_told_apart_by_its_status(status: int, error: type[Exception]) -> None:
    async def refuse(request: WebSocketRequest) -> None:
        await request.reject(status, body=b'{"title": "No", "code": "no", "detail": "not you"}')

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, refuse, "127.0.0.1", 0, None)
        with pytest.raises(error, match="not you" if error is ServerRefused else str(status)):
            await until(1, feed(f"http://127.0.0.1:{server.port}"))
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_feed_that_is_cancelled_says_good_bye() -> None:
    closed: list[int] = []
    waiting = trio.Event()

    async def wait(socket: WebSocketConnection, path: str) -> None:
        waiting.set()
        with pytest.raises(ConnectionClosed) as end:
            await socket.get_message()
        assert end.value.reason is not None
        closed.append(end.value.reason.code)

    async with events(wait) as (url, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until, 1, feed(url))
            await waiting.wait()
            nursery.cancel_scope.cancel(reason="enough")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert closed == [1000]


async def test_something_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpfd.client.sockets.CONNECT_TIMEOUT_S", 0.05)

    async def silence(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), silence, 0)
        port = listener.socket.getsockname()[1]
        with pytest.raises(NotConnected, match="did not answer the handshake"):
            await until(1, feed(f"http://127.0.0.1:{port}"))
        nursery.cancel_scope.cancel(reason="the test is over")


def test_the_backoff_grows_to_its_cap_and_is_spread_downwards() -> None:
    assert [backoff_s(attempt, 1.0) for attempt in (1, 2, 3, 6, 7, 10**9)] == [0.1, 0.2, 0.4, 2.0, 2.0, 2.0]
    assert backoff_s(1, 0.0) == pytest.approx(0.05)


async def test_as_a_command_it_prints_json_lines_until_a_signal() -> None:
    async def some(socket: WebSocketConnection, path: str) -> None:
        await send(socket, [fact(1), fact(2)])
        await socket.get_message()

    async with events(some) as (url, paths):
        command = [sys.executable, "-m", "tpfd.cli.main", "--url", url, "--output", "json", "watch", "--pipeline", "p"]
        with trio.fail_after(60):
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            async with process.stdout:
                out = b""
                while out.count(b"\n") < 2:
                    out += await process.stdout.receive_some()
                process.send_signal(2)
                assert await process.wait() == 130
    assert [orjson.loads(line)["seq"] for line in out.splitlines()] == [1, 2]
    assert paths == ["/pipeline/events?after=now&pipeline=p"]
