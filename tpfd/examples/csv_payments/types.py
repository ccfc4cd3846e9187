"""The types of csv-payments, field by field as the contract in ``pipeline.yaml`` has them."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from attrs import frozen


@frozen
class CsvPaymentsInputFile:
    """A file of payments."""

    filepath: str
    csv_folder_path: str  # the folder it was found in


@frozen
class PaymentRecord:
    """One row: one payment to make."""

    id: UUID  # a function of file and row: the same in every attempt, different for equal rows
    csv_id: str
    recipient: str
    amount: Decimal  # in `currency`, the same text as in the file
    currency: str  # ISO 4217
    csv_payments_input_file_path: str


@frozen
class ApprovedPaymentStatus:
    """The provider paid."""

    reference: str  # the provider's
    status: str
    message: str
    fee: Decimal
    conversation_id: UUID
    status_code: int
    payment_record_id: UUID
    payment_record: PaymentRecord


@frozen
class UnapprovedPaymentStatus:
    """The provider refused to pay."""

    reference: str  # the provider's
    status: str
    message: str
    fee: Decimal
    conversation_id: UUID
    status_code: int
    payment_record_id: UUID
    payment_record: PaymentRecord


@frozen
class ApprovedPaymentOutput:
    """What is said about a payment that was made."""

    csv_id: str
    recipient: str
    amount: Decimal
    currency: str
    conversation_id: UUID
    message: str
    fee: Decimal


@frozen
class UnapprovedPaymentOutput:
    """What is said about a payment that was refused."""

    csv_id: str
    recipient: str
    amount: Decimal
    currency: str
    conversation_id: UUID
    message: str
    fee: Decimal


@frozen
class PaymentOutput:
    """One row of the output file: the fields are its columns, in this order."""

    csv_id: str
    recipient: str
    amount: Decimal
    currency: str
    conversation_id: UUID
    status: str  # approved | unapproved
    message: str
    fee: Decimal
