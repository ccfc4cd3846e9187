"""What a failed call of AWS means to us.

Eight hundred error codes come down to seven questions: did it have its effect, and may it be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tpfd.errors import OutsideError


class Failure(StrEnum):
    """How a call failed."""

    CONDITION = "condition"
    """A condition of the call said no; nothing was written."""
    CONFLICT = "conflict"
    """Another transaction had its hands on the same item; nothing was written."""
    THROTTLED = "throttled"
    """Too much at once; nothing was written."""
    UNREACHED = "unreached"
    """Never sent: no such host, connection refused, no answer to the connect."""
    UNKNOWN = "unknown"
    """May have had its effect: the answer was lost, late, broken, or a 5xx."""
    CREDENTIALS = "credentials"
    """Missing, expired or unknown credentials; nothing was done."""
    REFUSED = "refused"
    """The same call will be refused again: not valid, not there, not allowed, too large."""


TRANSIENT = frozenset(
    {Failure.CONFLICT, Failure.THROTTLED, Failure.UNREACHED, Failure.UNKNOWN, Failure.CREDENTIALS}
)
"""What the same call may get past later. To repeat after UNKNOWN the call must be one that may happen twice."""

_BY_CODE: dict[str, Failure] = {
    code: failure
    for failure, codes in {
        Failure.CONDITION: "ConditionalCheckFailedException ConditionalCheckFailed PreconditionFailed",
        Failure.CONFLICT: "TransactionConflictException TransactionConflict TransactionInProgressException "
        "ConditionalRequestConflict OperationAborted",
        Failure.THROTTLED: "ThrottlingException Throttling ThrottledException ThrottlingError RequestThrottled "
        "RequestThrottledException ProvisionedThroughputExceededException ProvisionedThroughputExceeded "
        "RequestLimitExceeded LimitExceededException TooManyRequestsException SlowDown OverLimit "
        "BandwidthLimitExceeded PriorRequestNotComplete KmsThrottled",
        Failure.CREDENTIALS: "ExpiredToken ExpiredTokenException InvalidClientTokenId UnrecognizedClientException "
        "InvalidAccessKeyId SignatureDoesNotMatch InvalidSignatureException IncompleteSignature RequestExpired "
        "RequestTimeTooSkewed TokenRefreshRequired InvalidToken MissingAuthenticationToken "
        "MissingAuthenticationTokenException AuthFailure",
        Failure.UNKNOWN: "RequestTimeout RequestTimeoutException InternalServerError InternalError "
        "InternalFailure ServiceUnavailable",
        Failure.REFUSED: "NotImplemented",  # a 501, which no repetition mends
    }.items()
    for code in codes.split()
}

_CANCELLED = "TransactionCanceledException"
_BY_WEIGHT = (Failure.REFUSED, Failure.CONDITION, Failure.CONFLICT, Failure.THROTTLED)


class AwsFailure(OutsideError):
    """A call of AWS failed; the cause is the SDK's error.

    Attributes:
        failure: what it means.
        service: `dynamodb`, `sqs`, `s3`.
        operation: the client's method, `put_item`.
        aws_code: AWS's own name of the error; the SDK's class where AWS never answered.
        reasons: of a cancelled transaction, the code of each of its items, in order; "None" is an innocent one.
    """

    code = "aws_failed"

    def __init__(self, service: str, operation: str, error: Exception) -> None:
        self.failure = classify(error)
        self.service = service
        self.operation = operation
        self.aws_code = _code_of(error)
        self.reasons = _reasons(_response(error))
        super().__init__(
            f"{service} {operation} failed ({self.failure}): {_say(error)}", retryable=self.failure in TRANSIENT
        )


def driver_errors() -> tuple[type[Exception], ...]:
    """The roots of everything that the SDK raises."""
    import botocore.exceptions

    return (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)


def classify(error: Exception) -> Failure:
    """What an error of the SDK means."""
    import botocore.exceptions as sdk
    from botocore.parsers import ResponseParserError

    if isinstance(error, sdk.ClientError):
        return _classify_answer(error.response)
    unreached = sdk.ConnectTimeoutError | sdk.EndpointConnectionError | sdk.ProxyConnectionError | sdk.SSLError
    if isinstance(error, unreached):
        return Failure.UNREACHED
    credentials = sdk.NoCredentialsError | sdk.PartialCredentialsError | sdk.CredentialRetrievalError
    if isinstance(error, credentials | sdk.MetadataRetrievalError | sdk.TokenRetrievalError | sdk.SSOError):
        return Failure.CREDENTIALS
    lost = sdk.HTTPClientError | sdk.IncompleteReadError | sdk.ResponseStreamingError | ResponseParserError
    # What else the SDK raises, it raises before it sends anything: the parameters are not valid.
    return Failure.UNKNOWN if isinstance(error, lost) else Failure.REFUSED


def of_code(code: str) -> Failure:
    """What one of AWS's own error codes means, as the entries of a batch have it."""
    return _BY_CODE.get(code.rpartition(".")[2], Failure.REFUSED)


def _classify_answer(response: Mapping[str, Any]) -> Failure:
    code = _answer_code(response)
    if code == _CANCELLED:
        found = {_BY_CODE.get(reason, Failure.REFUSED) for reason in _reasons(response) if reason != "None"}
        return next((failure for failure in _BY_WEIGHT if failure in found), Failure.UNKNOWN)
    if (failure := _BY_CODE.get(code)) is not None:
        return failure
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status == 429:
        return Failure.THROTTLED
    if status == 412:
        return Failure.CONDITION
    return Failure.UNKNOWN if status >= 500 else Failure.REFUSED


def _response(error: Exception) -> Mapping[str, Any]:
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    return response


def _answer_code(response: Mapping[str, Any]) -> str:
    # SQS puts its older names before or behind the newer ones: "AWS.SimpleQueueService.NonExistentQueue".
    return str(response.get("Error", {}).get("Code", "")).rpartition(".")[2]


def _code_of(error: Exception) -> str:
    return _answer_code(_response(error)) or type(error).__name__


def _reasons(response: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(reason.get("Code", "None")) for reason in response.get("CancellationReasons", ()))


def _say(error: Exception) -> str:
    answer = _response(error).get("Error", {})
    return f"{answer.get('Code')}: {answer.get('Message')}" if answer else str(error)
