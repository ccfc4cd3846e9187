"""Slow, mute and endless clients at a real daemon: they hold up neither others nor the drain, and fill no memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from tests.e2e.processes import WITHIN_S, Daemon, configure, serving, wait_until
from tests.http.raw import UPGRADE, ends, get, post

SLOW_COUNT = 30
ROOM_BYTES = 48 * 2**20
LIMITS = {"header-timeout": "PT1S", "request-timeout": "PT2S", "max-body": "17MiB"}


def peak_bytes(daemon: Daemon) -> int:
    """The most memory that the daemon has held so far."""
    for line in Path(f"/proc/{daemon.pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


async def connect(daemon: Daemon) -> trio.SocketStream:
    host, _, port = daemon.address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def upgrade(daemon: Daemon, path: str) -> trio.SocketStream:
    """A WebSocket of which nobody reads more than the handshake."""
    stream = await connect(daemon)
    await stream.send_all(get(path, *UPGRADE))
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive_some(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    return stream


async def send_a_header_byte_by_byte(daemon: Daemon) -> None:
    async with await connect(daemon) as stream:

        async def send() -> None:
            await stream.send_all(b"x")
            await trio.sleep(0.1)

        await until_shut_out(send)


async def promise_a_body_and_stall(daemon: Daemon) -> None:
    async with await connect(daemon) as stream:
        await stream.send_all(post(b"", "Content-Length: 1000"))
        assert await ends(stream)


async def send_without_end(daemon: Daemon, task_status: trio.TaskStatus[None]) -> None:
    """Fragments of one message that never comes to its end."""
    async with await upgrade(daemon, "/pipeline/interactions/stream") as stream:
        size_and_mask = (65536).to_bytes(8, "big") + b"\0\0\0\0"
        await stream.send_all(b"\x01\xff" + size_and_mask + bytes(65536))
        task_status.started()
        await until_shut_out(lambda: stream.send_all(b"\x00\xff" + size_and_mask + bytes(65536)))


async def until_shut_out(send: Callable[[], Awaitable[None]]) -> None:
    """Sends again and again, until the other side has closed."""
    while True:
        try:
            await send()
        except trio.BrokenResourceError:
            return


async def test_a33_slow_and_endless_clients_cost_the_others_nothing(tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    config = configure(tmp_path, "a", "hold.yaml", http=LIMITS)
    async with serving(tmp_path, config) as daemon:
        before = peak_bytes(daemon)
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as slow:
                await slow.start(send_without_end, daemon)
                for _ in range(SLOW_COUNT):
                    slow.start_soon(send_a_header_byte_by_byte, daemon)
                    slow.start_soon(promise_a_body_and_stall, daemon)
                for number in range(50):
                    body = {"name": f"n{number}", "folder": str(tmp_path)}
                    await daemon.wait_status(await daemon.submit(body), "SUCCEEDED")
        # All of them were shut out, or the nursery would still be open.
        assert peak_bytes(daemon) - before < ROOM_BYTES
        assert await daemon.stop() == 0
        assert daemon.complained() == []


async def test_a_client_that_does_not_read_holds_up_no_drain(tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    config = configure(tmp_path, "a", "hold.yaml", drain={"grace": "PT10M"})
    async with serving(tmp_path, config) as daemon:
        before = peak_bytes(daemon)
        mute = [await upgrade(daemon, "/pipeline/events?after=0") for _ in range(4)]
        attached = await upgrade(daemon, "/pipeline/interactions/stream")
        batch = [{"input": {"name": "n" * 1000, "folder": str(tmp_path)}} for _ in range(500)]
        for _ in range(4):
            answer = await daemon.client.post("/pipeline/run-async/batch", json=batch)
            assert answer.status_code == 200
        last = answer.json()[-1]["executionId"]
        await daemon.wait_status(last, "SUCCEEDED")

        async def all_done() -> bool:
            return not (await daemon.client.get("/pipeline/executions?status=QUEUED")).json()

        await wait_until("the queue to be empty", all_done)
        assert peak_bytes(daemon) - before < ROOM_BYTES
        assert await daemon.stop() == 0
        for stream in (*mute, attached):
            await stream.aclose()
