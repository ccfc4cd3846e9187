"""The daemon: picks the concrete providers, builds the nursery tree, drains."""

from __future__ import annotations

from tpfd.daemon.main import run

__all__ = ["run"]
