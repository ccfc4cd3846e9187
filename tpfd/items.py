"""What flows through the channels of a segment."""

from __future__ import annotations

from typing import Any, NamedTuple


class Item(NamedTuple):
    """A value with its lineage.

    Attributes:
        place: the item's place in the source; it stays the same through one-to-one steps.
        value: a typed value of the pipeline.
    """

    place: int
    value: Any
