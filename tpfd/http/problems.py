"""The one mapping from errors to HTTP answers: RFC 9457 problem bodies.

======  =================================================================================================
status  error
======  =================================================================================================
400     MalformedError: the bytes, the query or a header cannot be decoded
401     TokenRejected: no usable bearer or resume token
403     RequestRefused: the token is good, but not for this
404     NotFound: unknown, or another tenant's
405     RequestRefused: the path is known, the method is not
408     RequestRefused: the request did not arrive in time
409     Conflict: the state does not allow it
410     TimedOut: the interaction's deadline has passed
413     TooLarge: over a stated limit
415     RequestRefused: a body that is not JSON
421     RequestRefused: a host name that is not ours
422     PayloadError, ConfigError, other AdmissionErrors: does not fit
426     RequestRefused: this path speaks WebSocket
429     RequestRefused: too many sockets of one client
431     RequestRefused: too many or too long headers
500     InternalError, and whatever nobody expected
501     RequestRefused: a transfer encoding other than chunked
503     OutsideError: something we depend on did not answer; too many connections; not finished in time
505     RequestRefused: another version of HTTP
======  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import orjson

from tpfd.errors import (
    AdmissionError,
    Conflict,
    InternalError,
    MalformedError,
    NotFound,
    OutsideError,
    Problem,
    ProblemsError,
    TimedOut,
    TokenRejected,
    TooLarge,
    TpfdError,
)
from tpfd.http.messages import Response

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_S = 1

_STATUS: tuple[tuple[type[TpfdError], int], ...] = (
    (MalformedError, 400),
    (TokenRejected, 401),
    (NotFound, 404),
    (Conflict, 409),
    (TimedOut, 410),
    (TooLarge, 413),
    (ProblemsError, 422),
    (AdmissionError, 422),
    (OutsideError, 503),
)


class RequestRefused(AdmissionError):
    """The request itself is refused, before anybody looked at executions.

    Attributes:
        status: HTTP status.
        headers: headers that the answer must carry.
    """

    code = "request_refused"

    def __init__(
        self, status: int, code: str, message: str, *, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.headers = headers


def status_of(error: TpfdError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RequestRefused):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_body(error: TpfdError, status: int) -> dict[str, object]:
    """The members of the problem body. What an `InternalError` says is for the log, not for the client.

    **Shape**: ``{type, title, status, code, detail, errors?: [{path, message}]}``.
    """
    if status == 500:
        error = InternalError("the daemon met an error of its own; its log has the details")
    body: dict[str, object] = {
        "type": f"urn:tpfd:problem:{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": error.message,
    }
    problems: Sequence[Problem] = getattr(error, "problems", ())
    if problems:
        body["errors"] = [{"path": problem.path, "message": problem.message} for problem in problems]
    return body


def error_message(error: TpfdError) -> dict[str, object]:
    """The same on a WebSocket: ``{type: "error", code, detail, errors?}``."""
    body = problem_body(error, status_of(error))
    return {"type": "error", **{name: body[name] for name in ("code", "detail", "errors") if name in body}}


def problem_response(error: TpfdError, **members: object) -> Response:
    """The answer to a request that failed.

    Args:
        error: what went wrong.
        members: further members of the body, in camelCase.
    """
    status = status_of(error)
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, RequestRefused):
        headers = error.headers
    elif status == 401:
        headers = (("www-authenticate", "Bearer"),)
    elif status == 503:
        headers = (("retry-after", str(RETRY_AFTER_S)),)
    return Response(status, orjson.dumps({**problem_body(error, status), **members}), PROBLEM_JSON, headers)
