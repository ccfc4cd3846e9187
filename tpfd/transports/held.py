"""What a socket holds, by the rows, and how it is put back."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import trio

from tpfd.core import sockets
from tpfd.core.kinds import INTERACTION, INTERACTION_HELD, SOCKET
from tpfd.core.records import InteractionId, InteractionRecord, SocketRecord, TenantId
from tpfd.core.sockets import DELIVERY_PAGE
from tpfd.core.transact import Read
from tpfd.runtime import Runtime

HELD_PAGE = 200
"""Interactions of a socket read at a time."""
LAG_PAUSE_S = 0.1
"""Pause before the next look at an index that still shows what was put back."""


async def listed(runtime: Runtime, socket: SocketRecord) -> dict[InteractionId, TenantId]:
    """The interactions that a socket holds, as the index has it: a hint. Raises StoreError."""
    found: dict[InteractionId, TenantId] = {}
    cursor: str | None = None
    while True:
        page = await runtime.store.query(INTERACTION_HELD, socket.socket_id, limit=HELD_PAGE, cursor=cursor)
        found.update((record.interaction_id, record.tenant_id) for record in page.records)
        if (cursor := page.cursor) is None:
            return found


async def still_held(
    runtime: Runtime, socket: SocketRecord, interactions: Mapping[InteractionId, TenantId]
) -> list[InteractionRecord]:
    """Those of some interactions that a socket really holds, in the order of their ids. Raises StoreError."""
    found = await runtime.store.get_many([INTERACTION.key(interactions[name], name) for name in sorted(interactions)])
    return [record for record in found if record is not None and record.delivery == socket.socket_id]


async def take_back(
    runtime: Runtime, socket: SocketRecord, *, closing: bool, known: Mapping[InteractionId, TenantId] | None = None
) -> int:
    """Puts everything a socket held back into the queue and removes its row.

    Args:
        closing: its own process closes it; else only an expired one is touched.
        known: what that process has given it: an index that lags may not show yet what was given a moment ago.

    Returns:
        Number of interactions that wait again.

    Raises:
        StoreError: the store failed; doing it again is harmless.
    """
    count = 0
    key = SOCKET.key_of(socket)
    left = sorted((known or {}).items())
    while True:
        named, left = left[:DELIVERY_PAGE], left[DELIVERY_PAGE:]
        if named:
            page: Sequence[InteractionRecord] = await still_held(runtime, socket, dict(named))
            if not page:
                continue
        else:
            page = (await runtime.store.query(INTERACTION_HELD, socket.socket_id, limit=DELIVERY_PAGE)).records
        done = await runtime.store.transact(
            [Read(key), *(Read(INTERACTION.key_of(record)) for record in page)],
            functools.partial(sockets.take_back, socket=key, held=page, now=runtime.now(), closing=closing),
        )
        count += done.count
        if done.over:
            break
        if page and not done.count:
            await trio.sleep(LAG_PAUSE_S)
    if count:
        runtime.bells.queue.ring()
    return count
