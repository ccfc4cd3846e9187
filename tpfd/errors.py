"""Every error that tpfd raises on purpose.

::

    TpfdError                    .code (stable, for machines)  .message (plain, for people)
    ├─ ConfigError               every problem at once; the CLI exits 78
    ├─ NotFound                  unknown, or another tenant's: the same answer
    ├─ Conflict                  stale version, already terminal, key reused
    │  └─ LostLease              the attempt's fence was overtaken: it must commit nothing more
    ├─ AdmissionError            the outside sent something that cannot be taken
    │  ├─ MalformedError         not decodable at all
    │  ├─ PayloadError           decodable, does not fit the type: every problem with its path
    │  ├─ TokenRejected          resume token with a bad signature or for something else
    │  ├─ TimedOut               the interaction's deadline has passed
    │  └─ TooLarge               over a stated limit
    ├─ StepError                 a step says how it failed
    │  ├─ RetryableStepError     .delay_ms is a floor for the next try
    │  └─ NonRetryableError      another try cannot help
    ├─ OutsideError              something we depend on failed; .retryable; __cause__ is the driver's error
    │  ├─ StoreError
    │  ├─ DispatchError
    │  └─ TransportError
    └─ InternalError             a broken invariant; ends that execution as INTERNAL

Two places map these to the outside: ``tpfd.http.problems`` (HTTP status) and ``tpfd.cli.exits`` (exit code).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from attrs import frozen


@frozen
class Problem:
    """One thing that is wrong with a document.

    Attributes:
        path: where, as ``$.steps[2].input``; ``$`` is the whole document.
        message: what is wrong and what would be right.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} @ {self.path}"


class TpfdError(Exception):
    """Root of the tree.

    Attributes:
        code: stable machine-readable name, snake_case.
        message: one plain sentence for a person.
    """

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class ProblemsError(TpfdError):
    """An error that carries a list of problems with their paths."""

    headline: ClassVar[str] = "not valid"

    def __init__(self, problems: Iterable[Problem], *, code: str | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{self.headline}: " + "; ".join(str(problem) for problem in self.problems), code=code)


class ConfigError(ProblemsError):
    """The configuration or a pipeline definition cannot be used."""

    code = "config_invalid"
    headline = "configuration"


class NotFound(TpfdError):
    """The thing does not exist, or belongs to another tenant."""

    code = "not_found"


class Conflict(TpfdError):
    """The state does not allow it (any more)."""

    code = "conflict"


class LostLease(Conflict):
    """The fence of an attempt was overtaken, or its execution ended: it must commit nothing more."""

    code = "lost_lease"


class AdmissionError(TpfdError):
    """Something from outside was refused."""

    code = "refused"


class MalformedError(AdmissionError):
    """The bytes cannot be decoded."""

    code = "malformed"


class PayloadError(ProblemsError, AdmissionError):
    """The payload does not fit its type."""

    code = "payload_invalid"
    headline = "payload does not fit its type"


class TokenRejected(AdmissionError):
    """The resume token is not ours or is for something else."""

    code = "token_rejected"


class TimedOut(AdmissionError):
    """The deadline of the interaction has passed."""

    code = "timed_out"


class TooLarge(AdmissionError):
    """Over a stated limit; nothing was stored."""

    code = "too_large"


class StepError(TpfdError):
    """A step failed and says how."""

    code = "step_failed"


class RetryableStepError(StepError):
    """Another try may help.

    Attributes:
        delay_ms: floor for the wait before the next try (a provider's Retry-After); None leaves it to the policy.
    """

    code = "step_retryable"

    def __init__(self, message: str, *, delay_ms: int | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.delay_ms = delay_ms


class NonRetryableError(StepError):
    """Another try cannot help; the execution fails at once."""

    code = "step_non_retryable"


class OutsideError(TpfdError):
    """Something tpfd depends on failed.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    code = "outside_failed"

    def __init__(self, message: str, *, retryable: bool = True, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retryable = retryable


class StoreError(OutsideError):
    """The store did not answer or could not write; what was asked for was not committed."""

    code = "store_unavailable"


class DispatchError(OutsideError):
    """Work or a dead letter could not be handed on."""

    code = "dispatch_failed"


class TransportError(OutsideError):
    """An await request could not be sent."""

    code = "transport_failed"


class InternalError(TpfdError):
    """An invariant of tpfd itself is broken."""

    code = "internal"
