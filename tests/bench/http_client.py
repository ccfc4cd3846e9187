"""A lean HTTP/1.1 client, one request at a time over one kept connection: the load client must not be the limit."""

from __future__ import annotations

from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import trio

READ_BYTES = 65536


def address(url: str) -> tuple[str, int]:
    """Host and port of a daemon's ``http://host:port``."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


class Exchange:
    """One connection to the daemon.

    Args:
        url: the daemon, ``http://host:port``.
    """

    def __init__(self, url: str) -> None:
        self._host, self._port = address(url)
        self._buffer = b""
        self._stream: trio.SocketStream | None = None

    async def __aenter__(self) -> Self:
        self._stream = await trio.open_tcp_stream(self._host, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stream is not None
        await self._stream.aclose()

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Sends JSON; the answer's status and body."""
        assert self._stream is not None
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        await self._stream.send_all(head.encode() + body)
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._more()
        answer, self._buffer = self._buffer[:end].lower(), self._buffer[end + 4 :]
        length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(self._buffer) < length:
            await self._more()
        content, self._buffer = self._buffer[:length], self._buffer[length:]
        return int(answer[9:12]), content

    async def _more(self) -> None:
        assert self._stream is not None
        data = await self._stream.receive_some(READ_BYTES)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        self._buffer += data
