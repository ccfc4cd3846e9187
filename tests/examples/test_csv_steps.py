from __future__ import annotations

import csv
import logging
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import pytest

from tpfd.blocking import Inline
from tpfd.core.records import ExecutionId, TenantId
from tpfd.errors import NonRetryableError, OutsideError
from tpfd.examples.csv_payments import steps
from tpfd.examples.csv_payments.csv_check import KEPT_COUNT, check_file, dry_run
from tpfd.examples.csv_payments.csv_rows import BadRow
from tpfd.examples.csv_payments.problems import SHOWN_COUNT, CsvRefused
from tpfd.examples.csv_payments.types import (
    ApprovedPaymentStatus,
    CsvPaymentsInputFile,
    PaymentRecord,
    UnapprovedPaymentStatus,
)
from tpfd.objects.filesystem import FilesystemSource
from tpfd.objects.formats import CsvEncoder, Row
from tpfd.steps import StepContext

HEADER = "ID,Recipient,Amount,Currency\n"
OUTPUT_COLUMNS = "csvId,recipient,amount,currency,conversationId,status,message,fee"
CONVERSATION = UUID("00000000-0000-0000-0000-00000000000a")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "csv"
    path.mkdir()
    return path


def _parse(input_file: CsvPaymentsInputFile, folder: Path | None = None) -> Iterator[PaymentRecord]:
    """`parse_payments` in a pipeline whose source is the file's folder, or another one."""
    root = Path(input_file.csv_folder_path) if folder is None else folder
    return steps.parse_payments(input_file, _context([], root))


def _input(folder: Path, rows: str | bytes, name: str = "payments.csv") -> CsvPaymentsInputFile:
    (folder / name).write_bytes(rows if isinstance(rows, bytes) else (HEADER + rows).encode())
    return CsvPaymentsInputFile(filepath=str(folder / name), csv_folder_path=str(folder))


def _context(rejected: list[tuple[object, BaseException]], folder: Path) -> StepContext:
    source = FilesystemSource(folder, blocking=Inline(), now_epoch_ms=lambda: 0)
    return StepContext(
        execution_id=ExecutionId("01JDEADBEEF0000000000000AA"),
        tenant_id=TenantId("default"),
        pipeline_id="csv-payments",
        step_id="process-csv-payments-input",
        idempotency_key="k",
        transition_key="t",
        attempt=0,
        item_index=None,
        deadline_epoch_ms=None,
        logger=logging.getLogger("test"),  # type: ignore[arg-type]
        reject_item=lambda item, error: rejected.append((item, error)),
        reject_stream=lambda sample, count, error: None,
        open_object=source.open_object,
    )


def test_rows_become_records_in_order(folder: Path) -> None:
    input_file = _input(folder, "1,Ann,9.70,EUR\n2,Bob,100,JPY\n")
    first, second = _parse(input_file)
    assert (first.csv_id, first.recipient, first.amount, first.currency) == ("1", "Ann", Decimal("9.70"), "EUR")
    assert first.csv_payments_input_file_path == input_file.filepath
    assert (second.csv_id, str(second.amount)) == ("2", "100")


def test_a16_equal_rows_get_different_ids_and_every_attempt_the_same(folder: Path) -> None:
    input_file = _input(folder, "1,Ann,1.00,EUR\n" * 2)
    first, again = list(_parse(input_file)), list(_parse(input_file))
    assert len({record.id for record in first}) == 2
    assert first == again
    other = _input(folder, "1,Ann,1.00,EUR\n" * 2, "other.csv")
    assert not {record.id for record in _parse(other)} & {record.id for record in first}


def test_one_bad_row_refuses_the_file_before_anything_is_paid(folder: Path) -> None:
    payments = _parse(_input(folder, "1,Ann,1.00,EUR\n" * 50 + "51,Eve,1e3,EUR\n"))
    with pytest.raises(CsvRefused) as caught:
        next(payments)
    error = caught.value
    assert isinstance(error, NonRetryableError)
    assert error.problem_count == 1
    assert error.message.startswith("payments.csv is refused, nothing of it is paid: line 52: Amount '1e3' has an exp")


def test_the_error_names_the_first_rows_and_counts_the_rest(folder: Path) -> None:
    with pytest.raises(CsvRefused) as caught:
        next(_parse(_input(folder, "1,Ann,0,EUR\n" * 500)))
    assert caught.value.problem_count == 500
    assert len(caught.value.problems) == KEPT_COUNT
    assert caught.value.message.count("line ") == SHOWN_COUNT
    assert caught.value.message.endswith(f"and {500 - SHOWN_COUNT} more")


def test_a15_no_payment_from_a_file_with_an_unclosed_quote(folder: Path) -> None:
    rows = "".join(f'{n},{chr(34) if n == 17 else ""}Row {n},10.00,EUR\n' for n in range(1, 10_001))
    for parse in (_parse, lambda file: steps.parse_good_payments(file, _context([], folder))):
        with pytest.raises(CsvRefused, match="line 18: unclosed quote"):
            next(parse(_input(folder, rows)))


def test_good_rows_can_be_paid_without_the_bad_ones(folder: Path) -> None:
    rejected: list[tuple[object, BaseException]] = []
    input_file = _input(folder, "1,Ann,1.00,EUR\n2,Bob,1e3,EUR\n3,Eve,3.00,EUR\n4,Zoe\n")
    paid = list(steps.parse_good_payments(input_file, _context(rejected, folder)))
    assert [record.csv_id for record in paid] == ["1", "3"]
    items = [item for item, _ in rejected]
    assert all(isinstance(item, BadRow) for item in items)
    assert [item.line for item in items if isinstance(item, BadRow)] == [3, 5]
    assert "line 3: Amount '1e3'" in str(rejected[0][1])
    _input(folder, "1,Ann,1.00,EUR\n3,Eve,3.00,EUR\n", "only-good.csv")
    assert paid == [*steps.parse_good_payments(input_file, _context([], folder))]


def test_a_file_changed_between_check_and_reading_is_noticed(folder: Path) -> None:
    input_file = _input(folder, "1,Ann,1.00,EUR\n" * 3)
    payments = _parse(input_file)
    with open(input_file.filepath, "ab") as file:  # noqa: PTH123
        next(payments)
        file.write(b"4,Eve,99999.00,EUR\n")
        file.flush()
        with pytest.raises(NonRetryableError) as caught:
            list(payments)
    assert caught.value.code == "csv_changed"


def test_a_file_replaced_while_it_is_read_does_not_matter(folder: Path) -> None:
    rows = "1,Ann,1.00,EUR\n" * 20_000
    input_file = _input(folder, rows)
    payments = _parse(input_file)
    next(payments)
    (folder / "new").write_text("rubbish")
    (folder / "new").rename(input_file.filepath)
    assert sum(1 for _ in payments) == 19_999


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("outside.csv", "object_outside_source"),
        ("csv/../outside.csv", "object_key_refused"),
        ("csv/link.csv", "object_key_refused"),
        ("csv-2/x.csv", "object_outside_source"),
    ],
)
def test_only_files_of_the_folder_are_read(folder: Path, tmp_path: Path, where: str, code: str) -> None:
    (tmp_path / "csv-2").mkdir()
    for secret in ("outside.csv", "csv-2/x.csv"):
        (tmp_path / secret).write_text(HEADER + "1,Secret,1.00,EUR\n")
    (folder / "link.csv").symlink_to(tmp_path / "outside.csv")
    with pytest.raises(NonRetryableError) as caught:
        next(_parse(CsvPaymentsInputFile(str(tmp_path / where), "/"), folder))
    assert caught.value.code == code


def test_a_missing_file_is_final_a_missing_folder_is_not(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NonRetryableError, match="put it back") as missing:
        next(_parse(CsvPaymentsInputFile(str(folder / "none.csv"), str(folder))))
    assert missing.value.code == "object_missing"
    with pytest.raises(OutsideError) as unreadable:
        next(_parse(CsvPaymentsInputFile(str(tmp_path / "unmounted/a.csv"), str(tmp_path / "unmounted"))))
    assert unreadable.value.retryable


def test_an_abandoned_generator_closes_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = FilesystemSource.open_object

    def spy(self: FilesystemSource, path: str) -> BinaryIO:
        opened.append(real(self, path))
        return opened[-1]

    input_file = _input(folder, "1,Ann,1.00,EUR\n" * 10)
    monkeypatch.setattr(FilesystemSource, "open_object", spy)
    payments = _parse(input_file)
    next(payments)
    assert isinstance(payments, Iterator)
    payments.close()  # type: ignore[attr-defined]
    assert [file.closed for file in opened] == [True]


def test_check_counts_everything_and_keeps_a_few(folder: Path) -> None:
    _input(folder, "1,Ann,1.00,EUR\n" + ",,0,x\n" * 200)
    report = check_file(folder / "payments.csv")
    assert (report.row_count, report.bad_row_count, report.problem_count) == (201, 200, 800)
    assert len(report.problems) == KEPT_COUNT
    assert report.readable


def test_check_says_when_reading_ended_early(folder: Path) -> None:
    _input(folder, "1,Ann,1.00,EUR\n2,Zo\xeb,1.00,EUR\n".encode("latin-1"))
    (folder / "payments.csv").write_bytes(HEADER.encode() + b"1,Ann,0,EUR\n2,Zo\xeb,1.00,EUR\n")
    report = check_file(folder / "payments.csv")
    assert not report.readable
    assert [problem.line for problem in report.problems][-1] == 3


def test_dry_run_finds_what_the_real_run_refuses_and_writes_it_down(folder: Path) -> None:
    input_file = _input(folder, "1,Ann,1.00,EUR\n2,=cmd,0,EUR\n=3 ,Eve,1e3,EUR\n")
    with pytest.raises(CsvRefused) as caught:
        next(_parse(input_file))
    report = dry_run(folder / "payments.csv", folder / "errors.csv")
    assert report.problems == caught.value.problems
    with (folder / "errors.csv").open(newline="", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [(row["line"], row["column"]) for row in written] == [("3", "Amount"), ("4", "ID"), ("4", "Amount")]
    assert all(row["problem"].isprintable() for row in written)
    assert not any(cell.startswith(tuple("=+-@")) for row in written for cell in row.values())


def test_dry_run_of_a_good_file_writes_only_the_header(folder: Path) -> None:
    _input(folder, "1,Ann,1.00,EUR\n")
    report = dry_run(folder / "payments.csv", folder / "errors.csv")
    assert (report.row_count, report.problem_count) == (1, 0)
    assert (folder / "errors.csv").read_text() == "line,column,problem\n"


@pytest.mark.parametrize(
    ("status", "expected"), [(ApprovedPaymentStatus, "approved"), (UnapprovedPaymentStatus, "unapproved")]
)
def test_a17_an_answer_becomes_an_output_row_with_the_same_amount(
    folder: Path, status: type[ApprovedPaymentStatus | UnapprovedPaymentStatus], expected: str
) -> None:
    (record,) = _parse(_input(folder, "1,Ann,9.70,EUR\n"))
    answer = status(
        reference="r",
        status="what the provider calls it",
        message="done",
        fee=Decimal("0.10"),
        conversation_id=CONVERSATION,
        status_code=1,
        payment_record_id=record.id,
        payment_record=record,
    )
    branch = (
        steps.approve_payment(answer) if isinstance(answer, ApprovedPaymentStatus) else steps.unapprove_payment(answer)
    )
    output = steps.finalize_output(branch)
    assert output.status == expected
    cells: Row = {
        name: str(value)
        for name, value in zip(
            OUTPUT_COLUMNS.split(","), (getattr(output, a.name) for a in output.__attrs_attrs__), strict=True
        )
    }
    encoder = CsvEncoder(OUTPUT_COLUMNS.split(","))
    text = encoder.header() + encoder.rows([cells])
    assert text == f"{OUTPUT_COLUMNS}\n1,Ann,9.70,EUR,{CONVERSATION},{expected},done,0.10\n"


def test_money_is_decimal_all_the_way(folder: Path) -> None:
    records: list[PaymentRecord] = list(_parse(_input(folder, "1,Ann,0.10,EUR\n2,Bob,0.20,EUR\n")))
    assert str(sum((record.amount for record in records), Decimal(0))) == "0.30"
