"""The two places where work that failed ends and the daemon goes on.

A fault in one piece of work that came from outside (an execution, a request) must not end the daemon, whatever it is;
neither must a pass of a loop in which something outside failed. Everything else that is not expected ends the daemon,
loudly; systemd starts it again and the leases do the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from tpfd.core.failures import Failure, classify
from tpfd.errors import OutsideError
from tpfd.ops.logs import get_logger
from tpfd.ops.repeating import Repeating

T = TypeVar("T")
log = get_logger("tpfd.boundaries")


async def contained(call: Callable[[], Awaitable[T]]) -> T | Failure:
    """Runs user code, a whole attempt, or a request's handler: what it raises becomes a value.

    A cancel passes through, also one that comes in a group with errors. Those are logged and dropped: what fails while
    it is being cancelled can commit nothing, and must not end more than itself.
    """
    failure: Failure
    try:
        return await call()
    except* Exception as error:  # noqa: BLE001 - the only place: one execution, one request
        failure = classify(error)
        if trio.current_effective_deadline() == float("-inf"):
            log.warning("failed_while_cancelled", code=failure.code, message=failure.message)
    return failure


async def one_pass(
    name: str, repeating: Repeating, trouble: dict[str, str], call: Callable[[], Awaitable[T]]
) -> T | None:
    """Runs one pass of a loop; an outside failure is logged (not once a second) and the loop goes on.

    Args:
        trouble: what readiness shows: holds the failure under the loop's name until a pass works.

    Returns:
        What the pass returned; None after a failure.

    Raises:
        BaseException: whatever is not an outside failure: a broken invariant ends the daemon.
    """
    done: T | None = None
    try:
        done = await call()
    except* OutsideError as error:  # a cancel that came with it goes on alone: the failure ends the pass, nothing more
        failure = classify(error)
        trouble[name] = failure.message
        repeating.failed(f"{name}_failed", code=failure.code, message=failure.message)
    else:
        trouble.pop(name, None)
        repeating.worked(f"{name}_works_again")
    return done
