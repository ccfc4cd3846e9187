"""How a call to the daemon can fail, as seen from outside.

Three things are kept apart because an operator does something different about each: the daemon said no
(`ServerRefused`), the daemon did not answer (`Unreachable`), and the daemon answered that the execution itself failed
(`ExecutionFailed`).
"""

from __future__ import annotations

from typing import Any, TypeVar

from attrs import field, frozen

from tpfd.errors import OutsideError, Problem, TpfdError

E = TypeVar("E", bound=BaseException)


@frozen
class ProblemDetail:
    """One RFC 9457 body, as far as it could be read.

    Attributes:
        status: HTTP status.
        title: short name of the kind of problem; the HTTP reason when the body has none.
        code: tpfd's stable machine-readable name, "" when the body has none.
        detail: one sentence about this occurrence, "" when the body has none.
        errors: what is wrong where; empty unless the daemon listed it.
        extra: every other member of the body, as it came.
    """

    status: int
    title: str
    code: str = ""
    detail: str = ""
    errors: tuple[Problem, ...] = ()
    extra: dict[str, Any] = field(factory=dict)

    @classmethod
    def from_json(cls, status: int, body: object, *, reason: str) -> ProblemDetail:
        """Reads a problem body and takes whatever fits.

        Args:
            status: HTTP status of the answer.
            body: the decoded JSON, or None when the body was no JSON (a proxy's page).
            reason: the HTTP reason phrase, used when the body has no title.
        """
        members = dict(body) if isinstance(body, dict) else {}
        listed = members.pop("errors", None)
        for known in ("type", "status"):
            members.pop(known, None)
        return cls(
            status=status,
            title=str(members.pop("title", None) or reason or f"HTTP {status}"),
            code=str(members.pop("code", None) or ""),
            detail=str(members.pop("detail", None) or ""),
            errors=tuple(
                Problem(str(entry.get("path", "$")), str(entry.get("message", "")))
                for entry in (listed if isinstance(listed, list) else ())
                if isinstance(entry, dict)
            ),
            extra=members,
        )

    def sentence(self) -> str:
        """The problem as one line for people, without the list of errors."""
        return f"{self.title}: {self.detail}" if self.detail else self.title


class ServerRefused(TpfdError):
    """The daemon answered with an error status; nothing was changed by the call.

    Attributes:
        status: HTTP status, 400 and above.
        problem: the body.
        retry_after_s: the daemon's Retry-After in seconds, None when it gave none.
    """

    code = "server_refused"

    def __init__(self, problem: ProblemDetail, *, retry_after_s: float | None = None) -> None:
        super().__init__(problem.sentence(), code=problem.code or None)
        self.status = problem.status
        self.problem = problem
        self.retry_after_s = retry_after_s


class ExecutionFailed(ServerRefused):
    """There is no result and never will be: the execution ended FAILED, DLQ or CANCELLED."""

    code = "execution_failed"


class Unreachable(OutsideError):
    """No usable answer: refused, timed out, cut off, or the address is not a tpfd daemon."""

    code = "unreachable"


def first_of(group: BaseExceptionGroup[E]) -> E:
    """The first error of a group, however deep it is nested."""
    error: E | BaseExceptionGroup[E] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
