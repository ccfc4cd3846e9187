"""The boundary between one request and the server: whatever a handler meets ends here as an error value.

This is the only broad ``except`` of the edge. Without it, one fault in one handler would end every connection; with
it, the client is told that the daemon failed, the log gets the traceback, and everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

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
    try:
        return await work
    except ClientGone:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary: one request
        if isinstance(error, TpfdError) and not isinstance(error, InternalError):
            return error
        _report.exception("request_failed", error, request=what)
        return InternalError("the request met a fault of the daemon")
