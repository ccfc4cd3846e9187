"""The boundary between one request and the server: whatever a handler meets ends here as an error value.

This is the only broad ``except`` of the edge. Without it, one fault in one handler would end every connection; with
it, the client is told that the daemon failed, the log gets the traceback, and everybody else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

from tpfd.errors import InternalError, TpfdError
from tpfd.http.connection import ClientGone

T = TypeVar("T")

logger = logging.getLogger(__name__)


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
    except InternalError:
        logger.exception("request failed: %s", what)
        return InternalError("internal")
    except TpfdError as error:
        return error
    except ClientGone:
        raise
    except Exception:
        logger.exception("request failed: %s", what)
        return InternalError("internal")
