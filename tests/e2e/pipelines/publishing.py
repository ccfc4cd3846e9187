"""A step whose output differs with every attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

from attrs import frozen


@frozen
class Order:
    name: str
    count: int


@frozen
class Row:
    place: int
    maker: str


async def make_rows(order: Order) -> AsyncIterator[Row]:
    maker = uuid4().hex
    for place in range(order.count):
        yield Row(place=place, maker=maker)
