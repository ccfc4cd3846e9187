"""What flows through the channels of a segment, and how it is taken out of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import trio


class Item(NamedTuple):
    """A value with its lineage.

    Attributes:
        place: the item's place in the source; it stays the same through one-to-one steps.
        value: a typed value of the pipeline.
    """

    place: int
    value: Any


Send = trio.MemorySendChannel[Item]
Receive = trio.MemoryReceiveChannel[Item]


async def sent(send: Send, item: Item) -> bool:
    """Writes an item; False when nobody reads any more.

    Only this call may say so: user code that talks to the outside can break with the same exception.
    """
    try:
        await send.send(item)
    except trio.BrokenResourceError:
        return False
    return True


def with_waiting(receive: Receive, first: Item, limit: int) -> list[Item]:
    """The item that was received, and what else is in the channel already, `limit` at most."""
    items = [first]
    while len(items) < limit:
        try:
            items.append(receive.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            break
    return items
