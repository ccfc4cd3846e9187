"""The boundary between one request and the server: whatever a handler meets ends here as an error value.

Without it, one fault in one handler would end every connection; with it, the client is told that the daemon failed,
the log gets the traceback, and everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from tpfd.boundaries import contained
from tpfd.core.failures import Failure
from tpfd.errors import InternalError, TpfdError
from tpfd.http.connection import ClientGone
from tpfd.ops.logs import get_logger

T = TypeVar("T")

_report = get_logger(__name__)


async def outcome(work: Awaitable[T], what: str) -> T | TpfdError:
    """What the work returned, or the error that it ended with.

    Args:
        work: the handler's coroutine.
        what: names the request in the log.

    Raises:
        ClientGone: there is nobody to tell.
    """
    done = await contained(lambda: work)
    if not isinstance(done, Failure):
        return done
    error = done.error
    if isinstance(error, ClientGone):
        raise error
    if isinstance(error, TpfdError) and not isinstance(error, InternalError):
        return error
    _report.exception("request_failed", error, request=what)
    return InternalError("the request met a fault of the daemon")
