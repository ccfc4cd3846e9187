"""A small typed client of the daemon's HTTP interface, used by the command line, the demos and the benchmarks.

Everything a caller of HTTP needs is exported here; `tpfd.client.feed` follows the facts over WebSocket.
"""

from __future__ import annotations

from tpfd.client.answers import BatchEntry, Finished, Page, Submission
from tpfd.client.api import TpfdClient
from tpfd.client.errors import ExecutionFailed, ProblemDetail, ServerRefused, Unreachable

__all__ = [
    "BatchEntry",
    "ExecutionFailed",
    "Finished",
    "Page",
    "ProblemDetail",
    "ServerRefused",
    "Submission",
    "TpfdClient",
    "Unreachable",
]
