"""The daemon as its edge sees it, over every store, moved by hand."""

from __future__ import annotations

from tests.awaits.conftest import Seat, desk_for, store
from tests.engine.conftest import expected

__all__ = ["Seat", "desk_for", "expected", "store"]
