from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from attrs import define

from tests.http.double import Double
from tpfd.http.server import serve
from tpfd.http.settings import HttpSettings
from tpfd.metrics import Metrics

INPUT_SCHEMAS = {"orders": {"type": "object", "required": ["amount"]}}


@define
class Edge:
    """A running server on a free port."""

    service: Double
    metrics: Metrics
    address: str
    scope: trio.CancelScope

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def drain(self) -> None:
        self.scope.cancel()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


Start = Callable[..., AbstractAsyncContextManager[Edge]]


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Edge]:
    """Runs a server; leaving drains it, and must do so in bounded time whatever the clients do."""
    service, metrics = Double(), Metrics()
    chosen = HttpSettings(port=0, **{"drain_grace_ms": 500, **settings})
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def run(*, task_status: trio.TaskStatus[str]) -> None:
                with scope:
                    await serve(service, chosen, metrics, input_schemas=INPUT_SCHEMAS, task_status=task_status)

            address = await nursery.start(run)
            yield Edge(service, metrics, address, scope)
            scope.cancel()


@pytest.fixture
def start() -> Start:
    return running


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with running() as edge:
        yield edge


@pytest.fixture
async def client(edge: Edge) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=edge.url, trust_env=False) as client:
        yield client
