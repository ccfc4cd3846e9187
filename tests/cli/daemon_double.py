"""A daemon's HTTP side on a real port, answering what the test says. Standard library, in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field, frozen


@frozen
class Reply:
    """One answer."""

    status: int
    body: Any
    headers: dict[str, str] = field(factory=dict)


@frozen
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@define
class DaemonDouble:
    """Answers in order, the last answer again and again; keeps what it was asked."""

    replies: list[Reply]
    asked: list[Asked] = field(factory=list)
    url: str = ""

    def next_reply(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        return self.replies[min(len(self.asked), len(self.replies)) - 1]


@contextmanager
def playing(*replies: Reply) -> Iterator[DaemonDouble]:
    """A daemon that gives these answers."""
    double = DaemonDouble(list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            size = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = double.next_reply(Asked(self.command, self.path, headers, self.rfile.read(size)))
            content = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
