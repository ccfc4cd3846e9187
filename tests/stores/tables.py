"""Tables of a test: made before it, removed behind it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.aws.standin import StandIn
from tpfd.stores.dynamodb_tables import tables


@asynccontextmanager
async def making_tables(standin: StandIn) -> AsyncIterator[str]:
    """Every table of the store under a prefix that no other test has."""
    prefix = standin.name("test") + "_"
    client = standin.client("dynamodb")
    specs = tables(prefix, {})
    for spec in specs:
        await trio.to_thread.run_sync(functools.partial(client.create_table, **spec.create_parameters()))
    try:
        yield prefix
    finally:
        with trio.CancelScope(shield=True):
            for spec in specs:
                await trio.to_thread.run_sync(functools.partial(client.delete_table, TableName=spec.name))
