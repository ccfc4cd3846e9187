"""What an error means for the attempt that met it."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from tpfd.core.records import TerminalReason
from tpfd.errors import InternalError, OutsideError, RetryableStepError, TpfdError

MAX_MESSAGE_CHARS = 2000


@frozen(kw_only=True)
class Failure:
    """An error as a value.

    Attributes:
        code: stable name; of a foreign exception its class name.
        retryable: another run may help.
        internal: our own fault; ends the execution as INTERNAL.
        floor_ms: shortest wait before the next run.
        error: what was raised.
    """

    code: str
    message: str
    retryable: bool
    internal: bool = False
    reason: TerminalReason = TerminalReason.NON_RETRYABLE
    floor_ms: int = 0
    error: BaseException


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def classify(error: BaseException) -> Failure:
    """What to make of an error. Of a group, the one that weighs most: internal, then final, then retryable."""
    return max(
        (_classify(leaf) for leaf in leaves(error)), key=lambda failure: (failure.internal, not failure.retryable)
    )


def _classify(error: BaseException) -> Failure:
    if isinstance(error, InternalError):
        return _failure(error, error.code, retryable=False, internal=True)
    if isinstance(error, RetryableStepError):
        return _failure(error, error.code, retryable=True, floor_ms=error.delay_ms or 0)
    if isinstance(error, OutsideError):
        return _failure(error, error.code, retryable=error.retryable)
    if isinstance(error, TpfdError):
        # Contract and type errors, and whatever a step calls non-retryable.
        return _failure(error, error.code, retryable=False)
    # A step's own exception: we cannot know, and giving up on a payment is the worse mistake.
    return _failure(error, type(error).__name__, retryable=True)


_REASONS = {
    "await_timeout": TerminalReason.AWAIT_TIMEOUT,
    "await_failed": TerminalReason.AWAIT_FAILED,
}


def _failure(error: BaseException, code: str, *, retryable: bool, internal: bool = False, floor_ms: int = 0) -> Failure:
    message = str(error) or type(error).__name__
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "…"
    return Failure(
        code=code,
        message=message,
        retryable=retryable,
        internal=internal,
        reason=_REASONS.get(code, TerminalReason.NON_RETRYABLE),
        floor_ms=floor_ms,
        error=error,
    )
