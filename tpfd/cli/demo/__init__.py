"""``tpfd demo``: the shipped examples from end to end, on this host, with nothing else running."""

from __future__ import annotations

from tpfd.cli.demo.commands import demo

__all__ = ["demo"]
