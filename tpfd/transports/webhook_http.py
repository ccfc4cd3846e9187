"""Sends webhook requests over HTTP/1.1 and says what became of each.

No redirects, no cookies, no proxies from the environment; connections only where `CheckedNetwork` allows them. What the
other side says besides its status and Retry-After is read only as far as it takes to use the connection again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpcore
import trio
from attrs import define, field

from tpfd.clock import Clock
from tpfd.transports.checked_network import CheckedNetwork, Refused, Unreachable
from tpfd.transports.webhook_message import WebhookMessage
from tpfd.transports.webhook_replies import Never, NotNow, Reply, judge

MAX_BODY_BYTES = 64 * 1024
BODY_S = 1.0
"""Time to read the rest of an answer; the connection is closed when it takes longer."""
KEEP_ALIVE_S = 15.0
KEEP_ALIVE_COUNT = 64


@define(eq=False, kw_only=True)
class WebhookHttp:
    """One pool of connections for all webhook steps of a process. Use as an async context manager."""

    network: CheckedNetwork
    clock: Clock
    _pool: httpcore.AsyncConnectionPool = field(init=False)

    def __attrs_post_init__(self) -> None:
        # Without a limit of its own: each step bounds the requests that it has in hand.
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None,
            max_keepalive_connections=KEEP_ALIVE_COUNT,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=self.network,
        )

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, trace)

    async def send(self, message: WebhookMessage) -> Reply:
        """Sends one request within the target's timeout.

        **Cancellation**: whether the other side has it is not known then; it is sent again when its lease is over.
        """
        target = message.target
        status: int | None = None
        retry_after: str | None = None
        with trio.move_on_after(target.timeout_ms / 1000):
            try:
                async with self._pool.stream(
                    target.method,
                    httpcore.URL(
                        scheme=target.scheme.encode(),
                        host=target.host.encode(),
                        port=target.port,
                        target=target.path.encode(),
                    ),
                    headers=[(name.encode(), value.encode()) for name, value in message.headers],
                    content=message.body,
                ) as response:
                    status, retry_after = response.status, _header(response, b"retry-after")
                    await _pass_over(response)
            except Refused as refused:
                return Never(refused.message)
            except Unreachable as unreachable:
                return NotNow(unreachable.message)
            except httpcore.LocalProtocolError as error:
                return Never(f"the request to {target.authority} cannot be written: {error}")
            except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
                # Behind the status, the rest of the answer does not matter.
                if status is None:
                    what = "did not speak HTTP" if isinstance(error, httpcore.RemoteProtocolError) else "hung up"
                    return NotNow(f"{target.authority} {what} before it answered")
        if status is None:
            return NotNow(f"{target.authority} did not answer within {target.timeout_ms} ms")
        return judge(target.authority, status, retry_after, self.clock.now_ms())


def _header(response: httpcore.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), None)


async def _pass_over(response: httpcore.Response) -> None:
    """Reads the body if it is small and there; else the connection is not used again."""
    size = 0
    with trio.move_on_after(BODY_S):
        async for part in response.aiter_stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                return
