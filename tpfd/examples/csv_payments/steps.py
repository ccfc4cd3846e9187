"""The step functions of csv-payments.

`parse_payments` refuses a file with a bad row as a whole, before anything is paid. Bind `parse_good_payments` instead
(``bindings: {process-csv-payments-input: "tpfd.examples.csv_payments.steps:parse_good_payments"}``) to pay the good
rows and put the bad ones into the reject sink. Both run in a thread and yield the same records, with the same ids, in
every attempt.

Files are opened through the pipeline's own source. It does not matter whether that is a folder or a bucket, and nothing
outside it is read, whatever a submitted input says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from uuid import NAMESPACE_URL, uuid5

from tpfd.errors import NonRetryableError
from tpfd.examples.csv_payments.csv_check import check
from tpfd.examples.csv_payments.csv_rows import BadRow, PaymentRow, rows_of
from tpfd.examples.csv_payments.problems import BrokenFile, CsvRefused
from tpfd.examples.csv_payments.types import (
    ApprovedPaymentOutput,
    ApprovedPaymentStatus,
    CsvPaymentsInputFile,
    PaymentOutput,
    PaymentRecord,
    UnapprovedPaymentOutput,
    UnapprovedPaymentStatus,
)
from tpfd.steps import StepContext


def parse_payments(input_file: CsvPaymentsInputFile, context: StepContext) -> Iterator[PaymentRecord]:
    """Yields the payments of a file, if every row of it is good.

    Raises:
        CsvRefused: it is not; names the first rows. Nothing was yielded.
        NonRetryableError: the file is missing, not in the pipeline's source, or changed while it was read.
        OutsideError: it could not be read this time.
    """
    for row in _checked_rows(input_file, context, every_row=True):
        if isinstance(row, BadRow):
            raise _changed(input_file)
        yield _record(input_file, row)


def parse_good_payments(input_file: CsvPaymentsInputFile, context: StepContext) -> Iterator[PaymentRecord]:
    """Yields the good payments of a file and rejects its bad rows one by one.

    Raises:
        CsvRefused: the file as a whole cannot be read (encoding, header, an unclosed quote …). Nothing was yielded.
        NonRetryableError, OutsideError: as `parse_payments`.
    """
    for row in _checked_rows(input_file, context, every_row=False):
        if isinstance(row, BadRow):
            context.reject_item(row, CsvRefused(f"row {row.number}", row.problems, len(row.problems)))
        else:
            yield _record(input_file, row)


def approve_payment(status: ApprovedPaymentStatus) -> ApprovedPaymentOutput:
    """Says of a payment that it was made."""
    record = status.payment_record
    return ApprovedPaymentOutput(
        csv_id=record.csv_id,
        recipient=record.recipient,
        amount=record.amount,
        currency=record.currency,
        conversation_id=status.conversation_id,
        message=status.message,
        fee=status.fee,
    )


def unapprove_payment(status: UnapprovedPaymentStatus) -> UnapprovedPaymentOutput:
    """Says of a payment that it was refused."""
    record = status.payment_record
    return UnapprovedPaymentOutput(
        csv_id=record.csv_id,
        recipient=record.recipient,
        amount=record.amount,
        currency=record.currency,
        conversation_id=status.conversation_id,
        message=status.message,
        fee=status.fee,
    )


def finalize_output(output: ApprovedPaymentOutput | UnapprovedPaymentOutput) -> PaymentOutput:
    """Makes the output row of either branch."""
    return PaymentOutput(
        csv_id=output.csv_id,
        recipient=output.recipient,
        amount=output.amount,
        currency=output.currency,
        conversation_id=output.conversation_id,
        status="approved" if isinstance(output, ApprovedPaymentOutput) else "unapproved",
        message=output.message,
        fee=output.fee,
    )


def _record(input_file: CsvPaymentsInputFile, row: PaymentRow) -> PaymentRecord:
    # The row's place is part of its id: two equal rows are two payments, and a retry finds each of them again.
    return PaymentRecord(
        id=uuid5(NAMESPACE_URL, f"{input_file.filepath}#{row.number}"),
        csv_id=row.csv_id,
        recipient=row.recipient,
        amount=row.amount,
        currency=row.currency,
        csv_payments_input_file_path=input_file.filepath,
    )


def _checked_rows(
    input_file: CsvPaymentsInputFile, context: StepContext, *, every_row: bool
) -> Iterator[PaymentRow | BadRow]:
    """Yields the rows of a file after all of it was looked through.

    The file is opened once and read twice, so that a file which is replaced meanwhile is not read as a mixture.

    Args:
        input_file: where it is.
        context: opens it.
        every_row: refuse the file for a bad row, not only when it cannot be read to its end.
    """
    with context.open_object(input_file.filepath) as file:
        report = check(file)
        if not report.readable or (every_row and report.bad_row_count):
            raise report.refusal(PurePosixPath(input_file.filepath).name)
        file.seek(0)
        row_count = 0
        try:
            for row in rows_of(file):
                row_count += 1
                yield row
        except BrokenFile as broken:
            raise _changed(input_file) from broken
        if row_count != report.row_count:
            raise _changed(input_file)


def _changed(input_file: CsvPaymentsInputFile) -> NonRetryableError:
    return NonRetryableError(f"{input_file.filepath} was changed while it was read", code="csv_changed")
