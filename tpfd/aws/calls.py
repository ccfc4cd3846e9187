"""Calls of one AWS service: each is one attempt in a thread, counted, and fails in terms of ``AwsFailure``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from random import Random
from typing import Any

import trio

from tpfd.aws.failures import TRANSIENT, AwsFailure, Failure, driver_errors
from tpfd.blocking import Blocking
from tpfd.core.retry import Backoff
from tpfd.errors import ConfigError

Observe = Callable[[str, str, str], None]
"""Told of each request: service, operation, outcome (`ok` or a `Failure`)."""

BACKOFF = Backoff(base_ms=50, multiplier=2.0, cap_ms=5_000, jitter=1.0)


def unobserved(_service: str, _operation: str, _outcome: str) -> None:
    """An observer that does not look."""


class AwsCalls:
    """One service as a task sees it.

    Args:
        service: as the SDK names it; a label of the metrics.
        connect: makes the client (see ``clients.make_client``), now and after its credentials were refused.
        blocking: the threads that calls run in; the client must have as many connections.
        observe: told of each request, on the event loop.
        random: spreads the waits of `repeated`.
        sleep: waits for so many seconds.

    Raises:
        ConfigError: the client cannot be made.
    """

    def __init__(
        self,
        service: str,
        connect: Callable[[], Any],
        blocking: Blocking,
        *,
        observe: Observe = unobserved,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._service = service
        self._connect = connect
        self._blocking = blocking
        self._observe = observe
        self._random = Random() if random is None else random
        self.sleep = sleep
        self._client = connect()
        self._renewing = trio.Lock()
        self._driver_errors = driver_errors()

    async def __call__(self, operation: str, **params: Any) -> dict[str, Any]:
        """One attempt.

        Args:
            operation: the client's method: `put_item`.
            params: as AWS names them.

        Raises:
            AwsFailure: it failed; `failure` says whether it may have had its effect.

        **Cancellation**: looked for before the call; once it runs, its outcome is waited for.
        """
        client = self._client
        try:
            answer: dict[str, Any] = await self._blocking.run(partial(getattr(client, operation), **params))
        except self._driver_errors as error:
            failed = AwsFailure(self._service, operation, error)
            self._observe(self._service, operation, failed.failure)
            if failed.failure is Failure.CREDENTIALS:
                await self._look_for_credentials(client)
            raise failed from error
        self._observe(self._service, operation, "ok")
        return answer

    async def _look_for_credentials(self, refused: Any) -> None:
        """Makes a new client: the SDK keeps what it has found for as long as a client lives."""
        async with self._renewing:
            if self._client is not refused:
                return  # somebody else was refused too, and has done it
            try:
                self._client = await self._blocking.run(self._connect)
            except ConfigError:
                return  # as when a file is just being written; the next refusal looks again

    async def repeated(
        self, operation: str, *, within_s: float, retry_on: Collection[Failure] = TRANSIENT, **params: Any
    ) -> dict[str, Any]:
        """Attempts until one works, with growing, spread waits. Only for calls that may happen twice.

        Args:
            within_s: no attempt starts later than this after the first.
            retry_on: failures that another attempt may get past.

        Raises:
            AwsFailure: the last failure.

        **Cancellation**: between attempts at any time.
        """
        give_up_s = trio.current_time() + within_s
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self(operation, **params)
            except AwsFailure as error:
                delay_s = self.delay_s(attempt)
                if error.failure not in retry_on or trio.current_time() + delay_s > give_up_s:
                    raise
            await self.sleep(delay_s)

    def delay_s(self, attempt: int) -> float:
        """How long to wait before another attempt after failure number `attempt` (1 is the first)."""
        return BACKOFF.delay_ms(attempt, self._random.random()) / 1000
