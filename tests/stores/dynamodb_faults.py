"""A client of DynamoDB that fails when it is told to: before its call has an effect, or after."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import botocore.exceptions as sdk
import trio
from attrs import define, field

from tests.aws.standin import StandIn
from tpfd.core.records import Fact
from tpfd.stores.deciding import keep_all_facts
from tpfd.stores.dynamodb import DynamodbStore, open_dynamodb


def refused(code: str, status: int = 400, **more: Any) -> Callable[[], Exception]:
    """An answer with an error in it."""
    response: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return lambda: sdk.ClientError(response, "Operation")


BEFORE: dict[str, Callable[[], Exception]] = {
    "throttled": refused("ThrottlingException"),
    "error 500": refused("InternalServerError", 500),
    "expired credentials": refused("ExpiredTokenException"),
    "no connection": lambda: sdk.EndpointConnectionError(endpoint_url="u"),
    "timed out": lambda: sdk.ReadTimeoutError(endpoint_url="u"),
}
"""Errors of calls that had no effect."""
AFTER: dict[str, Callable[[], Exception]] = {
    "error 500 after it was done": refused("InternalServerError", 500),
    "timed out after it was done": lambda: sdk.ReadTimeoutError(endpoint_url="u"),
    "reset after it was done": lambda: sdk.ConnectionClosedError(endpoint_url="u"),
}
"""Errors of calls that were done, but whose answer was lost."""
CONFLICT = refused("TransactionCanceledException", CancellationReasons=[{"Code": "TransactionConflict"}])


@define(eq=False)
class Faults:
    """What goes wrong.

    Attributes:
        planned: failures to come, by operation: an error and whether it comes after the effect.
        rate: share of calls that fail in some way, by chance.
        calls: how often each operation was called.
        answers: called with operation, parameters and answer; may change the answer.
        veto: called with operation and parameters before each call; may give an error.
    """

    planned: dict[str, list[tuple[Callable[[], Exception], bool]]] = field(factory=dict)
    rate: float = 0.0
    random: Random = field(factory=lambda: Random(1))
    calls: Counter[str] = field(factory=Counter)
    happened: Counter[str] = field(factory=Counter)
    answers: list[Callable[[str, dict[str, Any], dict[str, Any]], dict[str, Any]]] = field(factory=list)
    veto: Callable[[str, dict[str, Any]], Exception | None] = lambda _operation, _params: None
    _lock: threading.Lock = field(factory=threading.Lock)

    def plan(self, operation: str, error: Callable[[], Exception], *, after: bool = False, times: int = 1) -> None:
        self.planned.setdefault(operation, []).extend([(error, after)] * times)

    def next(self, operation: str) -> tuple[Callable[[], Exception], bool] | None:
        with self._lock:
            self.calls[operation] += 1
            if waiting := self.planned.get(operation):
                return waiting.pop(0)
            if self.random.random() >= self.rate:
                return None
            after = self.random.random() < 0.5
            name = self.random.choice(sorted(AFTER if after else BEFORE))
            self.happened[name] += 1
            return (AFTER if after else BEFORE)[name], after


class Client:
    """Stands for a client of the SDK."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return functools.partial(self._call, operation)

    def _call(self, operation: str, **params: Any) -> Any:
        fault = self._faults.next(operation)
        if fault is not None and not fault[1]:
            error = fault[0]()
            raise error
        if (vetoed := self._faults.veto(operation, params)) is not None:
            raise vetoed
        answer = getattr(self._real, operation)(**params)
        for change in self._faults.answers:
            answer = change(operation, params, answer)
        if fault is not None:
            error = fault[0]()
            raise error
        return answer


async def no_sleep(_seconds: float) -> None:
    """Waits for nothing."""
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(
    standin: StandIn,
    prefix: str,
    faults: Faults | None = None,
    *,
    seed: int = 0,
    slept: list[float] | None = None,
    keep_fact: Callable[[Fact], bool] = keep_all_facts,
) -> AsyncIterator[DynamodbStore]:
    """One process's store, with faults."""

    def connect(service: str, connections: int) -> Any:
        client = standin.client(service, connections=connections)
        return client if faults is None else Client(client, faults)

    async def sleep(seconds: float) -> None:
        if slept is not None:
            slept.append(seconds)
        await no_sleep(seconds)

    async with open_dynamodb(
        table_prefix=prefix,
        connections=4,
        keep_fact=keep_fact,
        random=Random(f"{prefix}{seed}"),
        sleep=sleep,
        connect=connect,
    ) as store:
        yield store
