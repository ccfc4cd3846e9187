"""A small typed client of the daemon's HTTP interface, used by the command line, the demos and the benchmarks.

Everything a caller needs is exported here; the modules below it are one thought each: errors, the HTTP exchange, the
calls, the event feed.
"""

from __future__ import annotations

from tpfd.client.api import BatchEntry, Finished, Page, Submission, TpfdClient
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
