from __future__ import annotations

from typing import Any

import botocore.exceptions as sdk
import botocore.parsers
import pytest

from tpfd.aws.failures import AwsFailure, Failure, classify


def answer(code: str, status: int = 400, **more: Any) -> sdk.ClientError:
    response: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return sdk.ClientError(response, "PutItem")


def cancelled(*codes: str) -> sdk.ClientError:
    return answer("TransactionCanceledException", CancellationReasons=[{"Code": code} for code in codes])


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (answer("ConditionalCheckFailedException"), Failure.CONDITION),
        (answer("PreconditionFailed", 412), Failure.CONDITION),
        (answer("412", 412), Failure.CONDITION),
        (answer("TransactionConflictException"), Failure.CONFLICT),
        (answer("TransactionInProgressException"), Failure.CONFLICT),
        (answer("ProvisionedThroughputExceededException"), Failure.THROTTLED),
        (answer("SlowDown", 503), Failure.THROTTLED),
        (answer("Strange", 429), Failure.THROTTLED),
        (answer("ExpiredTokenException"), Failure.CREDENTIALS),
        (answer("UnrecognizedClientException"), Failure.CREDENTIALS),
        (answer("InternalServerError", 500), Failure.UNKNOWN),
        (answer("Strange", 503), Failure.UNKNOWN),
        (answer("RequestTimeout", 400), Failure.UNKNOWN),
        (answer("ResourceNotFoundException"), Failure.REFUSED),
        (answer("AWS.SimpleQueueService.NonExistentQueue"), Failure.REFUSED),
        (answer("ValidationException"), Failure.REFUSED),
        (answer("NotImplemented", 501), Failure.REFUSED),
        (answer("AccessDeniedException", 403), Failure.REFUSED),
        (answer("IdempotentParameterMismatchException"), Failure.REFUSED),
        (cancelled("None", "ConditionalCheckFailed"), Failure.CONDITION),
        (cancelled("TransactionConflict", "ConditionalCheckFailed"), Failure.CONDITION),
        (cancelled("None", "TransactionConflict"), Failure.CONFLICT),
        (cancelled("ThrottlingError", "None"), Failure.THROTTLED),
        (cancelled("ValidationError", "ConditionalCheckFailed"), Failure.REFUSED),
        (cancelled(), Failure.UNKNOWN),
        (sdk.EndpointConnectionError(endpoint_url="u"), Failure.UNREACHED),
        (sdk.ConnectTimeoutError(endpoint_url="u"), Failure.UNREACHED),
        (sdk.ReadTimeoutError(endpoint_url="u"), Failure.UNKNOWN),
        (sdk.ConnectionClosedError(endpoint_url="u"), Failure.UNKNOWN),
        (sdk.HTTPClientError(error="reset"), Failure.UNKNOWN),
        (botocore.parsers.ResponseParserError("half"), Failure.UNKNOWN),
        (sdk.NoCredentialsError(), Failure.CREDENTIALS),
        (sdk.CredentialRetrievalError(provider="p", error_msg="e"), Failure.CREDENTIALS),
        (sdk.ParamValidationError(report="r"), Failure.REFUSED),
    ],
    ids=str,
)
def test_what_an_error_means(error: Exception, failure: Failure) -> None:
    assert classify(error) is failure


def test_a_failure_tells_what_where_and_whether_again() -> None:
    failed = AwsFailure("dynamodb", "transact_write_items", cancelled("None", "TransactionConflict"))
    assert (failed.failure, failed.retryable) == (Failure.CONFLICT, True)
    assert failed.reasons == ("None", "TransactionConflict")
    assert failed.message == "dynamodb transact_write_items failed (conflict): TransactionCanceledException: m"
    refused = AwsFailure("sqs", "send_message", answer("AWS.SimpleQueueService.NonExistentQueue"))
    assert (refused.aws_code, refused.retryable) == ("NonExistentQueue", False)
    assert AwsFailure("s3", "get_object", sdk.NoCredentialsError()).aws_code == "NoCredentialsError"
