"""A step whose output differs with every attempt; each is noted as a line of ``started`` in the order's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import trio
from attrs import frozen

ROW_COUNT = 5000


@frozen
class Order:
    folder: str


@frozen
class Row:
    place: int
    maker: str


async def make_rows(order: Order) -> AsyncIterator[Row]:
    maker = uuid4().hex
    async with await trio.open_file(f"{order.folder}/started", "a") as file:
        await file.write(f"{maker}\n")
    for place in range(ROW_COUNT):
        yield Row(place=place, maker=maker)
